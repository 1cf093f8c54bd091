import pytest
import torch
from networks import trained

import trueshift as ts
from trueshift.shifts import circular_shift

LPS = ts.Sampling("lps", "tri3", hidden="eighth")


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"])
@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
def test_shapes(name, stem):
    with torch.device("meta"):
        model = getattr(ts.models, name)(ts.Sampling("stride"), num_classes=7, stem=stem).eval()
        size = 64 if stem == "imagenet" else 32
        assert model(torch.empty(2, 3, size, size)).shape == (2, 7)


def test_every_method_gives_logits_and_gradients():
    for spec in [LPS, ts.Sampling("aps"), ts.Sampling("stride", "adapt3"), ts.Sampling("stride")]:
        model = ts.models.resnet18(spec, num_classes=4, stem="cifar")
        model(torch.randn(2, 3, 16, 16)).square().sum().backward()
        assert all(p.grad is not None for p in model.parameters())


def test_the_paper_s_order_of_layers():
    model = ts.models.resnet50(LPS)
    assert model.conv1.stride == (1, 1)
    assert model.conv1_down.antialias is None
    assert isinstance(model.maxpool_down.antialias, ts.Blur)
    block = model.layer2[0]
    assert block.conv2.stride == (1, 1)
    assert block.down.selector.channels == block.conv2.out_channels == 128
    assert block.follow.selector is None
    assert block.follow.antialias.channels == block.conv1.in_channels == 256
    assert block.downsample[0].kernel_size == (1, 1)


def test_plain_stride_runs_strided():
    model = ts.models.resnet50(ts.Sampling("stride"))
    assert model.conv1.stride == model.layer2[0].conv2.stride == (2, 2)
    assert model.layer2[0].down is model.layer2[0].follow is None


def test_lpf_keeps_the_stride_of_the_first_convolution_only():
    model = ts.models.resnet50(ts.Sampling("stride", "tri3"))
    assert model.conv1.stride == (2, 2)
    assert model.layer2[0].conv2.stride == (1, 1)


def test_strided_conv1():
    model = ts.models.resnet18(LPS.replace(padding_mode="zeros"), strided_conv1=True)
    assert model.conv1.stride == (2, 2)
    assert model.conv1_down is None
    assert model.eval()(torch.randn(1, 3, 64, 64)).shape == (1, 1000)


def test_hidden_widths_one_per_layer():
    widths = (8, 8, 16, 32, 64)
    model = ts.models.resnet101(ts.Sampling("lps", hidden=widths), num_classes=10)
    found = [m.conv1.out_channels for m in model.modules() if isinstance(m, ts.ConvSelector)]
    assert found == list(widths)
    with pytest.raises(ValueError, match="names 5 widths, but the network has 3 down-samplings"):
        ts.models.resnet18(ts.Sampling("lps", hidden=widths), stem="cifar")


def test_features_know_where_they_lie():
    torch.manual_seed(0)
    model = trained(ts.models.resnet18(LPS, num_classes=10))
    x, shift = torch.randn(2, 3, 64, 64), (5, 11)
    moved = model.features(circular_shift(x, *shift))
    for feature, other in zip(model.features(x), moved, strict=True):
        stride = torch.tensor(feature.stride)
        assert tuple(s * n for s, n in zip(feature.stride, feature.x.shape[2:], strict=True)) == (
            64,
            64,
        )
        # Every value lies, on the image, where it lay before, moved by the shift.
        apart = feature.offset() + torch.tensor(shift) - other.offset()
        assert bool((apart % stride == 0).all())
        for image, there, cells in zip(feature.x, other.x, apart // stride, strict=True):
            assert torch.equal(image.roll(cells.tolist(), (1, 2)), there)


def test_offsets_need_hard_phases():
    feature = ts.models.resnet18(LPS, stem="cifar").features(torch.randn(2, 3, 32, 32))[-1]
    with pytest.raises(ValueError, match=r"soft.*model\.eval"):
        feature.offset()


def test_sizes_are_checked_at_the_entry():
    model = ts.models.resnet18(LPS).eval()
    assert model.required_multiple == 32
    rule = r"ResNet: .*multiple of 32.*\(2, 3, 70, 64\).*pad to \(96, 64\), crop to \(64, 64\)"
    with pytest.raises(ValueError, match=rule):
        model(torch.randn(2, 3, 70, 64))
    with pytest.raises(ValueError, match="images of 3 channels"):
        model(torch.randn(2, 1, 64, 64))
    with pytest.raises(ValueError, match="4 dimensions"):
        model(torch.randn(3, 64, 64))
    with pytest.raises(ValueError, match="multiple of 32"):
        model(torch.randn(1, 3, 0, 32))


@pytest.mark.parametrize("size", [(33, 47), (65, 50)])
def test_zero_padding_takes_any_size(size):
    for spec in [LPS, ts.Sampling("aps"), ts.Sampling("stride", "tri3"), ts.Sampling("stride")]:
        model = ts.models.resnet18(spec.replace(padding_mode="zeros"), num_classes=3).eval()
        assert model.required_multiple == 1
        assert model(torch.randn(1, 3, *size)).shape == (1, 3)


def test_output_stride_replaces_strides_by_dilation():
    for stride, dilations in [(32, (1, 1)), (16, (1, 2)), (8, (2, 4))]:
        model = ts.models.resnet50(ts.Sampling("stride"), output_stride=stride)
        assert model.required_multiple == stride
        found = (model.layer3[1].conv2.dilation[0], model.layer4[1].conv2.dilation[0])
        assert found == dilations
    with pytest.raises(ValueError, match="output_stride must be one of 4, 8, 16, 32"):
        ts.models.resnet50(ts.Sampling("stride"), output_stride=64)


def test_bad_arguments():
    with pytest.raises(TypeError, match="resnet18: spec must be a Sampling, got 'lps'"):
        ts.models.resnet18("lps")
    with pytest.raises(ValueError, match=r"unknown stem 'cifar10'. Did you mean 'cifar'\?"):
        ts.models.resnet18(LPS, stem="cifar10")
    with pytest.raises(ValueError, match="one number per stage"):
        ts.models.resnet(LPS, (1, 1), (8, 8, 8))
    with pytest.raises(ValueError, match="dim=1"):
        ts.models.resnet18(LPS.replace(dim=1))
    with pytest.raises(ValueError, match="num_classes must be at least 1"):
        ts.models.resnet18(LPS, num_classes=0)


def test_an_empty_batch():
    model = ts.models.resnet18(LPS, num_classes=3, stem="cifar").eval()
    assert model(torch.randn(0, 3, 32, 32)).shape == (0, 3)
