"""Guarantee 1 for whole networks: bitwise equality under every circular shift."""

import pytest
import torch
from helpers import all_shifts
from networks import trained
from torch import nn

import trueshift as ts
from trueshift.models.unet import MaxDown
from trueshift.models.upsampling import build_ups
from trueshift.shifts import circular_shift

EXACT = {
    "lps": ts.Sampling("lps", hidden="eighth"),
    "aps": ts.Sampling("aps"),
    "lps+tri3": ts.Sampling("lps", "tri3", hidden="eighth"),
    "lps+adapt3": ts.Sampling("lps", "adapt3", hidden="eighth"),
}
PLAIN = {
    "stride": ts.Sampling("stride"),
    "LPF tri3": ts.Sampling("stride", "tri3"),
    "DDAC": ts.Sampling("stride", "adapt3"),
}


def image(*shape):
    return torch.randn(1, *shape, generator=torch.Generator().manual_seed(5))


def outputs(model, x, shifts, batch=64):
    """Run the model on every shift of one image, several at a time."""
    moved = [circular_shift(x, *shift) for shift in shifts]
    with torch.inference_mode():
        groups = [moved[i : i + batch] for i in range(0, len(moved), batch)]
        return torch.cat([model(torch.cat(group)) for group in groups])


def num_different(model, x, shifts):
    out = outputs(model, x, shifts)
    return sum(not torch.equal(other, out[0]) for other in out)


def num_different_masks(model, x, shifts):
    out = outputs(model, x, shifts, batch=16)
    whole = out[:1]
    moved = zip(out, shifts, strict=True)
    return sum(not torch.equal(mask[None], circular_shift(whole, *s)) for mask, s in moved)


EVERY = [(name, 32) for name in EXACT]  # 1,024 shifts; those up to the total stride in every run
WITHIN_A_STRIDE = [(name, 8) for name in EXACT if name != "lps"]


@pytest.mark.parametrize(
    ("name", "num"),
    [
        *WITHIN_A_STRIDE,
        *(pytest.param(*c, marks=() if c[0] == "lps" else pytest.mark.slow) for c in EVERY),
    ],
)
def test_resnet18_is_bitwise_invariant_to_every_shift(name, num):
    torch.manual_seed(0)
    model = trained(ts.models.resnet18(EXACT[name], num_classes=10, stem="cifar"))
    assert num_different(model, image(3, 32, 32), list(all_shifts((num, num)))) == 0


@pytest.mark.parametrize("name", PLAIN)
def test_plain_resnet18_is_not_invariant(name):
    torch.manual_seed(0)
    model = trained(ts.models.resnet18(PLAIN[name], num_classes=10, stem="cifar"))
    assert num_different(model, image(3, 32, 32), list(all_shifts((4, 4)))) > 10


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_resnet_with_an_imagenet_stem(name, layout):
    torch.manual_seed(0)
    model = ts.models.resnet(EXACT[name], (1, 1, 1, 1), (16, 16, 24, 32), "bottleneck", 7)
    model = trained(model).to(memory_format=layout)
    x = image(3, 64, 96).to(memory_format=layout)
    shifts = [(0, 0), (1, 0), (0, 1), (3, 5), (17, 40), (31, 33), (63, 95), (4, 4)]
    assert num_different(model, x, shifts) == 0
    one_by_one = [outputs(model, x, [shift], batch=1) for shift in shifts]
    assert all(torch.equal(out, one_by_one[0]) for out in one_by_one)


@pytest.mark.parametrize("threads", [1, 2])
def test_any_number_of_threads(threads):
    torch.manual_seed(0)
    model = trained(ts.models.resnet18(EXACT["lps"], num_classes=10))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        shifts = [(0, 0), (1, 0), (5, 9), (31, 33)]
        assert num_different(model, image(3, 64, 64), shifts) == 0
        one_by_one = [outputs(model, image(3, 64, 64), [shift], batch=1) for shift in shifts]
        assert all(torch.equal(out, one_by_one[0]) for out in one_by_one)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", EXACT)
def test_deeplab_is_bitwise_equivariant(name):
    torch.manual_seed(0)
    model = trained(ts.models.deeplabv3plus_resnet18(EXACT[name], num_classes=5))
    shifts = [(0, 0), *((i, (7 * i) % 32) for i in range(1, 32)), (16, 16), (0, 31)]
    assert num_different_masks(model, image(3, 32, 32), shifts) == 0


@pytest.mark.parametrize("stride", [8, 16])
def test_deeplab_with_dilation_is_bitwise_equivariant(stride):
    torch.manual_seed(0)
    spec = ts.Sampling("lps", "rect2", hidden=4)
    model = trained(ts.models.deeplabv3plus_resnet50(spec, 5, output_stride=stride))
    assert num_different_masks(model, image(3, 32, 48), [(0, 0), (1, 3), (17, 30), (31, 47)]) == 0


@pytest.mark.parametrize(
    ("spec", "up"),
    [
        (ts.Sampling("stride"), None),
        (ts.Sampling("stride", "tri3"), None),
        (EXACT["lps"], "linear"),
        (EXACT["aps"], "linear"),
    ],
    ids=["stride", "LPF", "LPD only", "APS with bilinear up"],
)
def test_deeplab_with_linear_upsampling_is_not_equivariant(spec, up):
    torch.manual_seed(0)
    model = trained(ts.models.deeplabv3plus_resnet18(spec, num_classes=5, up=up))
    assert num_different_masks(model, image(3, 32, 32), [(0, 0), (1, 0), (0, 1), (3, 3)]) == 3


INPUT = {
    "lps": ts.Sampling("lps", hidden="eighth", select_from="input"),
    "aps": ts.Sampling("aps", select_from="input"),
    "lps+tri3": ts.Sampling("lps", "tri3", hidden="eighth", select_from="input"),
}


@pytest.mark.parametrize("name", INPUT)
@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
@pytest.mark.parametrize("block", ["basic", "bottleneck"])
def test_phases_chosen_from_the_input_keep_the_guarantee(name, stem, block):
    torch.manual_seed(0)
    model = ts.models.resnet(INPUT[name], (1, 1, 1), (16, 24, 32), block, 7, stem)
    model, x = trained(model), image(3, 32, 48)
    shifts = [(0, 0), (1, 0), (0, 1), (3, 5), (17, 40), (31, 33), (4, 4)]
    assert num_different(model, x, shifts) == 0
    dense = model(x)  # with gradients the same function is computed by other kernels
    torch.testing.assert_close(dense, outputs(model, x, [(0, 0)]), atol=1e-4, rtol=1e-4)
    model.train()(x.expand(2, -1, -1, -1)).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("name", INPUT)
def test_segmenters_with_phases_from_the_input(name):
    torch.manual_seed(0)
    shifts = [(0, 0), (1, 0), (3, 5), (17, 30), (31, 31)]
    model = trained(ts.models.deeplabv3plus_resnet18(INPUT[name], num_classes=5))
    assert num_different_masks(model, image(3, 32, 32), shifts) == 0
    net = trained(ts.models.unet(INPUT[name], 2, 3, widths=(8, 16, 24)))
    assert num_different_masks(net, image(2, 32, 32), shifts) == 0


SIZES = {1: (48,), 2: (16, 24), 3: (8, 8, 12)}


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("name", EXACT)
def test_unet_is_bitwise_equivariant_to_every_shift(name, dim):
    torch.manual_seed(0)
    model = ts.models.unet(EXACT[name], 2, 3, widths=(8, 16, 24), dim=dim)
    shifts = list(all_shifts(SIZES[dim]))
    shifts = [shifts[0], *shifts[1 :: max(1, len(shifts) // 100)]]
    assert num_different_masks(trained(model), image(2, *SIZES[dim]), shifts) == 0


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_plain_unet_is_not_equivariant(dim):
    torch.manual_seed(0)
    model = trained(ts.models.unet(ts.Sampling("stride"), 2, 3, widths=(8, 16, 24), dim=dim))
    shifts = [(0,) * dim, (1,) * dim, (2,) * dim]
    assert num_different_masks(model, image(2, *SIZES[dim]), shifts) == 2


@pytest.mark.parametrize("select_from", ["output", "input"])
@pytest.mark.parametrize("block", ["basic", "bottleneck"])
@pytest.mark.parametrize("method", ["lps", "aps"])
def test_a_main_branch_that_is_constant_leaves_the_choice_to_the_shortcut(
    method, block, select_from
):
    spec = ts.Sampling(method, select_from=select_from)
    model = ts.models.resnet(spec, (1, 1), (8, 8), block, 5, "cifar").eval()
    norms = [module for module in model.layer2[0].children() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms[:-1]:
        nn.init.constant_(norm.bias, -50.0)
    assert num_different(model, image(3, 8, 8), all_shifts((8, 8))) == 0
    assert outputs(model, image(3, 8, 8), [(0, 0)]).std() > 0


@pytest.mark.parametrize("antialias", [None, "bin5"])
def test_maxima_that_repeat_leave_the_choice_to_the_map(antialias):
    spec = ts.Sampling("aps", antialias, dim=1)
    down, up = MaxDown(2, spec), build_ups("polyphase", spec, 2, 1)
    x = torch.tensor([5.0, 4, 3, 5, 4, 3, 5, 4, 2, 5, 4, 3]).expand(1, 2, 12).contiguous()
    peaks = torch.maximum(x, x.roll(-1, 2))
    assert torch.equal(peaks, peaks.roll(3, 2))
    assert not torch.equal(x, x.roll(3, 2))

    def there_and_back(x):
        y, step = down(x)
        return up(y, (step,))

    y = there_and_back(x)
    for shift in range(12):
        assert torch.equal(there_and_back(x.roll(shift, 2)), y.roll(shift, 2)), shift
