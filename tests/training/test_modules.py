import dataclasses
import json

import pytest
import tiny
import torch
from torch.utils.data import DataLoader, TensorDataset

import trueshift as ts
from trueshift.training import (
    Classifier,
    MultiRateLinear,
    OneCycle,
    Poly,
    Segmenter,
    StepDecay,
    TauRule,
    WriteResults,
)
from trueshift.training.callbacks import MovingAverage
from trueshift.training.segmenter import load_backbone
from trueshift.training.tau import TAU_RULES
from trueshift.training.timing import BatchTimes, centre_crop

pytestmark = tiny.WARNINGS


def trainer(tmp_path, epochs=1, **options):
    options = {"logger": False, "enable_checkpointing": False, **options}
    return tiny.L.Trainer(max_epochs=epochs, default_root_dir=tmp_path, **tiny.QUIET, **options)


def test_classifier_trains_tests_and_writes_results(tmp_path):
    model = tiny.classifier(num_pairs=2, label_smoothing=0.1, consistency_every=1)
    run = trainer(tmp_path, callbacks=[WriteResults({"a": 1})])
    run.fit(model, tiny.loader(shuffle=True), tiny.loader())
    assert float(run.callback_metrics["val/circular_consistency"]) == 1
    run.test(model, tiny.loader(), verbose=False)
    results = json.loads((tmp_path / "results.json").read_text())
    metrics = results["metrics"]
    assert metrics["circular_consistency"] == 1
    assert metrics["all_bitwise_equal"] is True
    assert metrics["shifted_accuracy"] == metrics["accuracy"]
    assert results["parameters"] == model.num_parameters()
    assert results["parameters"]["total"] > results["parameters"]["pooling"] > 0
    assert results["time"]["train_seconds"] > 0
    assert results["time"]["inference"]["batch_shape"] == [8, 3, 8, 8]
    assert results["row"]["spec"]["method"] == "lps"
    assert results["config"] == {"a": 1}


def test_sgd_has_the_arguments(tmp_path):
    options = {"lr": 0.1, "momentum": 0.8, "weight_decay": 1e-3, "nesterov": True}
    model = tiny.classifier(schedule=OneCycle(0.5), **options)
    run = trainer(tmp_path, max_steps=2)
    run.fit(model, tiny.loader(), tiny.loader())
    group = run.optimizers[0].param_groups[0]
    assert (group["initial_lr"], group["momentum"], group["weight_decay"]) == (0.1, 0.8, 1e-3)
    assert group["nesterov"]
    assert group["lr"] == 0  # after the last of two steps
    assert run.lr_scheduler_configs[0].interval == "step"


def test_plain_striding_is_not_consistent(tmp_path):
    model = tiny.classifier("stride", num_pairs="all", max_shift=3)
    model.eval()
    run = trainer(tmp_path)
    (metrics,) = run.test(model, tiny.loader(), verbose=False)
    assert metrics["test/bitwise_equal"] < 1


def test_all_shifts_of_lps(tmp_path):
    run = trainer(tmp_path)
    model = tiny.classifier(num_pairs="all", max_shift=8)
    (metrics,) = run.test(model, tiny.loader(), verbose=False)
    assert metrics["test/circular_consistency"] == metrics["test/bitwise_equal"] == 1


def test_standard_shifts_need_a_window(tmp_path):
    data = DataLoader(tiny.images(8, size=12), batch_size=4)
    model = tiny.classifier(crop_size=8, max_shift=4)
    (metrics,) = trainer(tmp_path).test(model, data, verbose=False)
    assert 0 <= metrics["test/shift_consistency"] <= 1


def test_checkpoint_holds_plain_values_and_builds_the_module(tmp_path):
    tau = MultiRateLinear(((1, 1.0), (2, 0.5)), softmax_from=1)
    model = tiny.classifier(tau=tau, ema=0.5)
    run = trainer(tmp_path)
    run.fit(model, tiny.loader(), tiny.loader())
    path = tmp_path / "a.ckpt"
    run.save_checkpoint(path)
    saved = torch.load(path, weights_only=True)
    assert saved["hyper_parameters"]["spec"]["antialias"] == "tri3"
    again = Classifier.load_from_checkpoint(path)
    assert again.tau_schedule == tau
    assert again.train_seconds > 0
    selector = next(m for m in again.modules() if isinstance(m, ts.ConvSelector))
    assert (selector.train_rule, selector.test_rule) == ("softmax", "softmax")
    assert float(selector.tau) == 1
    images = tiny.images()[:4][0]
    assert torch.equal(again.eval()(images), model.eval()(images))


@dataclasses.dataclass(frozen=True)
class Halving(TauRule):
    """A rule whose fields are fields of StepDecay too."""

    initial: float = 1.0
    minimum: float = 0.1

    def __call__(self, epoch, backbone=None):
        return max(self.initial / 2**epoch, self.minimum)


@pytest.mark.parametrize(
    "options",
    [
        {"tau": Halving(0.8, 0.2)},
        {"tau": StepDecay(0.8, minimum=0.2)},
        {"tau": MultiRateLinear([[1, 0.8], [2, 0.2]])},
        {"schedule": Poly(0.5)},
        {"schedule": OneCycle(0.5)},
    ],
)
def test_a_checkpoint_restores_the_class_of_its_rules(tmp_path, monkeypatch, options):
    monkeypatch.setitem(TAU_RULES, "Halving", Halving)
    run = trainer(tmp_path)
    run.strategy.connect(tiny.classifier(**options))
    run.save_checkpoint(tmp_path / "a.ckpt")
    again = Classifier.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    restored = {"tau": again.tau_schedule, "schedule": again.schedule}
    for name, rule in options.items():
        assert restored[name] == rule


def test_ema_averages_weights_but_not_tau(tmp_path):
    torch.manual_seed(0)
    model = tiny.classifier(ema=0.999, tau=StepDecay(every=1), lr=0.5)
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    run = trainer(tmp_path, epochs=2)
    run.fit(model, tiny.loader(), tiny.loader())
    after = model.network.state_dict()
    # The average starts at the weights after the first step and hardly moves.
    moved = (after["fc.weight"] - before["fc.weight"]).abs().max()
    plain = tiny.classifier(tau=StepDecay(every=1), lr=0.5)
    plain.network.load_state_dict(before)
    trainer(tmp_path, epochs=2).fit(plain, tiny.loader(), tiny.loader())
    far = (plain.network.state_dict()["fc.weight"] - before["fc.weight"]).abs().max()
    assert 0 < moved < far
    assert float(after["layer2.0.down.selector.tau"]) == pytest.approx(0.85)


def test_test_uses_the_averaged_weights(tmp_path):
    model = tiny.classifier(ema=0.9)
    run = trainer(tmp_path)
    run.fit(model, tiny.loader(), tiny.loader())
    path = tmp_path / "a.ckpt"
    run.save_checkpoint(path)
    expected = torch.load(path, weights_only=True)["state_dict"]["network.fc.weight"]
    run.test(model, tiny.loader(), ckpt_path=path, verbose=False)
    assert torch.equal(model.network.fc.weight, expected)


@pytest.mark.parametrize(
    "options",
    [{"precision": "bf16-mixed"}, {"gradient_clip_val": 0.1}, {"accumulate_grad_batches": 2}],
)
def test_lightnings_own_options(tmp_path, options):
    model = tiny.classifier(channels_last=True)
    run = trainer(tmp_path, **options)
    run.fit(model, tiny.loader(), tiny.loader())
    assert torch.isfinite(run.callback_metrics["val/loss"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_compiled_network_trains(tmp_path):
    model = tiny.classifier("aps", compile=True)
    run = trainer(tmp_path)
    run.fit(model, tiny.loader(), tiny.loader())
    assert "network.conv1.weight" in model.state_dict()
    assert torch.isfinite(run.callback_metrics["val/loss"])


def test_predicts_labels(tmp_path):
    model = tiny.classifier()
    predictions = trainer(tmp_path).predict(model, tiny.loader())
    assert predictions[0]["label"].shape == (8,)
    assert float(predictions[0]["confidence"].max()) <= 1


def test_wrong_arguments():
    with pytest.raises(ValueError, match="Did you mean 'resnet18'"):
        Classifier(network="resnet8", spec=ts.Sampling(), num_classes=2)
    with pytest.raises(ValueError, match="network_options: resnet has no option 'depth'"):
        tiny.classifier(network_options={**tiny.SMALL, "depth": 2})
    with pytest.raises(TypeError):  # not an unknown name: a wrong type is not hidden
        tiny.classifier(network_options={**tiny.SMALL, "widths": None})
    with pytest.raises(ValueError, match="schedule: pass one of MultiStep, Poly, OneCycle"):
        tiny.classifier(schedule={"milestones": [3]})  # which class is not to be guessed
    with pytest.raises(ValueError, match=r"tau: unknown class 'StepDecy'. Did you mean 'Step"):
        tiny.classifier(tau={"class_path": "trueshift.training.StepDecy"})
    with pytest.raises(ValueError, match="tau: pass one of StepDecay, MultiRateLinear"):
        tiny.classifier(tau=Halving())  # a checkpoint could not name it
    with pytest.raises(ValueError, match="decay must lie"):
        MovingAverage(1.5)


# --- segmentation


def masks(num, height, width):
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 3, (num, height, width), generator=generator)
    labels[:, :2] = 255
    return TensorDataset(torch.randn(num, 3, height, width, generator=generator), labels)


def segmenter(**options):
    spec = ts.Sampling("lps", "tri3", hidden=2)
    options = {"num_pairs": 1, "max_shift": 4, "lr": 0.01, **options}
    return Segmenter(network="unet", spec=spec, num_classes=3, **options)


UNET = {"network_options": {"widths": [4, 8]}}


def test_segmenter_on_sizes_that_do_not_fit(tmp_path):
    model = segmenter(schedule=Poly(0.9), **UNET)
    run = trainer(tmp_path, callbacks=[WriteResults()])
    train = DataLoader(masks(4, 16, 16), batch_size=2)
    odd = DataLoader(masks(2, 13, 18), batch_size=1)
    run.fit(model, train, odd)
    assert 0 <= float(run.callback_metrics["val/miou"]) <= 1
    (metrics,) = run.test(model, odd, verbose=False)
    assert metrics["test/circular_consistency"] == metrics["test/bitwise_equal"] == 1
    assert metrics["test/shifted_miou"] == metrics["test/miou"]
    assert 0 <= metrics["test/shift_consistency"] <= 1
    assert "miou" in json.loads((tmp_path / "results.json").read_text())["metrics"]
    (first, _) = run.predict(model, odd)
    assert first["mask"][0].shape == (13, 18)


def test_ignored_pixels_do_not_count():
    model = segmenter(**UNET)
    logits = torch.randn(1, 3, 4, 4)
    target = torch.randint(0, 3, (1, 4, 4))
    target[:, 0] = 255
    other = logits.clone()
    other[:, :, 0] += 5
    assert torch.equal(model._loss(logits, target), model._loss(other, target))


def test_backbone_comes_from_a_classifier_with_its_tau(tmp_path):
    spec = ts.Sampling("lps", hidden=2)
    small = {"network_options": {"stem": "imagenet"}}
    classifier = Classifier(network="resnet18", spec=spec, num_classes=3, **small)
    ts.set_tau(classifier, 0.25)
    run = trainer(tmp_path)
    run.strategy.connect(classifier)
    path = tmp_path / "backbone.ckpt"
    run.save_checkpoint(path)
    network = ts.models.deeplabv3plus_resnet18(spec, num_classes=2, output_stride=16)
    load_backbone(network.backbone, path)  # the last stage is dilated: one selector fewer
    assert torch.equal(network.backbone.conv1.weight, classifier.network.conv1.weight)
    assert float(network.backbone.conv1_down.selector.tau) == 0.25
    other = ts.models.deeplabv3plus_resnet18(spec.replace(antialias="adapt3"), num_classes=2)
    with pytest.raises(ValueError, match="not of the same network"):
        load_backbone(other.backbone, path)
    with pytest.raises(FileNotFoundError, match="no backbone"):
        load_backbone(network.backbone, tmp_path / "nothing.ckpt")


SMALL_DEEPLAB = {
    "network": "deeplabv3plus_resnet18",
    "num_classes": 3,
    "network_options": {"widths": [8, 8, 8, 8]},
}


@pytest.mark.parametrize(
    ("mode", "network"),
    [("circular", SMALL_DEEPLAB), ("zeros", {**UNET, "network": "unet", "num_classes": 3})],
)
def test_photos_of_usual_sizes_go_through_validation_test_and_prediction(tmp_path, mode, network):
    spec = ts.Sampling("stride", padding_mode=mode)
    model = Segmenter(spec=spec, num_pairs=1, **network)
    photos = DataLoader(masks(1, 375, 500))
    run = trainer(tmp_path)
    (metrics,) = run.validate(model, photos, verbose=False)
    assert 0 <= metrics["val/miou"] <= 1
    (metrics,) = run.test(model, photos, verbose=False)
    assert 0 < metrics["test/shift_consistency"] <= 1
    (predicted,) = run.predict(model, photos)
    assert predicted["mask"][0].shape == (375, 500)


def test_the_backbone_learns_slower(tmp_path):
    spec = ts.Sampling("lps", hidden=2)
    options = {"backbone_lr": 0.1, "backbone_momentum": 0.01, "schedule": Poly(0.9)}
    model = Segmenter(spec=spec, lr=0.1, num_pairs=1, max_shift=4, **options, **SMALL_DEEPLAB)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    run = trainer(tmp_path, max_steps=1)
    data = DataLoader(masks(2, 32, 32), batch_size=2)
    run.fit(model, data, data)
    groups = run.optimizers[0].param_groups
    rates = [(group["initial_lr"], group["weight_decay"]) for group in groups]
    assert [(pytest.approx(lr), decay) for lr, decay in rates] == [
        (0.1, 1e-4),
        (0.01, 1e-4),
        (0.01, 0.0),  # selectors are all in the backbone
    ]
    assert sum(len(group["params"]) for group in groups) == len(before)
    first = "network.backbone.conv1.weight"
    assert not torch.equal(before[first], model.get_parameter(first))
    assert model.network.backbone.bn1.momentum == 0.01
    assert model.network.classifier.project[1].momentum == 0.1
    with pytest.raises(ValueError, match="unet has no backbone"):
        segmenter(backbone_lr=0.1, **UNET)


def test_crop():
    assert centre_crop(torch.ones(2, 3, 8, 8), 4).shape == (2, 3, 4, 4)
    small = torch.ones(2, 3, 4, 4)
    assert centre_crop(small, 8) is small
    assert centre_crop(small, None) is small


def test_batch_times_leave_out_the_first_and_smaller_batches_and_weigh_the_first():
    times, small = BatchTimes(), torch.ones(1, 3, 2, 2)
    assert times.summary() is None
    for size in (4, 4, 2, 4):
        assert times.measure(lambda x: x.sum(), torch.ones(size, 3, 2, 2)) == size * 12
    assert times.summary()["num_batches"] == 2
    times.reset()
    for _ in range(2):
        times.measure(lambda x: x.repeat(1, 1, 1, 2**18).relu().sum(), small)
    assert times.summary()["peak_mib"] == pytest.approx(2 * 12, rel=0.01)
    times.reset()
    with torch.autograd.profiler.profile():  # there can be only one
        times.measure(torch.relu, small)
    times.measure(torch.relu, small)
    assert times.summary()["peak_mib"] is None
