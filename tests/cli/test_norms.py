import json

import pytest
import torch
import yaml

import trueshift as ts
from trueshift.cli.main import main


@pytest.fixture
def checkpoint(tmp_path):
    torch.manual_seed(0)
    options = {"stem": 16, "widths": (32, 64, 128), "residual": (False, True, True)}
    net = ts.models.resnet9(ts.Sampling("lps", hidden="eighth"), num_classes=10, **options)
    path = tmp_path / "run" / "checkpoints" / "last.safetensors"
    path.parent.mkdir(parents=True)
    ts.save(net, path)
    data = {"num_train": 4, "num_val": 4, "num_test": 12, "batch_size": 4}
    config = {"data": {"class_path": "trueshift.data.Shapes", "init_args": data}}
    (path.parents[1] / "config.yaml").write_text(yaml.safe_dump(config))
    return path


def test_the_network_of_the_docs_is_diagnosed(checkpoint, tmp_path, capsys):
    out = tmp_path / "norms.json"
    words = ["norms", str(checkpoint), "--limit", "2", "--draws", "2", "--phases"]
    assert main([*words, "--json", str(out)]) == 0
    told = capsys.readouterr().out
    assert "8 images, accuracy " in told
    assert "All 3 selectors choose at chance" in told  # it is not trained
    assert "Choices of stages.2.down" in told
    assert "averaged over its phases" in told
    read = json.loads(out.read_text())
    assert read["num_images"] == 8
    assert len(read["random"]) == 2
    assert read["layers"][0]["name"] == "stages.0.down"
    assert read["verdict"] in told
    assert read["mean"]["agreement"] == pytest.approx(0.25, abs=0.05)


def test_a_negative_number_of_draws_is_refused(checkpoint, capsys):
    assert main(["norms", str(checkpoint), "--draws", "-1"]) == 2
    assert "draws must be at least 0, got -1" in capsys.readouterr().err
