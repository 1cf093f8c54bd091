"""The emulator: what it learns from, how it unrolls, what its test writes."""

import json
import sys
import types

import pytest
import tiny
import torch

import trueshift as ts
from trueshift.cli.networks import load_network
from trueshift.data import Flows
from trueshift.training import Emulator, OneCycle, StepDecay, WriteResults

pytestmark = tiny.WARNINGS
NETWORK = {"in_channels": 1, "widths": [4, 8]}


def emulator(method="lps", **options):
    spec = ts.Sampling(method, "tri3", dim=1, hidden=2)
    options = {"network_options": NETWORK, "tau": StepDecay(every=1), "exact_steps": 20, **options}
    return Emulator(network="unet", spec=spec, num_classes=1, **options)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("flows")
    few = {"num_train": 2, "num_val": 1, "num_test": 2}
    short = {"num_states": 20, "num_val_states": 12, "num_test_states": 12}
    return Flows("burgers", **few, **short, unroll=2, batch_size=8, root=str(root))


def trainer(tmp_path, epochs=1, **options):
    options = {"logger": False, "enable_checkpointing": False, **options}
    return tiny.L.Trainer(max_epochs=epochs, default_root_dir=tmp_path, **tiny.QUIET, **options)


def test_trains_tests_and_writes_results(tmp_path, data):
    model = emulator(unroll=2, noise=0.01, schedule=OneCycle(0.2, "cosine"))
    run = trainer(tmp_path, epochs=2, callbacks=[WriteResults()])
    run.fit(model, data)
    logged = run.callback_metrics
    assert {"val/valid_time", "val/one_step_error", "val/rollout_error"} <= logged.keys()
    run.test(model, data, verbose=False)
    results = json.loads((tmp_path / "results.json").read_text())
    metrics = results["metrics"]
    assert metrics["all_bitwise_equal"] is True
    assert metrics["error_1"] < metrics["error_10"]
    assert {"valid_time", "one_step_error", "spectrum_error", "grid_imprint"} <= metrics.keys()
    assert "error_20" not in metrics  # beyond the trajectories
    assert results["row"]["task"] == "emulator"
    assert results["row"]["setting"] == "burgers"
    assert results["time"]["inference"]["batch_shape"] == [2, 1, 128]


def test_the_commands_read_its_checkpoints(tmp_path):
    model, run = emulator(), trainer(tmp_path)
    run.strategy.connect(model)
    run.save_checkpoint(tmp_path / "last.ckpt")
    network, x = load_network(str(tmp_path / "last.ckpt")).model, torch.randn(1, 1, 16)
    assert torch.equal(network(x), model.network.eval()(x))


def test_plain_striding_is_not_exact(tmp_path, data):
    (metrics,) = trainer(tmp_path).test(emulator("stride"), data, verbose=False)
    assert metrics["test/bitwise_equal"] < 1


def test_learns_the_residual():
    model = emulator().eval()
    for parameter in model.network.head.parameters():
        torch.nn.init.zeros_(parameter)
    x = torch.randn(2, 1, 16)
    assert torch.equal(model(x), x)


def loss_of(model):
    model.log = lambda *_, **__: None
    torch.manual_seed(1)
    state, target = torch.randn(2, 1, 16), torch.randn(2, 3, 1, 16)
    return float(model.eval().training_step((state, target), 0).detach())


def test_unrolls_and_adds_noise():
    torch.manual_seed(0)
    model = emulator(unroll=3)
    torch.manual_seed(1)
    state, target = torch.randn(2, 1, 16), torch.randn(2, 3, 1, 16)
    model.eval()
    losses = []
    with torch.no_grad():
        for number in range(3):
            state = model(state)
            losses.append(float((state - target[:, number]).square().mean()))
    assert loss_of(model) == pytest.approx(sum(losses) / 3, rel=1e-5)
    model.hparams["noise"] = 0.5
    assert loss_of(model) != pytest.approx(sum(losses) / 3, rel=1e-3)


def test_the_curriculum_rises_to_unroll():
    model = emulator(unroll=4, curriculum_epochs=6)
    assert [model.num_unrolled(epoch) for epoch in range(8)] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert emulator(unroll=4).num_unrolled(0) == 4


def test_optimises_with_adamw_without_decay_on_selectors(tmp_path, data):
    model = emulator(momentum=0.8, lr=1e-3, unroll=2)
    run = trainer(tmp_path)
    run.fit(model, data)
    (optimizer,) = run.optimizers
    assert isinstance(optimizer, torch.optim.AdamW)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [1e-4, 0.0]
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.999)


def test_a_checkpoint_builds_the_module(tmp_path, data):
    model = emulator(unroll=2, noise=0.1)
    run = trainer(tmp_path)
    run.fit(model, data)
    run.save_checkpoint(tmp_path / "a.ckpt")
    again = Emulator.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    assert again.hparams == model.hparams


def test_a_test_that_blows_up_says_in_which_step(tmp_path, data):
    model = emulator()
    torch.nn.init.constant_(model.network.head.bias, 1e38)
    with pytest.raises(FloatingPointError, match=r"blew up in step \d+ of 11"):
        trainer(tmp_path).test(model, data, verbose=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unroll": 0}, "unroll must be at least 1, got 0"),
        ({"noise": -1.0}, "must not be negative, got noise=-1.0"),
        ({"nesterov": True}, "AdamW has no Nesterov momentum"),
    ],
)
def test_errors_name_the_rule(options, message):
    with pytest.raises(ValueError, match=message):
        emulator(**options)


def test_too_few_next_states_are_an_error():
    with pytest.raises(ValueError, match="unroll=4 needs that many states after the first, got 3"):
        loss_of(emulator(unroll=4))


def test_fno_needs_its_package_and_a_plain_spec(monkeypatch):
    monkeypatch.setitem(sys.modules, "neuralop", None)
    options = {"num_classes": 1, "network_options": {"in_channels": 1}}
    plain = ts.Sampling("stride", dim=1)
    with pytest.raises(ImportError, match=r"pip install 'trueshift\[flows\]'"):
        Emulator(network="fno", spec=plain, **options)
    with pytest.raises(ValueError, match="it does not sample"):
        Emulator(network="fno", spec=ts.Sampling("lps", dim=1), **options)
    with pytest.raises(ValueError, match=r"unknown network 'fnu'\. Did you mean 'fno'"):
        Emulator(network="fnu", spec=plain, **options)


def test_fno_learns(monkeypatch, tmp_path, data):
    """The package itself is optional: a stand-in takes the arguments that the real one takes."""
    made = {}

    class Build(torch.nn.Conv1d):
        def __init__(self, **arguments):
            super().__init__(1, 1, 3, padding=1, padding_mode="circular")
            made.update(arguments)

        def state_dict(self, *args, **kwargs):
            state = super().state_dict(*args, **kwargs)
            state["_metadata"] = {"activation": torch.relu}
            return state

    models = types.ModuleType("neuralop.models")
    models.FNO = Build
    monkeypatch.setitem(sys.modules, "neuralop", types.ModuleType("neuralop"))
    monkeypatch.setitem(sys.modules, "neuralop.models", models)
    options = {"num_classes": 1, "network_options": {"modes": 4}, "exact_steps": 2, "unroll": 2}
    model = Emulator(network="fno", spec=ts.Sampling("stride", dim=1), **options)
    run = trainer(tmp_path, callbacks=[WriteResults()])
    run.fit(model, data)
    run.save_checkpoint(tmp_path / "a.ckpt")
    run.test(model, data, ckpt_path=tmp_path / "a.ckpt", verbose=False, weights_only=True)
    assert made["n_modes"] == (4,)
    assert made["positional_embedding"] is None
    assert json.loads((tmp_path / "results.json").read_text())["row"]["network"] == "fno"
