import json

import pytest

from trueshift.bench import NETWORKS, Workload
from trueshift.cli import main


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    options = {"depths": (1, 1), "widths": (4, 8), "stem": "cifar"}
    monkeypatch.setitem(NETWORKS, "tiny", Workload("Tiny", "resnet", 4, 32, 3, "same", options))


def test_prints_tables_and_writes_json(tmp_path, capsys):
    file = tmp_path / "speed.json"
    words = ["--networks", "tiny", "--rows", "stride", "lps-tri3", "timm-blur", "--quick"]
    assert main.main(["bench", "models", *words, "--size", "8", "--json", str(file)]) == 0
    text = capsys.readouterr().out
    assert "## Tiny: 2 x 3 x 8 x 8, nchw, float32" in text
    assert "| LPS tri3 |" in text
    assert "timm has no Tiny" in text
    (bench,) = json.loads(file.read_text())["benches"]
    assert bench["complete"]
    assert len(bench["rows"]["stride"]["train"]["times_ms"]) == 1


def test_both_layouts(capsys):
    words = ["--networks", "tiny", "--rows", "stride", "--quick", "--measures", "eval"]
    assert main.main(["bench", "models", *words, "--layout", "both", "--format", "json"]) == 0
    benches = json.loads(capsys.readouterr().out)["benches"]
    assert [bench["layout"] for bench in benches] == ["nchw", "channels_last"]
    assert [bench["shape"] for bench in benches] == [[2, 3, 32, 32]] * 2


def test_narrow_selectors(capsys):
    words = ["--networks", "tiny", "--rows", "lps", "--quick", "--measures", "eval"]
    words += ["--format", "json"]
    assert main.main(["bench", "models", *words]) == 0
    (wide,) = json.loads(capsys.readouterr().out)["benches"]
    assert main.main(["bench", "models", *words, "--hidden", "eighth"]) == 0
    (narrow,) = json.loads(capsys.readouterr().out)["benches"]
    assert (wide["hidden"], narrow["hidden"]) == ("same", "eighth")
    assert narrow["rows"]["lps"]["flops_per_image"] < wide["rows"]["lps"]["flops_per_image"]


def test_an_interruption_writes_what_is_known(tmp_path, capsys, monkeypatch):
    def stop(run):
        raise KeyboardInterrupt

    monkeypatch.setattr("trueshift.bench.run.peak_mib", stop)
    file = tmp_path / "speed.json"
    words = ["--networks", "tiny", "--rows", "stride", "--quick", "--json", str(file)]
    assert main.main(["bench", "models", *words]) == 130
    (bench,) = json.loads(file.read_text())["benches"]
    assert not bench["complete"]
    assert bench["rows"]["stride"]["eval"]["median_ms"] > 0
    assert "Cut short" in capsys.readouterr().out


def test_a_folder_that_is_not_there(tmp_path, capsys):
    words = ["bench", "models", "--quick", "--json", str(tmp_path / "no" / "speed.json")]
    assert main.main(words) == 2
    assert "no folder" in capsys.readouterr().err


def test_unknown_network(capsys):
    with pytest.raises(SystemExit) as stop:
        main.main(["bench", "models", "--networks", "resnet19"])
    assert stop.value.code == 2
    assert "resnet101" in capsys.readouterr().err


def test_parameters(capsys):
    assert main.main(["bench", "params"]) == 0
    assert "42,966,730" in capsys.readouterr().out
