"""Linear maps next to their adjoints, each the backward pass of the other.

No full-size temporary, no slow scatter, and higher derivatives for free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.grad import conv2d_weight

from trueshift._cpu.conditions import chunks, differentiates, empty_map, image_size
from trueshift.windows import Slices, component_slices


def linear(
    there: Callable[..., Tensor], back: Callable[..., Tensor], x: Tensor, *rest: Any
) -> Tensor:
    """Return ``there(x, *rest)``, which is linear in ``x`` and has the adjoint ``back``."""
    if not differentiates(x):
        return there(x, *rest)
    y: Tensor = _Linear.apply(x, there, back, rest)
    return y


class _Linear(Function):
    @staticmethod
    def forward(x: Tensor, there: Any, back: Any, rest: tuple[Any, ...]) -> Tensor:
        result: Tensor = there(x, *rest)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.there, ctx.back, ctx.rest = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return linear(ctx.back, ctx.there, grad, *ctx.rest), None, None, None


class Mix(Function):
    """Sum several reads of a map, one per phase, with weights ``(B, P)``."""

    @staticmethod
    def forward(x: Tensor, phase: Tensor, reads: Sequence[Slices]) -> Tensor:
        y = torch.empty_like(x[reads[0]])
        for x_part, phase_part, y_part in _parts(x, phase, y):
            (read, weight), *more = _used(reads, phase_part, x.ndim)
            torch.mul(x_part[read], weight, out=y_part)
            for read, weight in more:
                y_part.addcmul_(x_part[read], weight)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, phase, ctx.reads = inputs
        ctx.save_for_backward(x, phase)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, phase = ctx.saved_tensors
        need_x, need_phase, _ = ctx.needs_input_grad
        of_x = Spread.apply(grad, phase, ctx.reads, x.shape[2:]) if need_x else None
        return of_x, inner_products(x, grad, ctx.reads) if need_phase else None, None


class Spread(Function):
    """Add a map to every read of zeros, with weights ``(B, P)``: the adjoint of :class:`Mix`."""

    @staticmethod
    def forward(y: Tensor, phase: Tensor, reads: Sequence[Slices], sizes: Sequence[int]) -> Tensor:
        x = empty_map(y, sizes)
        for x_part, phase_part, y_part in _parts(x, phase, y):
            x_part.zero_()
            for read, weight in _used(reads, phase_part, y.ndim):
                x_part[read].addcmul_(y_part, weight)
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        y, phase, ctx.reads, _ = inputs
        ctx.save_for_backward(y, phase)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, phase = ctx.saved_tensors
        need_y, need_phase, *_ = ctx.needs_input_grad
        of_y = Mix.apply(grad, phase, ctx.reads) if need_y else None
        return of_y, inner_products(grad, y, ctx.reads) if need_phase else None, None, None


def _parts(*maps: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield a few images at a time: a part that stays in the cache is read several times."""
    return chunks(*maps, per_image=image_size(maps[0]))


def _used(reads: Sequence[Slices], phase: Tensor, ndim: int) -> list[tuple[Slices, Tensor]]:
    """Pair reads with weights of shape ``(B, 1, ..., 1)``; straight-through phases use few."""
    weights = phase.t().reshape(*reversed(phase.shape), *[1] * (ndim - 1))
    pairs = zip(reads, weights, phase.any(0).tolist(), strict=True)
    return [(read, weight) for read, weight, used in pairs if used] or [(reads[0], weights[0])]


def inner_products(x: Tensor, y: Tensor, reads: Sequence[Slices]) -> Tensor:
    """Inner product of every read of ``x`` with ``y``: ``(B, P)``."""
    parts = [
        torch.stack([(x_part[read] * y_part).flatten(1).sum(1) for read in reads], dim=1)
        for x_part, y_part in _parts(x, y)
    ]
    return torch.cat(parts)


class Weigh(Function):
    """Sum the components of contiguous 2-D maps with weights ``(B, P)``, by one convolution.

    A depthwise one, of all images as one, with a kernel for each image.
    """

    @staticmethod
    def forward(x: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
        return _depthwise(x, phase, stride, transposed=False)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, phase, ctx.stride = inputs
        ctx.save_for_backward(x, phase)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, phase = ctx.saved_tensors
        need_x, need_phase, _ = ctx.needs_input_grad
        of_x = Share.apply(grad, phase, ctx.stride) if need_x else None
        return of_x, component_products(x, grad, ctx.stride) if need_phase else None, None


class Share(Function):
    """Give every component its share of a contiguous 2-D map: the adjoint of :class:`Weigh`."""

    @staticmethod
    def forward(y: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
        x = empty_map(y, [size * step for size, step in zip(y.shape[2:], stride, strict=True)])
        for x_part, phase_part, y_part in _parts(x, phase, y):
            # In bfloat16, transposed depthwise convolutions take ten times as long.
            shares = _depthwise(y_part.float(), phase_part.float(), stride, transposed=True)
            x_part.copy_(shares)
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        y, phase, ctx.stride = inputs
        ctx.save_for_backward(y, phase)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, phase = ctx.saved_tensors
        need_y, need_phase, _ = ctx.needs_input_grad
        of_y = Weigh.apply(grad, phase, ctx.stride) if need_y else None
        return of_y, component_products(grad, y, ctx.stride) if need_phase else None, None


def component_products(x: Tensor, y: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Inner product of every component of ``x`` with ``y``: ``(B, P)``."""
    if x.ndim != 4:
        return inner_products(x, y, component_slices(stride))
    (batch, channels), groups = x.shape[:2], x.shape[0] * x.shape[1]
    shape = (groups, 1, *stride)
    each = conv2d_weight(_as_one(x), shape, _as_one(y), stride, groups=groups)
    return each.view(batch, channels, -1).sum(1)


def _depthwise(x: Tensor, phase: Tensor, stride: tuple[int, ...], transposed: bool) -> Tensor:
    batch, channels = x.shape[:2]
    kernels = phase.view(batch, 1, *stride).repeat_interleave(channels, 0)  # (B * C, 1, s, s)
    geometry: tuple[Any, ...] = (stride, (0, 0), (1, 1), transposed, (0, 0), batch * channels)
    with torch.autocast("cpu", enabled=False):
        y = torch.convolution(_as_one(x), kernels, None, *geometry)
    return y.view(batch, channels, *y.shape[2:])


def _as_one(x: Tensor) -> Tensor:
    """View a batch as the channels of one image."""
    return x.reshape(1, -1, *x.shape[2:])
