"""Windows at a phase: quick ways give what the plain way gives."""

import itertools
import math

import pytest
import torch

from trueshift import _adjoint as adjoint
from trueshift import _chunks
from trueshift._adjoint import SoftDown, SoftWindow, filled_windows, mixing
from trueshift.functional import polyphase_down
from trueshift.layers import antialias, window
from trueshift.layers.antialias import Blur
from trueshift.layers.window import phase_window
from trueshift.padding import pad

CASES = [((12,), (3,), ((1, 2),)), ((6, 8), (2, 2), ((1, 2), (0, 3))), ((4, 6, 2), (2, 3, 1), None)]


@pytest.mark.parametrize(("sizes", "stride", "widths"), CASES)
@pytest.mark.parametrize("value", [0.0, float("-inf")])
def test_filled_windows_are_padded_and_cut(sizes, stride, widths, value):
    widths = widths or ((1, 1),) * len(sizes)
    offsets = list(itertools.product(*map(range, stride)))
    x = torch.randn(len(offsets), 2, *sizes)
    found = filled_windows(x, torch.arange(len(offsets)), stride, widths, value)
    flat = [width for pair in reversed(widths) for width in pair]
    padded = torch.nn.functional.pad(x, flat, value=value)
    for image, source, starts in zip(found, padded, offsets, strict=True):
        cut = [slice(o, o + n) for o, n in zip(starts, image.shape[1:], strict=True)]
        assert torch.equal(image, source[(..., *cut)])


@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_large_images_are_cut_one_by_one(monkeypatch, mode, layout):
    x = torch.randn(4, 3, 8, 6).contiguous(memory_format=layout)
    arguments = (x, torch.arange(4), (2, 2), ((1, 2), (1, 1)), mode)
    plain = phase_window(*arguments)
    monkeypatch.setattr(window, "image_by_image", lambda x: True)
    found = phase_window(*arguments)
    assert torch.equal(found, plain)
    assert adjoint.channels_last(found) == adjoint.channels_last(x)


@pytest.mark.parametrize(
    ("shape", "stride"), [((3, 2, 12), (3,)), ((3, 2, 6, 8), (2, 2)), ((2, 2, 4, 6, 4), (2, 3, 1))]
)
@pytest.mark.parametrize("last", [False, True])
def test_windows_are_mixed_by_a_convolution(monkeypatch, shape, stride, last):
    monkeypatch.setattr(mixing, "_LARGE", 1)
    monkeypatch.setattr(_chunks, "_CHUNK_ELEMENTS", 2 * math.prod(shape[1:]))
    phase = torch.randn(shape[0], torch.tensor(stride).prod()).softmax(1).requires_grad_()
    x = torch.randn(shape)
    if last and x.ndim > 3:
        x = x.contiguous(memory_format=adjoint.last_format(x.ndim))
    x.requires_grad_()
    widths = ((1, 1),) * len(stride)
    padded = pad(x, widths, "circular")
    pairs = [
        (
            phase_window(x, phase, stride, widths, "circular"),
            SoftWindow.apply(padded, phase, stride),
        ),
        (polyphase_down(x, phase, stride), SoftDown.apply(x, phase, stride)),
    ]
    for pair in pairs:
        assert type(pair[0].grad_fn) is not type(pair[1].grad_fn)
        torch.testing.assert_close(*pair)
        assert adjoint.channels_last(pair[0]) == adjoint.channels_last(x)
        weights = torch.randn_like(pair[0])
        grads = [torch.autograd.grad(y, (x, phase), weights, retain_graph=True) for y in pair]
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other)


def test_weights_of_phases_may_lie_in_any_order():
    phase = torch.randn(4, 2).softmax(0).t()
    x = torch.randn(2, 3, 4, 6)
    torch.testing.assert_close(
        polyphase_down(x, phase, 2), polyphase_down(x, phase.contiguous(), 2)
    )


def test_a_fixed_filter_may_see_mixed_windows(monkeypatch):
    blur, phase = Blur(3, 3), torch.randn(2, 4).softmax(1)
    x = torch.randn(2, 3, 8, 6)
    dense = antialias.filter_and_keep(blur, x, phase, (2, 2))
    calls = []
    at = blur.at
    monkeypatch.setattr(blur, "at", lambda *args: calls.append(1) or at(*args))
    monkeypatch.setattr(antialias, "_LARGE", 1)
    torch.testing.assert_close(antialias.filter_and_keep(blur, x, phase, (2, 2)), dense)
    assert calls
