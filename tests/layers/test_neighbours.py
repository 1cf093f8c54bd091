"""Filters that differ from pixel to pixel, summed row by row."""

import pytest
import torch

from trueshift.layers import antialias
from trueshift.layers.antialias import AdaptiveBlur
from trueshift.layers.neighbours import sums_rows
from trueshift.shifts import circular_shift

LAYOUTS = {2: torch.channels_last, 3: torch.channels_last_3d}
SIZES = {2: (12, 6), 3: (6, 4, 8)}


def make(dim, groups, size, channels=12):
    torch.manual_seed(0)
    blur = AdaptiveBlur(channels, size, groups, dim=dim).eval()
    torch.nn.init.normal_(blur.conv.weight)
    x = torch.randn(3, channels, *SIZES[dim]).contiguous(memory_format=LAYOUTS[dim])
    return blur, x


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("groups", [1, 3, 6])
@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("stride", [1, 2, "per axis"])
def test_it_is_the_sum_over_taps(monkeypatch, dim, groups, size, stride):
    blur, x = make(dim, groups, size)
    steps = (3, 2, 4)[:dim] if stride == "per axis" else (stride,) * dim
    calls, of_rows = [], antialias.sum_neighbours
    monkeypatch.setattr(
        antialias, "sum_neighbours", lambda *args: calls.append(1) or of_rows(*args)
    )

    def filtered():
        return blur(x) if stride == 1 else blur.at(x, torch.tensor([0, 1, 2]), steps)

    with torch.no_grad():
        found = filtered()
        assert calls
        monkeypatch.setattr(antialias, "sums_rows", lambda *maps: False)
        expected = filtered()
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()
    assert len(calls) == 1


@pytest.mark.parametrize("channels", [16, 24, 64])
def test_every_pixel_has_the_same_bits_wherever_it_stands(monkeypatch, channels):
    calls, of_rows = [], antialias.sum_neighbours
    monkeypatch.setattr(
        antialias, "sum_neighbours", lambda *args: calls.append(1) or of_rows(*args)
    )
    torch.manual_seed(0)
    blur = AdaptiveBlur(channels).eval()
    x = torch.randn(2, channels, 34, 30).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        y = blur(x)
        for shift in ((1, 0), (0, 1), (7, 13), (33, 29)):
            assert torch.equal(blur(circular_shift(x, *shift)), circular_shift(y, *shift))
    assert len(calls) == 5


def test_only_where_a_result_of_float32_maps_is_wanted():
    _, x = make(2, 3, 3)
    assert not sums_rows(x, x, 3)  # gradients are recorded
    with torch.no_grad():
        assert sums_rows(x, x, 3)
        assert not sums_rows(x, x, 12)  # rows of one value
        assert not sums_rows(x.contiguous(), x, 3)
        assert not sums_rows(x.double(), x.double(), 3)
        assert not sums_rows(x[:0], x[:0], 3)
