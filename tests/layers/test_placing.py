"""Up-sampling at soft phases as a transposed convolution."""

import itertools
import math

import pytest
import torch

from trueshift import Blur
from trueshift.layers import placing
from trueshift.layers.placing import FilteredUp
from trueshift.layers.resample import PolyphaseUp

CASES = [((5,), (2,)), ((3, 4), (2, 2)), ((1, 2), (3, 2)), ((2, 3), (1, 2)), ((2, 3, 2), (2, 1, 3))]


def build(sizes, stride, size, mode):
    torch.manual_seed(0)
    up = PolyphaseUp(stride, Blur(3, size, mode, dim=len(sizes)))
    y = torch.randn(4, 3, *sizes, requires_grad=True)
    phase = torch.randn(4, math.prod(stride)).softmax(1).requires_grad_()
    return up, y, phase


def gradients(out, *sources):
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return torch.autograd.grad(out, sources, weights)


@pytest.mark.parametrize("mode", ["circular", "zeros"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize(("sizes", "stride"), CASES)
def test_it_is_placing_and_filtering(monkeypatch, sizes, stride, size, mode):
    up, y, phase = build(sizes, stride, size, mode)
    whole = [n * s for n, s in zip(sizes, stride, strict=True)]
    found = up(y, phase, output_size=whole)
    quick = "FilteredUp" in type(found.grad_fn).__name__
    assert quick == (size % 2 == 1 or min(stride) > 1)
    grads = gradients(found, y, phase)
    monkeypatch.setattr(placing, "_learns", lambda *args: False)
    plain = up(y, phase)
    torch.testing.assert_close(found, plain)
    torch.testing.assert_close(grads, gradients(plain, y, phase), atol=1e-4, rtol=1e-4)


def test_hard_phases_while_training():
    up, y, _ = build((3, 4), (2, 2), 3, "circular")
    hard = torch.arange(4)
    found = up(y, hard)
    assert "FilteredUp" in type(found.grad_fn).__name__
    grads = gradients(found, y)
    plain = up.eval()(y, hard)
    assert "FilteredUp" not in type(plain.grad_fn).__name__  # rounding there may go by place
    torch.testing.assert_close(found, plain)
    torch.testing.assert_close(grads, gradients(plain, y))


def test_it_keeps_only_what_it_is_given():
    up, y, phase = build((3, 4), (2, 2), 3, "circular")
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        up(y, phase)
    assert max(kept) == y.numel()


def test_it_keeps_no_map_for_phases_that_do_not_learn():
    up, y, _ = build((3, 4), (2, 2), 3, "circular")
    doubled = y * 2
    out = up(doubled, torch.arange(4))
    doubled.zero_()
    out.sum().backward()
    torch.testing.assert_close(y.grad, torch.full_like(y, 8.0))


def test_filters_may_be_of_another_type():
    up, y, phase = build((3, 4), (2, 2), 3, "circular")
    assert up.double()(y, phase).dtype == torch.float32


def test_other_maps_take_the_plain_way():
    up, y, phase = build((4, 4), (2, 2), 3, "reflect")
    assert "FilteredUp" not in type(up(y, phase).grad_fn).__name__
    up, y, phase = build((4, 4), (2, 2), 3, "zeros")
    last = y.contiguous(memory_format=torch.channels_last)
    assert "FilteredUp" not in type(up(last, phase).grad_fn).__name__
    cropped = up(y, phase, output_size=(7, 8))
    assert cropped.shape == (4, 3, 7, 8)
    assert "FilteredUp" not in type(cropped.grad_fn).__name__
    up.antialias.register_forward_hook(lambda *args: None)
    assert "FilteredUp" not in type(up(y, phase).grad_fn).__name__
    with pytest.raises(ValueError, match="channels"):
        PolyphaseUp(2, Blur(2, 3))(y, phase)


@pytest.mark.parametrize(("size", "mode"), list(itertools.product([2, 3], ["circular", "zeros"])))
def test_first_and_second_derivatives(size, mode):
    y = torch.randn(2, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    phase = torch.rand(2, 4, dtype=torch.float64, requires_grad=True)
    taps = 4 * Blur(1, size).kernel.double()

    def up(y, phase):
        return FilteredUp.apply(y, phase, taps, (2, 2), mode)

    assert torch.autograd.gradcheck(up, (y, phase))
    assert torch.autograd.gradgradcheck(up, (y, phase))
    assert torch.autograd.gradcheck(lambda y: up(y, phase.detach()), (y,))
    assert torch.autograd.gradcheck(lambda phase: up(y.detach(), phase), (phase,))


def test_functional_gradients():
    up, y, phase = build((3, 4), (2, 2), 3, "circular")
    found = torch.func.grad(lambda y: up(y, phase.detach()).square().sum())(y.detach())
    (together,) = torch.autograd.grad(up(y, phase).square().sum(), y)
    torch.testing.assert_close(found, together)
