import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch

pytestmark = tiny.WARNINGS


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # so that it is taken back afterwards
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def run(folder, **options):
    tiny.run(folder, **options)
    return torch.load(folder / "final.pt", weights_only=True)


def run_killed(folder, **options):
    words = [f"{name}={value}" for name, value in options.items()]
    command = [sys.executable, str(Path(tiny.__file__)), str(folder), *words]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (folder / "final.pt").exists()


def assert_same(expected, actual):
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        assert torch.equal(value, actual[name]), name


@pytest.mark.parametrize(
    ("kill", "options"),
    [
        ("8", {"every": "3", "ema": "0.9"}),  # saved after 6 steps, in the middle of an epoch
        ("10", {"optimizer": "muon"}),
        pytest.param("10", {}, marks=pytest.mark.slow),  # saved at the end of an epoch
        pytest.param("2", {"every": "1"}, marks=pytest.mark.slow),  # within the first epoch
        pytest.param("10", {"workers": "1"}, marks=pytest.mark.slow),
        pytest.param("7", {"every": "3", "workers": "1"}, marks=pytest.mark.slow),
    ],
)
def test_killed_run_ends_like_one_that_was_not(tmp_path, kill, options):
    expected = run(tmp_path / "whole", **options)
    run_killed(tmp_path / "parts", kill=kill, **options)
    assert_same(expected, run(tmp_path / "parts", resume="yes", **options))


@pytest.mark.parametrize("when", ["on_validation_end", "on_train_epoch_end"])
def test_resume_at_the_end_of_an_epoch(tmp_path, when):
    expected = run(tmp_path / "whole")
    tiny.run(tmp_path / "parts", epochs="2", when=when)
    assert_same(expected, run(tmp_path / "parts", resume="yes"))


@pytest.mark.parametrize("step", ["1", "6"])
def test_interrupted_run_goes_on_exactly(tmp_path, step, capsys):
    handler = signal.getsignal(signal.SIGINT)
    expected = run(tmp_path / "whole")
    with pytest.raises(SystemExit):
        tiny.run(tmp_path / "parts", interrupt=step)
    assert signal.getsignal(signal.SIGINT) is handler
    assert "stopping after this batch" in capsys.readouterr().err
    saved = torch.load(tmp_path / "parts" / "last.ckpt", weights_only=True)
    assert saved["global_step"] == int(step) + 1
    assert_same(expected, run(tmp_path / "parts", resume="yes"))


def test_noise_matters(tmp_path):
    """Another seed gives other weights: the equalities above compare something."""
    one = run(tmp_path / "one", epochs="1")
    other = run(tmp_path / "other", epochs="1", seed="6")
    assert not torch.equal(one["conv1.weight"], other["conv1.weight"])


def test_step_seeds_are_what_makes_it_equal(tmp_path, monkeypatch):
    """With a fresh stream of noise for the rest of the run, the end differs."""
    expected = run(tmp_path / "whole")
    tiny.run(tmp_path / "parts", epochs="2")
    monkeypatch.setattr("trueshift.training.randomness.step_seed", lambda *_: 1)
    resumed = run(tmp_path / "parts", resume="yes")
    assert not torch.equal(expected["conv1.weight"], resumed["conv1.weight"])
