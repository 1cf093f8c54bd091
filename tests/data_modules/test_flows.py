"""The data module of flows: windows, splits, scale, and the file it keeps."""

import pytest
import torch

from trueshift.data import Flows
from trueshift.data.flows import module
from trueshift.data.flows.module import Windows

TINY = {"equation": "burgers", "num_train": 3, "num_val": 1, "num_test": 2}
SHORT = {"num_states": 6, "num_val_states": 7, "num_test_states": 9}
SMALL = {"interval": 2, "batch_size": 4, "unroll": 2}


def flows(root, **options):
    return Flows(**{**TINY, **SHORT, **SMALL, "root": str(root), **options})


def test_windows_of_trajectories():
    states = torch.arange(12.0).view(2, 6, 1, 1)
    windows = Windows(states, num_next=2)
    assert len(windows) == 8
    first, following = windows[5]
    assert (first.item(), following.flatten().tolist()) == (7.0, [8.0, 9.0])


def test_batches(tmp_path):
    data = flows(tmp_path)
    data.setup("fit")
    first, following = next(iter(data.train_dataloader()))
    assert (first.shape, following.shape) == ((4, 1, 128), (4, 2, 1, 128))
    assert len(data.datasets["train"]) == 3 * 4
    first, following = next(iter(data.test_dataloader()))
    assert (first.shape, following.shape) == ((2, 1, 128), (2, 8, 1, 128))
    states = data.datasets["train"].states
    assert states.dtype == torch.float32
    assert abs(float(states.mean())) < 1e-5
    assert abs(float(states.std()) - 1) < 1e-5


def test_the_same_seed_gives_the_same_bits_and_splits_differ(tmp_path):
    a, b, c = (flows(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    for data in (a, b, c):
        data.setup()
    states = [data.datasets["train"].states for data in (a, b, c)]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])
    others = torch.cat([a.datasets[split].states[:, 0] for split in ("val", "test")])
    assert all((states[0][:, 0] - other).abs().amax((1, 2)).min() > 0.1 for other in others)


def test_solves_once_and_keeps_whole_files(tmp_path, monkeypatch):
    flows(tmp_path).prepare_data()
    assert len(list(tmp_path.iterdir())) == 3
    monkeypatch.setattr(module, "trajectories", None)
    data = flows(tmp_path)
    data.setup("test")  # reads
    with pytest.raises(TypeError):
        flows(tmp_path, interval=3).prepare_data()  # would solve
    assert len(list(tmp_path.iterdir())) == 3
    data.path("val").write_bytes(b"cut short")
    with pytest.raises(ValueError, match=r"cannot be read .* Remove it, and it is solved again"):
        flows(tmp_path).setup()


def test_the_channel_wraps_along_one_axis(tmp_path):
    data = flows(tmp_path, equation="channel")
    data.setup()
    assert data.periodic == (False, True)
    assert data.datasets["val"].states.shape == (1, 7, 1, 32, 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"equation": "burger"}, "unknown equation 'burger'. Did you mean 'burgers'"),
        ({"unroll": 6}, "must be longer than unroll, .* got num_states=6, unroll=6"),
        ({"num_val_states": 1}, "at least two states, .* num_val_states=1"),
        ({"num_val": 0}, "num_val must be at least 1, got 0"),
        ({"interval": 0}, "interval must be at least 1, got 0"),
    ],
)
def test_errors_name_the_rule(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        flows(tmp_path, **options)
