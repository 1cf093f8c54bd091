"""Networks on a cylinder: bitwise equality under every shift along the axis that wraps."""

import pytest
import torch
from networks import trained

import trueshift as ts

CYLINDERS = [("zeros", "circular"), ("replicate", "circular"), ("reflect", "circular")]
SPECS = [
    ("aps", None, "output"),
    ("aps", "tri3", "input"),
    ("lps", None, "input"),
    ("lps", "tri3", "output"),
    ("lps", "adapt3", "output"),
]

NETWORKS = {  # how to build it, the size of the image, its required multiple
    "resnet, cifar": (
        lambda spec: ts.models.resnet(spec, (1, 1), (8, 16), "basic", 5, stem="cifar"),
        (7, 8),
        (1, 2),
    ),
    "resnet, imagenet": (
        lambda spec: ts.models.resnet(spec, (1, 1), (8, 16), "basic", 5),
        (18, 16),
        (1, 8),
    ),
    "resnet9": (lambda spec: ts.models.resnet9(spec, 5), (17, 16), None),
    "unet": (
        lambda spec: ts.models.unet(spec, 3, 2, widths=(8, 16, 16)),
        (11, 12),
        (1, 4),
    ),
    "deeplab": (
        lambda spec: ts.models.deeplabv3plus_resnet18(spec, num_classes=3),
        (33, 32),
        None,
    ),
}


def spec_of(row, modes, **options):
    method, antialias, select_from = row
    spec = ts.Sampling(method, antialias, modes, hidden=4, groups=4, select_from=select_from)
    return spec.replace(**options)


def image(*shape):
    return torch.randn(1, *shape, generator=torch.Generator().manual_seed(5))


def num_different(model, x, axis=-1, shifts=None):
    """Count the shifts along an axis that change the labels or do not shift the map."""
    shifts = list(range(x.shape[axis]) if shifts is None else shifts)
    with torch.inference_mode():  # one batch: how a linear layer rounds may depend on its length
        whole, *moved = model(torch.cat([x.roll(d, axis) for d in (0, *shifts)])).split(1)
    expected = [whole.roll(d, axis) if whole.ndim > 2 else whole for d in shifts]
    return sum(not torch.equal(y, wanted) for y, wanted in zip(moved, expected, strict=True))


@pytest.mark.parametrize("modes", CYLINDERS, ids=str)
@pytest.mark.parametrize("row", SPECS, ids=str)
@pytest.mark.parametrize("name", ["resnet, cifar", "resnet, imagenet", "unet"])
def test_every_shift_along_the_wrapping_axis(name, row, modes):
    build, size, multiple = NETWORKS[name]
    torch.manual_seed(0)
    model = trained(build(spec_of(row, modes)))
    assert model.required_multiple == multiple
    x = image(3, *size)
    assert num_different(model, x) == 0
    assert num_different(model, x, axis=-2) > size[0] // 2  # nothing is promised there


@pytest.mark.parametrize("row", [SPECS[1], SPECS[3]], ids=str)
@pytest.mark.parametrize("name", ["resnet9", "deeplab"])
def test_larger_networks(name, row):
    build, size, _ = NETWORKS[name]
    torch.manual_seed(0)
    model = trained(build(spec_of(row, ("replicate", "circular"))))
    assert num_different(model, image(3, *size), shifts=(1, 2, 3, 7, 16, size[1] - 1)) == 0


@pytest.mark.parametrize(
    ("modes", "size", "axis"),
    [
        (("circular",), (12,), -1),
        (("circular", "zeros"), (12, 7), -2),
        (("zeros", "circular", "replicate"), (5, 8, 6), -2),
        (("circular", "replicate", "circular"), (4, 5, 8), -1),
    ],
    ids=str,
)
def test_unets_of_one_to_three_axes(modes, size, axis):
    torch.manual_seed(0)
    spec = spec_of(SPECS[3], modes, dim=len(modes)) if len(modes) == 2 else None
    spec = spec or ts.Sampling("lps", "tri3", modes, hidden=4, dim=len(modes))
    model = trained(ts.models.unet(spec, 2, 2, widths=(4, 8, 8)))
    x = image(2, *size)
    assert num_different(model, x, axis) == 0
    if modes.count("circular") == 2:
        assert num_different(model, x, -3) == 0


def test_plain_strides_take_the_same_sizes():
    build, size, multiple = NETWORKS["resnet, imagenet"]
    torch.manual_seed(0)
    model = trained(build(ts.Sampling("stride", padding_mode=("zeros", "circular"))))
    assert num_different(model, image(3, *size), shifts=(multiple[1],)) == 0
    assert num_different(model, image(3, *size)) > 0


@pytest.mark.parametrize("name", ["resnet, imagenet", "unet"])
def test_only_the_wrapping_axis_must_divide(name):
    build, (height, width), multiple = NETWORKS[name]
    model = build(ts.Sampling("aps", padding_mode=("zeros", "circular"))).eval()
    message = rf"multiple of \(1, {multiple[1]}\) .*Resize or pad to \({height}, "
    with pytest.raises(ValueError, match=message):
        model(image(3, height, width - 1))


def test_saving_keeps_the_modes(tmp_path):
    spec = ts.Sampling("lps", "tri3", ("zeros", "circular"), hidden=4)
    model = trained(ts.models.unet(spec, 3, 2, widths=(4, 8)))
    ts.save(model, tmp_path / "net.safetensors")
    again = ts.load(tmp_path / "net.safetensors").eval()
    assert again.spec == spec
    assert again.spec.wraps == (False, True)
    x = image(3, 7, 8)
    assert torch.equal(again(x), model(x))


def test_a_resnet_takes_two_modes_only():
    with pytest.raises(ValueError, match="names 3 modes for 2 spatial axes"):
        ts.models.resnet18(ts.Sampling("lps", padding_mode=("zeros", "circular", "zeros")))
