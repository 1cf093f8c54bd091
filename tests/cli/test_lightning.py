import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import Trainer

import trueshift as ts
from trueshift.cli import lightning
from trueshift.cli.main import main
from trueshift.cli.runs import expand
from trueshift.data import Shapes
from trueshift.training import Classifier

RECIPE = {
    "seed_everything": 3,
    "model": {
        "class_path": "trueshift.training.Classifier",
        "init_args": {
            "network": "resnet",
            "network_options": {"depths": [1, 1], "widths": [4, 8], "stem": "cifar"},
            "spec": {"method": "lps", "antialias": "tri3", "hidden": [2]},
            "num_classes": 10,
            "tau": {
                "class_path": "trueshift.training.MultiRateLinear",
                "init_args": {"points": [[1, 1.0], [2, 0.5]]},
            },
            "max_shift": 4,
        },
    },
    "data": {
        "class_path": "trueshift.data.Shapes",
        "init_args": {
            "size": 8,
            "batch_size": 8,
            "num_train": 32,
            "num_val": 16,
            "num_test": 16,
        },
    },
    "trainer": {"max_epochs": 2, "accelerator": "cpu"},
}


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # so that it is taken back afterwards
    path = tmp_path / "recipes" / "shapes" / "small.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(RECIPE))
    return str(path)


def test_fit_test_predict_and_resume(recipe, capsys):
    assert lightning.main("fit", ["--config", recipe]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out  # no terminal, no escape codes
    assert "epoch 2/2 done" in out
    run = Path("runs/shapes/small/0")
    last = run / "checkpoints" / "last.ckpt"
    assert f"trueshift test --ckpt {last}" in out
    names = {path.name.partition(".")[0] for path in run.iterdir()}
    assert {"checkpoints", "config", "events", "metrics"} <= names

    assert lightning.main("test", ["--ckpt", str(last), "--model.num_pairs", "2"]) == 0
    results = json.loads((run / "results.json").read_text())
    assert results["metrics"]["circular_consistency"] == 1
    assert results["metrics"]["all_bitwise_equal"] is True
    assert results["row"]["data"] == "shapes"
    assert results["row"]["num_pairs"] == 2
    assert results["config"]["model"]["init_args"]["spec"]["antialias"] == "tri3"
    assert results["seed"] == 3
    assert f"report, to open in a browser: {run / 'report.html'}" in capsys.readouterr().out
    page = (run / "report.html").read_text()
    assert "resnet, lps + tri3 is exactly shift-invariant here" in page
    assert "16 of the test images of Shapes" in page
    assert lightning.main("test", ["--ckpt", str(last), "--no-report"]) == 0
    assert [path.name for path in run.glob("*.html")] == ["report.html"]
    assert lightning.main("test", ["--ckpt", str(last)]) == 0
    assert (run / "report.0.html").read_text() == page  # the first one is kept

    assert lightning.main("predict", ["--ckpt", str(last)]) == 0
    lines = (run / "predictions.csv").read_text().splitlines()
    assert lines[0] == "index,label,confidence"
    assert [line.split(",")[0] for line in lines[1:]] == [str(k) for k in range(16)]

    assert lightning.main("validate", ["--ckpt", str(last)]) == 0
    assert "val/accuracy" in capsys.readouterr().out

    assert lightning.main("fit", ["--resume", str(run), "--trainer.max_epochs", "3"]) == 0
    out = capsys.readouterr().out
    assert "epoch 3/3 done" in out
    assert "epoch 2/3" not in out
    assert (run / "metrics.0.csv").is_file()  # the curves so far are kept
    assert [path.name for path in run.parent.iterdir()] == ["0"]


def test_a_saved_network_is_tested_with_its_recipe(recipe):
    images = torch.rand(4, 3, 8, 8)
    options = {"depths": [1, 1], "widths": [4, 8], "stem": "cifar"}
    spec = ts.Sampling("lps", antialias="tri3", hidden=[2])
    saved = ts.models.resnet(spec, num_classes=10, **options).eval()
    ts.save(saved, "net.safetensors")
    ts.save(ts.models.resnet(spec, num_classes=3, **options), "other.safetensors")
    with pytest.raises(ValueError, match="pass its recipe, --config FILE"):
        lightning.main("test", ["--ckpt", "net.safetensors"])
    words = ["--config", recipe, "--no-report", "--ckpt"]
    assert lightning.main("test", [*words, "net.safetensors"]) == 0
    results = json.loads(Path("runs/shapes/small/0/results.json").read_text())
    assert results["metrics"]["all_bitwise_equal"] is True
    module = Classifier(
        network="resnet",
        spec=spec,
        num_classes=10,
        network_options=options,
        weights="net.safetensors",
    )
    trainer = Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    trainer.test(module, Shapes(size=8, num_test=8), verbose=False)
    assert torch.equal(module.network.eval()(images), saved(images))
    with pytest.raises(ValueError, match=r"other.safetensors are not those of this network"):
        lightning.main("test", [*words, "other.safetensors"])


def test_print_config_makes_no_folder(recipe, capsys):
    assert lightning.main("fit", ["--config", recipe, "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["model"]["init_args"]["tau"]["init_args"]["points"] == [[1, 1.0], [2, 0.5]]
    assert not Path("runs").exists()


def test_unknown_keys_fail(recipe, capsys):
    assert lightning.main("fit", ["--config", recipe, "--model.learning_rate", "1"]) == 2
    assert "learning_rate" in capsys.readouterr().err


def test_help_speaks_of_recipes(capsys):
    assert lightning.main("fit", ["--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: trueshift fit [--config FILE]")
    assert "--resume RUN_FOLDER" in " ".join(text.split())


@pytest.mark.parametrize(
    ("verb", "words", "match"),
    [
        ("test", ["--ckpt", "nothing.ckpt"], "no checkpoint nothing.ckpt"),
        ("test", ["--ckpt"], "needs a value"),
        ("test", ["--resume", "runs/x"], "--resume is for trueshift fit"),
        ("fit", ["--ckpt", "a.ckpt"], "--ckpt is for validate, test"),
        ("fit", ["--no-report"], "--no-report is for trueshift test"),
        ("fit", [], "fit: pass a recipe, --config FILE"),
    ],
)
def test_wrong_words(recipe, verb, words, match):
    with pytest.raises((ValueError, OSError), match=match):
        lightning.main(verb, words)


def test_a_value_that_lightning_refuses_is_the_users_error(recipe, capsys):
    assert main(["fit", "--config", recipe, "--trainer.accelerator", "nonsense"]) == 2
    assert "trueshift fit: error: trainer: " in capsys.readouterr().err


def test_checkpoint_without_configuration(recipe):
    Path("lone.ckpt").touch()
    with pytest.raises(FileNotFoundError, match="--config FILE --ckpt_path lone"):
        lightning.main("test", ["--ckpt", "lone.ckpt"])


def test_run_folders_are_numbered(recipe, tmp_path):
    words = ["--config", recipe]
    assert expand("fit", words).folder == Path("runs/shapes/small/0")
    Path("runs/shapes/small/4").mkdir(parents=True)
    assert expand("fit", words).folder == Path("runs/shapes/small/5")
    assert expand("fit", [*words, "--runs", "other"]).folder == Path("other/shapes/small/0")
    assert expand("fit", ["--config=a/b.yaml"]).folder == Path("runs/b/0")


def test_checkpoints_are_tested_in_float32_unless_told(tmp_path):
    (tmp_path / "config.yaml").touch()
    (tmp_path / "last.ckpt").touch()
    words = ["--ckpt", str(tmp_path / "last.ckpt"), "--trainer.precision", "bf16-mixed"]
    asked = expand("test", words).words
    assert asked.index("32-true") < asked.index("bf16-mixed")  # the later word counts
    assert "32-true" in expand("test", words[:2]).words
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/last.ckpt").touch()
    assert "32-true" not in expand("fit", ["--resume", str(tmp_path)]).words


def test_interrupt_saves_and_says_how_to_go_on(recipe, tmp_path):
    words = ["--config", recipe, "--trainer.max_epochs", "100000"]
    script = "import sys; from trueshift.cli.lightning import main; sys.exit(main('fit', ARGS))"
    script = script.replace("ARGS", repr(words))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        for line in process.stdout:
            if line.startswith("epoch 2/"):
                break
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert time.monotonic() - started < 60
    assert process.returncode == 130, errors
    assert "stopping after this batch" in errors
    assert "trueshift fit --resume runs/shapes/small/0" in errors
    assert Path("runs/shapes/small/0/checkpoints/last.ckpt").is_file()


def test_a_fit_without_its_data_leaves_no_folder(recipe):
    words = ["--config", recipe, "--data", "trueshift.data.CIFAR10", "--data.root", "nowhere"]
    with pytest.raises((ValueError, OSError), match="nowhere"):
        lightning.main("fit", words)
    assert not Path("runs/shapes/small/0").exists()
