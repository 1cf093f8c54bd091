import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_the_readme_runs(code: str) -> None:
    assert "assert" in code
    exec(compile(code, str(README), "exec"), {})


def test_the_readme_has_an_example() -> None:
    assert BLOCKS
