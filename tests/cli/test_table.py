import argparse
import json

import pytest

from trueshift.cli import table


def run(*words):
    parser = argparse.ArgumentParser()
    table.configure(parser)
    return table.run(parser.parse_args(words))


def test_prints_markdown(tmp_path, capsys):
    assert run("imagenet-standard", str(tmp_path)) == 0
    text = capsys.readouterr().out
    assert text.startswith("Table 3 of the paper")
    assert text.count("no result") == 18


def test_writes_json(tmp_path, capsys):
    target = tmp_path / "table.json"
    assert run("params", "--format", "json", "--output", str(target)) == 0
    rows = json.loads(target.read_text())["rows"]
    assert rows[0]["metrics"]["total"] == {
        "ours": 42_966_730,
        "ours_std": None,
        "num_runs": 1,
        "paper": 42_966_730,
        "paper_std": None,
    }
    assert capsys.readouterr().out == ""


def test_unknown_table(capsys):
    with pytest.raises(SystemExit) as stop:
        run("cifar100")
    assert stop.value.code == 2
    assert "imagenet-circular" in capsys.readouterr().err
