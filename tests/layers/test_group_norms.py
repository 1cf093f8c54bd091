import copy

import pytest
import torch
from torch import nn

import trueshift as ts
from trueshift.layers.activations import make_exact

KINDS = {
    1: [nn.GroupNorm(3, 6), nn.InstanceNorm1d(6)],
    2: [nn.GroupNorm(1, 6), nn.GroupNorm(6, 6, affine=False), nn.InstanceNorm2d(6, affine=True)],
    3: [nn.GroupNorm(2, 6), nn.InstanceNorm3d(6, affine=True)],
}
CASES = [(dim, norm) for dim, norms in KINDS.items() for norm in norms]


@pytest.fixture(params=CASES, ids=str)
def case(request):
    dim, norm = copy.deepcopy(request.param)
    torch.manual_seed(0)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    x = 3 * torch.randn(2, 6, *(37, 21, 5)[:dim]) + 5
    return nn.Sequential(norm).eval(), x


def test_values_are_those_of_torch(case):
    model, x = case
    expected, expected64 = model(x), model.double()(x.double())
    make_exact(model.float())
    torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.double()(x.double()), expected64)
    half = copy.deepcopy(model).bfloat16()(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), expected, atol=0.1, rtol=0.05)
    model.float().train()
    torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("last", [False, True])
def test_bits_move_with_the_map(case, last):
    model, x = case
    if last and x.ndim == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    make_exact(model)
    axes = range(2, x.ndim)
    for shifts in ((1, 0, 0), (5, 2, 1), (36, 20, 4)):
        shifts = shifts[: len(axes)]
        moved = ts.shifts.circular_shift(x, *shifts)
        assert torch.equal(model(moved), ts.shifts.circular_shift(model(x), *shifts))


def test_running_statistics_and_single_maps_stay():
    norm = nn.InstanceNorm2d(3, track_running_stats=True)
    norm(torch.randn(4, 3, 5, 5))
    x = torch.randn(2, 3, 5, 5)
    expected = norm.eval()(x)
    make_exact(norm)
    torch.testing.assert_close(norm(x), expected)
    single = nn.InstanceNorm2d(3).eval()
    make_exact(single)
    torch.testing.assert_close(single(x[0]), single(x)[0])


def test_converted_networks_with_group_norm_are_exact_to_the_bit():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.Conv2d(8, 8, 3, 1, 1),
        nn.InstanceNorm2d(8),
    ).eval()
    x = torch.randn(2, 3, 34, 46)
    new = ts.convert(nn.Sequential(net, nn.Upsample(scale_factor=2)).eval(), "lps", x)
    for shifts in ((1, 0), (3, 5), (17, 30)):
        assert torch.equal(new(x.roll(shifts, (2, 3))), new(x).roll(shifts, (2, 3)))
