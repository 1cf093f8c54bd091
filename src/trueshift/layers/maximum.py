"""The dense max filter, axis by axis.

torch's max pooling looks at every window value by value in the default layout and keeps an int64
index per window for its backward pass; a maximum of neighbours, one axis after the other, is many
times quicker there and needs one byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from trueshift._adjoint import channels_last

MAX_POOLS: dict[int, Callable[..., Tensor]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def max_filter(x: Tensor, size: int | tuple[int, ...]) -> Tensor:
    """Take the maximum of every window of ``size`` pixels, without stride or border.

    Args:
        x: ``(B, C, *spatial)``.
        size: Pixels of all axes, or one number per axis; at least 1.

    Returns:
        ``(B, C, *(spatial - size + 1))``, what max pooling with stride 1 gives. Where several
        pixels of a window share the maximum, the gradient goes to the first one, as there.

    Examples:
        >>> max_filter(torch.tensor([[[3.0, 1.0, 2.0]]]), 2)
        tensor([[[3., 2.]]])
    """
    if _learns(x) and channels_last(x):  # here max pooling is quick
        return MAX_POOLS[x.ndim - 2](x, size, 1)
    sizes = (size,) * (x.ndim - 2) if isinstance(size, int) else size
    for axis in range(x.ndim - 1, 1, -1):  # so that ties fall as in max pooling
        reach = 1  # pixels that a value of x stands for by now
        while reach < sizes[axis - 2]:
            step = min(reach, sizes[axis - 2] - reach)
            x = _larger_of(x, axis, step)
            reach += step
    return x


def _larger_of(x: Tensor, axis: int, step: int) -> Tensor:
    """Return the maximum of each pixel and the one ``step`` after it."""
    if _learns(x):
        larger: Tensor = _Larger.apply(x, axis, step)
        return larger
    length = x.shape[axis] - step
    return torch.maximum(x.narrow(axis, 0, length), x.narrow(axis, step, length))


def _learns(x: Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad and not torch.compiler.is_compiling()


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
