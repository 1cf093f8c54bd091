import pytest
import torch

import trueshift as ts
from trueshift.models.upsampling import LinearUps, PolyphaseUps

LPS = ts.Sampling("lps", "tri3", hidden="eighth")


def test_upsampling_follows_the_method():
    model = ts.models.deeplabv3plus_resnet18(LPS)
    assert isinstance(model.classifier.unpool, PolyphaseUps)
    assert len(model.classifier.unpool.ups) == 3
    assert len(model.unpool.ups) == 2
    assert model.unpool.ups[0].antialias.channels == 21
    plain = ts.models.deeplabv3plus_resnet18(ts.Sampling("stride"))
    assert isinstance(plain.unpool, LinearUps)
    assert len(ts.models.deeplabv3plus_resnet101(LPS).classifier.unpool.ups) == 2


@pytest.mark.parametrize("antialias", [None, "adapt3"])
def test_upsampling_always_has_a_fixed_filter(antialias):
    model = ts.models.deeplabv3plus_resnet18(ts.Sampling("lps", antialias))
    assert model.unpool.ups[0].antialias.size == 3
    assert isinstance(model.unpool.ups[0].antialias, ts.Blur)


def test_deeplab_trains_its_selectors_through_the_decoder():
    model = ts.models.deeplabv3plus_resnet18(LPS, num_classes=3)
    model(torch.randn(2, 3, 64, 64)).square().mean().backward()
    assert model.backbone.conv1_down.selector.conv1.weight.grad.abs().sum() > 0
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("up", ["polyphase", "linear"])
def test_any_size_with_zero_padding(up):
    model = ts.models.deeplabv3plus_resnet18(LPS.replace(padding_mode="zeros"), 3, up=up).eval()
    assert model(torch.randn(1, 3, 75, 50)).shape == (1, 3, 75, 50)
    net = ts.models.unet(LPS.replace(padding_mode="zeros"), 1, 2, widths=(4, 8, 8), up=up).eval()
    assert net(torch.randn(1, 1, 13, 22)).shape == (1, 2, 13, 22)


def test_plain_unet_pools_like_torch():
    spec = ts.Sampling("stride")
    net = ts.models.unet(spec, 1, 2, widths=(4, 8))
    x = torch.randn(2, 4, 6, 8)
    pooled, step = net.downs[0](x)
    assert torch.equal(pooled, torch.nn.functional.max_pool2d(x, 2))
    assert step.size == (6, 8)


def test_sizes_are_checked_at_the_entry():
    with pytest.raises(ValueError, match=r"multiple of 32.*\(1, 3, 40, 64\)"):
        ts.models.deeplabv3plus_resnet18(LPS).eval()(torch.randn(1, 3, 40, 64))
    net = ts.models.unet(LPS, 1, 2, dim=1)
    assert net.required_multiple == 8
    with pytest.raises(ValueError, match=r"UNet: .*multiple of 8.*pad to \(16,\), crop to \(8,\)"):
        net(torch.randn(1, 1, 12))
    with pytest.raises(ValueError, match="at least two levels"):
        ts.models.unet(LPS, widths=(8,))
    with pytest.raises(ValueError, match=r"unknown up 'lpu'"):
        ts.models.unet(LPS, up="lpu")
    with pytest.raises(ValueError, match="dim must be 1, 2 or 3"):
        ts.models.unet(LPS, dim=4)


def test_features_of_segmenters():
    net = ts.models.unet(LPS, 1, 2, widths=(4, 8, 8)).eval()
    strides = [feature.stride for feature in net.features(torch.randn(1, 1, 16, 16))]
    assert strides == [(1, 1), (2, 2), (4, 4)]
    model = ts.models.deeplabv3plus_resnet18(LPS).eval()
    assert [f.stride[0] for f in model.features(torch.randn(1, 3, 64, 64))] == [4, 8, 16, 32]


def test_the_decoder_may_be_narrow():
    narrow = {"widths": (8, 8, 8, 8), "decoder_width": 16}
    model = ts.models.deeplabv3plus_resnet18(LPS, num_classes=3, **narrow).eval()
    assert model.classifier.classifier[0].in_channels == 16 + 3
    assert model.classifier.classifier[0].out_channels == 16
    x = torch.randn(1, 3, 64, 32)
    assert torch.equal(model(x.roll(7, 3)), model(x).roll(7, 3))
    with pytest.raises(ValueError, match="decoder_width"):
        ts.models.deeplabv3plus_resnet18(LPS, decoder_width=0)
