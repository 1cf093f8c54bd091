import itertools

import pytest
import tiny
import torch
from torch import nn

import trueshift as ts
from trueshift.training import (
    MultiRateLinear,
    PlainProgress,
    StepDecay,
    TauSchedule,
    set_rules,
)
from trueshift.training.tau import selectors

# The paper's two tables of schedules, copied here by hand.
CIRCULAR = MultiRateLinear(((1, 1.0), (62, 0.5), (82, 0.05), (90, 0.01)))
STANDARD = MultiRateLinear(((1, 1.0), (62, 0.5), (90, 0.25)), softmax_from=63)
SEGMENT18 = MultiRateLinear(((1, "backbone"), (60, 0.5), (82, 0.15), (90, 0.01)))
SEGMENT101 = MultiRateLinear(((1, "backbone"), (10, 0.5), (80, 0.3), (100, 0.125), (125, 0.01)))


def test_step_decay_every_epoch_of_cifar10():
    tau = 1.0
    for epoch in range(1, 251):
        if epoch > 1 and epoch % 10 == 1:
            tau = max(0.85 * tau, 0.025)
        assert StepDecay()(epoch) == tau
    assert StepDecay()(250) == pytest.approx(0.85**24 if 0.85**24 > 0.025 else 0.025)


def slow_line(points, epoch):
    """Find the two points around the epoch by trying every pair, and weigh them."""
    for (e0, t0), (e1, t1) in itertools.pairwise(points):
        if e0 <= epoch <= e1:
            share = (epoch - e0) / (e1 - e0)
            return t0 * (1 - share) + t1 * share
    return points[-1][1]


@pytest.mark.parametrize(
    ("schedule", "epochs"), [(CIRCULAR, 90), (STANDARD, 90), (SEGMENT18, 125), (SEGMENT101, 125)]
)
def test_multi_rate_linear_every_epoch(schedule, epochs):
    backbone = 0.07
    points = [(e, backbone if t == "backbone" else t) for e, t in schedule.points]
    for epoch in range(1, epochs + 20):
        assert schedule(epoch, backbone) == pytest.approx(slow_line(points, epoch), abs=1e-12)
    for epoch, tau in points:
        assert schedule(epoch, backbone) == pytest.approx(tau, abs=1e-12)


def test_segmentation_holds_the_last_tau():
    assert {SEGMENT18(epoch, 0.01) for epoch in range(90, 126)} == {0.01}


def test_standard_setting_uses_softmax_for_28_epochs():
    assert 90 - STANDARD.softmax_from + 1 == 28


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: MultiRateLinear(()), "start at 1"),
        (lambda: MultiRateLinear(((2, 1.0),)), "start at 1"),
        (lambda: MultiRateLinear(((1, 1.0), (1, 0.5))), "increase"),
        (lambda: MultiRateLinear(((1, 1.0), (2, "backbone"))), "in the first"),
        (lambda: MultiRateLinear(((1, 0.0),)), "positive"),
        (lambda: MultiRateLinear(((1, "backbone"),))(1), "pass its tau"),
        (lambda: StepDecay(factor=1.5), "factor must lie"),
        (lambda: StepDecay(every=0), "every"),
    ],
)
def test_wrong_schedules(build, match):
    with pytest.raises(ValueError, match=match):
        build()


class Module(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network, self.logged = network, {}

    def log(self, name, value):
        self.logged[name] = value


class Trainer:
    current_epoch = 0


def run(callback, module, epochs):
    trainer, taus = Trainer(), []
    callback.on_fit_start(trainer, module)
    for trainer.current_epoch in epochs:
        callback.on_train_epoch_start(trainer, module)
        taus.append(float(module.network.selector.tau))
    return taus


def test_callback_sets_tau_and_resumes():
    module = Module(ts.LPD(4))
    ts.set_tau(module, 0.2)
    callback = TauSchedule(MultiRateLinear(((1, "backbone"), (3, 0.6), (5, 0.1))))
    taus = run(callback, module, range(5))
    assert taus == pytest.approx([0.2, 0.4, 0.6, 0.35, 0.1])
    assert module.logged["tau"] == pytest.approx(0.1)

    resumed = TauSchedule(callback.schedule)
    resumed.load_state_dict(callback.state_dict())
    other = Module(ts.LPD(4))
    other.load_state_dict(module.state_dict())  # tau travels in the weights
    assert float(other.network.selector.tau) == pytest.approx(0.1)
    assert run(resumed, other, range(1, 5)) == pytest.approx([0.4, 0.6, 0.35, 0.1])


def test_callback_switches_to_softmax_for_training_and_testing():
    spec = ts.Sampling("lps", hidden=2)
    network = ts.models.resnet(spec, (1, 1), (4, 8), num_classes=2, stem="cifar")
    module, trainer = Module(network), Trainer()
    callback = TauSchedule(MultiRateLinear(((1, 1.0), (4, 0.5)), softmax_from=3))
    selector = next(m for m in network.modules() if isinstance(m, ts.ConvSelector))
    rules = []
    for trainer.current_epoch in range(4):
        callback.on_train_epoch_start(trainer, module)
        rules.append((selector.train_rule, selector.test_rule))
    assert rules == [("gumbel", "argmax")] * 2 + [("softmax", "softmax")] * 2
    assert network.origin.arguments["spec"].test_rule == "softmax"
    network.eval()
    assert selector.choose(torch.randn(2, 8, 4, 4)).dtype.is_floating_point


def test_network_without_selectors_is_left_alone():
    module = Module(nn.Conv2d(3, 3, 1))
    callback = TauSchedule(StepDecay())
    callback.on_fit_start(Trainer(), module)
    callback.on_train_epoch_start(Trainer(), module)
    assert callback.backbone is None
    assert module.logged == {}


def test_set_rules_leaves_networks_that_do_not_learn_alone():
    spec = ts.Sampling("aps", train_rule="random")
    network = ts.models.resnet(spec, (1, 1), (4, 8), num_classes=2, stem="cifar")
    set_rules(network, "softmax", "softmax")
    assert network.origin.arguments["spec"] == spec


def test_set_rules_checks_names():
    with pytest.raises(ValueError, match="test_rule"):
        set_rules(nn.Identity(), "gumbel", "softmx")


def _log_of(model, **options):
    run = tiny.L.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, **options)
    run.fit(model, tiny.loader(), tiny.loader())
    return run.callback_metrics


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*", "ignore:.*does not have many workers.*")
def test_training_says_whether_selectors_choose(capsys):
    options = {"enable_model_summary": False, "accelerator": "cpu", "callbacks": [PlainProgress()]}
    model = tiny.classifier(tau=None, lr=1e-9)
    numbers = _log_of(model, **options)
    assert 0.25 <= float(numbers["selector/agreement"]) < 0.28
    assert 0 <= float(numbers["selector/entropy"]) <= 2
    said = capsys.readouterr().out
    assert "down chooses at chance: 25." in said
    assert "noise alone gives 25.0%" in said
    for selector in selectors(model):  # now far above the noise
        selector.conv2.weight.data.mul_(1e6)
    assert float(_log_of(model, **options)["selector/agreement"]) > 0.9
    assert "at chance" not in capsys.readouterr().out
    assert "selector/agreement" not in _log_of(tiny.classifier("aps"), **options)
