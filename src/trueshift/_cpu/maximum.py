"""Maxima of neighbours.

torch's max pooling reads every window value by value in the default memory format and keeps an
int64 index per window for its backward pass; a maximum of neighbours, one axis after the other, is
many times faster and keeps one byte.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from trueshift._cpu.conditions import by_chunks, differentiates, image_size
from trueshift._dispatch import definition, fast
from trueshift._validate import Mode
from trueshift.exact import channels_last
from trueshift.functional import MAX_POOLS, max_blur, max_down, max_filter
from trueshift.windows import Phase, is_soft, phase_window


def _is_faster_by_axis(x: Tensor, size: tuple[int, ...]) -> bool:
    return not (differentiates(x) and channels_last(x))  # there pooling is fast


@fast(max_filter, when=_is_faster_by_axis)
def max_by_axis(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """Take maxima along one axis after the other, doubling the distance."""
    for axis in range(x.ndim - 1, 1, -1):  # so that ties fall as in max pooling
        reach = 1  # pixels that a value of x stands for by now
        while reach < size[axis - 2]:
            step = min(reach, size[axis - 2] - reach)
            x = _larger_of(x, axis, step)
            reach += step
    return x


def _larger_of(x: Tensor, axis: int, step: int) -> Tensor:
    """Return the maximum of each pixel and the one ``step`` after it."""
    if differentiates(x):
        larger: Tensor = _Larger.apply(x, axis, step)
        return larger
    length = x.shape[axis] - step
    return torch.maximum(x.narrow(axis, 0, length), x.narrow(axis, step, length))


class _Larger(Function):
    """The maximum of each pixel and a later one; the earlier one gets the gradient of a tie."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, step: int) -> Tensor:
        length = x.shape[axis] - step
        first, second = x.narrow(axis, 0, length), x.narrow(axis, step, length)
        ctx.save_for_backward(second > first)
        ctx.axis, ctx.step = axis, step
        return torch.maximum(first, second)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (later,) = ctx.saved_tensors
        to_second = grad * later
        to_first = grad - to_second
        shape = list(grad.shape)
        shape[ctx.axis] = ctx.step
        end = grad.new_zeros(shape)
        if torch.is_grad_enabled():  # a second derivative is asked for
            parts = ([to_first, end], [end, to_second])
            first, second = (torch.cat(part, ctx.axis) for part in parts)
            return first + second, None, None
        whole = torch.cat([to_first, end], ctx.axis)
        whole.narrow(ctx.axis, ctx.step, grad.shape[ctx.axis]).add_(to_second)
        return whole, None, None


def _only_reads(x: Tensor, kernel: Tensor, mode: Mode) -> bool:
    return not torch.is_grad_enabled()


@fast(max_blur, when=_only_reads)
def max_blur_in_chunks(x: Tensor, kernel: Tensor, mode: Mode) -> Tensor:
    """A few images at a time: four maps of a part take less than one that is new to memory."""

    def filtered(part: Tensor) -> Tensor:
        return definition(max_blur)(part, kernel, mode)

    return by_chunks(filtered, x, per_image=4 * image_size(x))


def _pools_windows(x: Tensor, kernel: Tensor | None, phase: Phase, mode: Mode) -> bool:
    return not torch.is_grad_enabled() and kernel is None and not is_soft(phase)


@fast(max_down, when=_pools_windows)
def pool_windows(x: Tensor, kernel: Tensor | None, phase: Phase, mode: Mode) -> Tensor:
    """Max pooling of what lies at the phase."""
    dim = x.ndim - 2
    window = phase_window(x, phase, (2,) * dim, ((0, 1),) * dim, mode)
    return MAX_POOLS[dim](window, 2, 2)


def _is_kept_for_backward(x: Tensor, kernel: Tensor | None, phase: Phase, mode: Mode) -> bool:
    return differentiates(x)


@fast(max_down, when=_is_kept_for_backward)
def peaks_twice(x: Tensor, kernel: Tensor | None, phase: Phase, mode: Mode) -> Tensor:
    """Compute the large intermediates again in the backward pass, a few images at a time."""

    def kept(part: Tensor, phase: Phase = phase) -> Tensor:
        return definition(max_down)(part, kernel, phase, mode)

    maps = (x, phase) if isinstance(phase, Tensor) else (x,)
    return by_chunks(kept, *maps, per_image=image_size(x), twice=True)
