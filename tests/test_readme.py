import re
from pathlib import Path

import pytest
import torch
from torch import nn

import trueshift as ts

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_the_readme_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    images = torch.randn(2, 3, 64, 64)
    my_model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    given = {"my_model": my_model, "images": images, "example_input": images}
    assert "assert" in code
    with torch.no_grad():
        exec(compile(code, str(README), "exec"), {"torch": torch, "ts": ts, **given})


def test_the_readme_has_an_example() -> None:
    assert BLOCKS
    assert "import trueshift as ts" in BLOCKS[0]
