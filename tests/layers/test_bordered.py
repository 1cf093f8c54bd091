"""Down-sampling of maps that bring their border along."""

import pytest
import torch

import trueshift as ts
from trueshift.layers.bordered import border_of, sample_bordered
from trueshift.layers.conv import same_conv
from trueshift.padding import pad

SIZES = {1: (12,), 2: (12, 6), 3: (6, 12, 6)}
LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.mark.parametrize("stride", [2, 3, (2, 3)])
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("name", [None, "rect2", "tri3", "bin6"])
@pytest.mark.parametrize("make", [ts.LPD, ts.APS])
@pytest.mark.parametrize("last", [False, True])
def test_it_is_what_the_layer_does(make, name, dim, stride, last):
    if isinstance(stride, tuple):
        stride = (2, 3, 2)[:dim]
    torch.manual_seed(0)
    down = make(3, stride=stride, antialias=name, dim=dim).eval()
    x = torch.randn(5, 3, *SIZES[dim])
    if last and dim > 1:
        x = x.contiguous(memory_format=LAYOUTS[x.ndim])
    with torch.no_grad():
        y, phase = down(x, return_phase=True)
        found, same = sample_bordered(down, pad(x, border_of(down, dim), "circular"))
    assert torch.equal(same, phase)
    assert torch.equal(found, y)
    assert found.stride() == y.stride()
    assert len(set(phase.tolist())) > 1


def test_ties_are_broken_by_the_map_without_its_border():
    down = ts.LPD(1, dim=1).eval()
    x = torch.tensor([[[1.0, 1.0, 0.0, 0.0]]])
    wide = pad(x, border_of(down, 1), "circular")
    with torch.no_grad():
        assert torch.equal(sample_bordered(down, wide)[1], down(x, return_phase=True)[1])


class Own(ts.NormSelector):
    """A selector of a user."""


@pytest.mark.parametrize(
    "down",
    [
        ts.LPD(8, padding_mode="zeros"),
        ts.LPD(8, antialias="adapt3"),
        ts.LPD(8, test_rule="softmax"),
        ts.LPD(8, antialias="tri3", select_on="unfiltered"),
        ts.PolyphaseDown(ts.ConvSelector(8, padding_mode="zeros")),
        ts.PolyphaseDown(ts.NormSelector(), antialias=ts.Blur(8, padding_mode="zeros")),
        ts.PolyphaseDown(ts.FixedSelector()),
        ts.PolyphaseDown(Own()),
        ts.PolyphaseDown(None),
        torch.nn.MaxPool2d(2),
    ],
    ids=lambda down: type(down).__name__,
)
def test_other_layers_have_no_border(down):
    assert border_of(down, 2) is None


@pytest.mark.parametrize("dilation", [1, 2, 9])
@pytest.mark.parametrize("size", [2, 3])
def test_a_convolution_computes_the_border_that_a_copy_would_have(size, dilation):
    conv = same_conv(3, 4, size, "circular", dilation=dilation, bias=True)
    x, border = torch.randn(2, 3, 8, 6), ((2, 1), (0, 3))
    with torch.no_grad():
        assert torch.equal(conv.with_border(x, border), pad(conv(x), border, "circular"))
