import runpy
from pathlib import Path

import pytest

import trueshift as ts

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def test_the_two_programs_of_the_paper_are_there():
    assert {"simple_classifier", "simple_unet"} <= {path.stem for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_finds_no_difference_at_all(path, capsys):
    difference = runpy.run_path(str(path))["main"]()
    assert isinstance(difference, float)
    assert difference == 0.0
    assert capsys.readouterr().out.rstrip().endswith("shifts: 0.0")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_as_a_script(path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert "largest difference over all" in capsys.readouterr().out


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_would_notice_a_difference(path, capsys, monkeypatch, tmp_path):
    # With plain strides in place of a choice by content, the same program finds one.
    monkeypatch.setattr(ts, "LPD", lambda channels: ts.PolyphaseDown(ts.FixedSelector(0)))
    plain = tmp_path / path.name
    plain.write_text(path.read_text().replace('.eval(), "aps"', '.eval(), "stride"'))
    assert runpy.run_path(str(plain))["main"]() > 0.0
    assert not capsys.readouterr().out.rstrip().endswith("shifts: 0.0")
