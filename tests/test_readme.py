import re
from pathlib import Path

import pytest
import torch
from torch import nn

import trueshift as ts

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
