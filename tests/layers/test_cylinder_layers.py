"""Cylinders: only some axes wrap, and along those every layer is exact to the bit."""

import itertools

import pytest
import torch
from helpers import assert_circularly_equivariant
from networks import trained

import trueshift as ts

CYLINDERS = [("zeros", "circular"), ("replicate", "circular"), ("reflect", "circular")]
FILTERS = [None, "tri3", "adapt3"]


def along(modes, sizes):
    """Every shift along the axes that wrap."""
    axes = zip(modes, sizes, strict=True)
    return list(itertools.product(*(range(n if m == "circular" else 1) for m, n in axes)))


def image(*shape):
    return torch.randn(2, *shape, generator=torch.Generator().manual_seed(3))


def build_down(method, modes, antialias):
    torch.manual_seed(0)
    spec = ts.Sampling(method, antialias, modes, groups=4, hidden=4, dim=len(modes))
    return trained(ts.PolyphaseDown(spec.selector(4, 4), 2, spec.blur(4), padding_mode=modes))


def down_and_up(down, up):
    def run(x):
        y, phase = down(x, return_phase=True)
        return up(y, phase, output_size=x.shape[2:])

    return run


@pytest.mark.parametrize("modes", CYLINDERS, ids=str)
@pytest.mark.parametrize("antialias", FILTERS)
@pytest.mark.parametrize("method", ["lps", "aps"])
@pytest.mark.parametrize("height", [8, 7])
def test_down_and_up_again(method, antialias, modes, height):
    down = build_down(method, modes, antialias)
    up = trained(ts.LPU(4, 2, antialias, modes, groups=4))
    x = image(4, height, 12)
    assert down(x).shape == (2, 4, 4, 6)  # torch's rule for strides
    assert_circularly_equivariant(down_and_up(down, up), x, along(modes, x.shape[2:]))


@pytest.mark.parametrize(
    ("modes", "sizes", "small"),
    [
        (("circular", "zeros"), (12, 7), (6, 4)),
        (("circular", "replicate", "zeros"), (6, 5, 4), (3, 3, 2)),
        (("circular", "reflect", "circular"), (4, 5, 6), (2, 3, 3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["lps", "aps"])
def test_any_axes_may_wrap(method, modes, sizes, small):
    dim = len(sizes)
    torch.manual_seed(0)
    down = {
        "lps": lambda: ts.LPD(4, 4, 2, "tri3", modes, dim=dim),
        "aps": lambda: ts.APS(4, 2, 2, "tri3", modes, dim=dim),
    }[method]().eval()
    x = image(4, *sizes)
    assert down(x).shape[2:] == small
    up = ts.LPU(4, 2, "tri3", modes, dim=dim)
    assert_circularly_equivariant(down_and_up(down, up), x, along(modes, sizes))


@pytest.mark.parametrize("modes", CYLINDERS, ids=str)
@pytest.mark.parametrize(
    "build",
    [lambda m: ts.Blur(4, 3, m), lambda m: ts.Blur(4, 4, m), lambda m: ts.AdaptiveBlur(4, 3, 2, m)],
    ids=["tri3", "bin4", "adapt3"],
)
def test_filters_keep_the_size_and_move_with_the_map(build, modes):
    torch.manual_seed(0)
    x = image(4, 7, 9)
    assert_circularly_equivariant(trained(build(modes)), x, along(modes, x.shape[2:]))


@pytest.mark.parametrize("modes", CYLINDERS, ids=str)
def test_logits_permute_along_the_wrapping_axis(modes):
    torch.manual_seed(0)
    selector = ts.ConvSelector(4, 4, modes).eval()
    x = image(4, 8, 12)
    logits = selector(x).view(2, 2, 2)  # image, offset of rows, offset of columns
    for dx in range(12):
        assert torch.equal(selector(x.roll(dx, 3)).view(2, 2, 2), logits.roll(dx, 2))


def turned(x, method, modes):
    """Whether down- and up-sampling moves with a map for every shift along the wrapping axes."""
    down = build_down(method, modes, None)
    up = ts.LPU(4, 2, None, modes)
    assert_circularly_equivariant(down_and_up(down, up), x, along(modes, x.shape[2:]))


def tied_maps(height, width):
    """Maps whose components tie: one pixel, stripes of two, a checkerboard, slanted stripes."""
    rows, columns = torch.arange(height)[:, None], torch.arange(width)
    pixel = (rows == 1) & (columns == 2)
    maps = {
        "pixel": pixel,
        "columns": (rows >= 0) & (columns % 4 < 2),
        "checkerboard": (rows + columns) % 2 == 0,
        "pairs": (rows + columns) % 4 < 2,
    }
    return {name: m.float().expand(1, 4, height, width) for name, m in maps.items()}


@pytest.mark.parametrize("modes", [*CYLINDERS, ("circular", "zeros")], ids=str)
@pytest.mark.parametrize("name", tied_maps(8, 12))
@pytest.mark.parametrize("method", ["lps", "aps"])
@pytest.mark.parametrize("sizes", [(8, 12), (7, 12)], ids=str)
def test_ties_are_broken_by_what_moves_with_the_map(method, name, modes, sizes):
    x = tied_maps(*sizes)[name]
    turned(x.mT if modes[0] == "circular" else x, method, modes)


@pytest.mark.parametrize("modes", CYLINDERS, ids=str)
@pytest.mark.parametrize("down", [ts.LPD, ts.APS])
def test_a_size_along_a_wrapping_axis_must_divide(down, modes):
    with pytest.raises(ValueError, match=r"Pad to \(8, 10\) .*Not divisible: axis 3\."):
        down(4, padding_mode=modes)(image(4, 8, 9))


BUILDERS = {
    "LPD": lambda m: ts.LPD(4, padding_mode=m),
    "APS": lambda m: ts.APS(4, antialias="tri3", padding_mode=m),
    "LPU": lambda m: ts.LPU(4, antialias="tri3", padding_mode=m),
    "Blur": lambda m: ts.Blur(4, padding_mode=m),
    "AdaptiveBlur": lambda m: ts.AdaptiveBlur(4, groups=2, padding_mode=m),
    "ConvSelector": lambda m: ts.ConvSelector(4, padding_mode=m),
    "Sampling": lambda m: ts.Sampling("lps", padding_mode=m),
    "selector_padding": lambda m: ts.Sampling("lps", selector_padding=m),
    "PolyphaseDown": lambda m: ts.PolyphaseDown(None, padding_mode=m)(
        image(4, 8, 8), torch.zeros(2).long()
    ),
}


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize(
    ("modes", "message"),
    [
        (("zeros", "circluar"), "unknown .* 'circluar'. Did you mean 'circular'"),
        (("zeros", None), "unknown .* None. Choose from: circular, zeros, reflect, replicate"),
        (("circular",), r"names 1 modes for 2 spatial axes. Pass one mode, or 2\."),
        (("zeros", "circular", "zeros"), "names 3 modes for 2 spatial axes"),
        ((), "names 0 modes for 2 spatial axes"),
    ],
    ids=["misspelt", "None", "too few", "too many", "none"],
)
def test_modes_that_do_not_fit(name, modes, message):
    with pytest.raises(ValueError, match=message):
        BUILDERS[name](modes)
