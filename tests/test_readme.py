import re
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn

import trueshift as ts
from trueshift.cli.main import COMMANDS, LIGHTNING, full_parser
from trueshift.quickstart import COLUMNS
from trueshift.quickstart.scenes import PICTURES

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/quickstart.md", "docs/cylinders.md", "docs/segmentation.md")


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


BLOCKS = [
    pytest.param(code, id=f"{page}-{i}") for page in PAGES for i, code in enumerate(blocks(page))
]


@pytest.mark.parametrize("code", BLOCKS)
def test_the_code_of_the_docs_runs(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    size = 256 if "anchor" in code else 64
    images = torch.randn(2, 3, size, size)
    my_model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    given = {"my_model": my_model, "images": images, "example_input": images, "example": images}
    with torch.no_grad():
        exec(compile(code, "<docs>", "exec"), {"torch": torch, "ts": ts, **given})


def test_the_readme_proves_what_it_says() -> None:
    code = blocks("README.md")
    assert "import trueshift as ts" in code[0]
    assert all("assert" in block for block in code)
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_what_the_readme_names_exists() -> None:
    text = (ROOT / "README.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for path in re.findall(r"\]\(([^)#:]+)", text) + re.findall(r"recipes/[\w/]+\.yaml", text):
        assert (ROOT / path).exists(), path
    for target in re.findall(r"^make (\w+)|`make (\w+)", text, flags=re.MULTILINE):
        assert f"\n{''.join(target)}: " in (ROOT / "Makefile").read_text(), target
    for extra in re.findall(r'"\.\[(\w+)\]"', text):
        assert extra in project["optional-dependencies"], extra
    for line in re.findall(r"`trueshift ([^`]+)`", text):
        verb, *words = line.split()
        assert verb in COMMANDS, verb
        if words and verb not in LIGHTNING:
            full_parser().parse_args([verb, *words])


def test_the_readme_has_the_table_of_the_quickstart() -> None:
    text = (ROOT / "README.md").read_text()
    heads = ("Sampling", *(head for _, head, _ in COLUMNS["pictures"]))
    assert f"| {' | '.join(heads)} |" in text
    for row in PICTURES.values():
        assert f"\n| {row.title} | " in text
