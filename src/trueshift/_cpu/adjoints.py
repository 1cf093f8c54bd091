"""Linear maps of down- and up-sampling, each next to its adjoint.

Keeping a phase and placing a map there are each other's adjoint. Each pair is two autograd
functions that serve as each other's backward pass: no full-size temporary, no slow scatter, and
higher derivatives for free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from trueshift._cpu.conditions import LIMITS
from trueshift._cpu.layout import channels_innermost, empty_map
from trueshift.exact import channels_last
from trueshift.windows import (
    Slices,
    component_slices,
    offset_blocks,
    phase_offsets,
    unravel,
    window_slices,
)


def read_components(x: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Read one component per image, by one gather or, if large, row by row."""
    last = channels_innermost(x)
    blocks = _offsets_first(offset_blocks(x, stride), len(stride), last)
    offsets = phase_offsets(stride)
    if blocks.stride(-1) == 1 and blocks[0].numel() >= LIMITS.pick * len(offsets):
        kept = x.new_empty(x.shape[0], *blocks.shape[1 + len(stride) :])
        for image, source, place in zip(kept, blocks, phase.tolist(), strict=True):
            image.copy_(source[offsets[place]])
    else:
        kept = blocks[(torch.arange(x.shape[0]), *unravel(phase, stride))]
    return kept.movedim(-1, 1) if last else kept


class _Hard(Function):
    """A map that is linear in its first argument, at a hard phase."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, phase, ctx.stride = inputs
        ctx.save_for_backward(phase)


class HardDown(_Hard):
    """Keep one polyphase component per image."""

    @staticmethod
    def forward(x: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
        return read_components(x, phase, stride)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return HardUp.apply(grad, *ctx.saved_tensors, ctx.stride), None, None


class HardUp(_Hard):
    """Place a map at one phase per image, zeros elsewhere."""

    @staticmethod
    def forward(y: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
        u, last = _empty_up(y, stride).zero_(), channels_last(y)
        blocks = _offsets_first(offset_blocks(u, stride), len(stride), last)
        where = (torch.arange(y.shape[0]), *unravel(phase, stride))
        blocks[where] = y.movedim(1, -1) if last else y
        return u

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return HardDown.apply(grad, *ctx.saved_tensors, ctx.stride), None, None


def _offsets_first(blocks: Tensor, dim: int, last: bool) -> Tensor:
    """Order the axes as batch, offsets, then channels and space as they lie in memory."""
    space = range(2 + dim, 2 + 2 * dim)
    rest = (*space, 1) if last else (1, *space)
    return blocks.permute(0, *range(2, 2 + dim), *rest)


class _Soft(Function):
    """A map that is linear in its first argument and in the weights ``(B, P)`` of the phases."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, phase, ctx.stride = inputs
        ctx.save_for_backward(x, phase)


class SoftDown(_Soft):
    """Sum the polyphase components with weights ``(B, P)``."""

    @staticmethod
    def forward(x: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
        return _weighted_sum(x, phase, component_slices(stride))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        def of_phase(x: Tensor) -> Tensor:
            return inner_products(x, grad, component_slices(ctx.stride))

        return _soft_backward(ctx, grad, SoftUp, of_phase)


class SoftUp(_Soft):
    """Place a map at every phase, weighted by ``(B, P)``."""

    @staticmethod
    def forward(y: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
        u = _empty_up(y, stride)
        for kept, weight in zip(component_slices(stride), _broadcast(phase, y.ndim), strict=True):
            torch.mul(y, weight, out=u[kept])
        return u

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        def of_phase(y: Tensor) -> Tensor:
            return inner_products(grad, y, component_slices(ctx.stride))

        return _soft_backward(ctx, grad, SoftDown, of_phase)


class SoftWindow(_Soft):
    """Sum the windows of a map that begin at every offset of a stride, with weights ``(B, P)``."""

    @staticmethod
    def forward(x: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
        return _weighted_sum(x, phase, window_slices(x.shape[2:], stride))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        def of_phase(x: Tensor) -> Tensor:
            return inner_products(x, grad, window_slices(x.shape[2:], ctx.stride))

        return _soft_backward(ctx, grad, SoftSpread, of_phase)


class SoftSpread(_Soft):
    """Add a map at every offset of a stride to a larger one, with weights ``(B, P)``."""

    @staticmethod
    def forward(y: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
        sizes = [n + s - 1 for n, s in zip(y.shape[2:], stride, strict=True)]
        x = empty_map(y, sizes).zero_()
        weights = _broadcast(phase, y.ndim)
        for window, weight in zip(window_slices(sizes, stride), weights, strict=True):
            x[window].addcmul_(y, weight)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        def of_phase(y: Tensor) -> Tensor:
            return inner_products(grad, y, window_slices(grad.shape[2:], ctx.stride))

        return _soft_backward(ctx, grad, SoftWindow, of_phase)


def _soft_backward(
    ctx: Any, grad: Tensor, adjoint: type[_Soft], of_phase: Callable[[Tensor], Tensor]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the map, by its adjoint, and of the weights, where needed."""
    x, phase = ctx.saved_tensors
    need_x, need_phase, _ = ctx.needs_input_grad
    grad_x = adjoint.apply(grad, phase, ctx.stride) if need_x else None
    return grad_x, of_phase(x) if need_phase else None, None


def _empty_up(y: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Allocate the map that ``y`` is up-sampled to, in the memory format of ``y``."""
    return empty_map(y, [size * step for size, step in zip(y.shape[2:], stride, strict=True)])


def _broadcast(phase: Tensor, ndim: int) -> Tensor:
    """Shape weights ``(B, P)`` to ``(P, B, 1, ..., 1)`` of ``ndim + 1`` axes."""
    return phase.t().reshape(*reversed(phase.shape), *[1] * (ndim - 1))


def _weighted_sum(x: Tensor, phase: Tensor, reads: Sequence[Slices]) -> Tensor:
    """Sum one read of ``x`` per phase with weights ``(B, P)``."""
    weights = _broadcast(phase, x.ndim)
    y = x[reads[0]] * weights[0]
    for read, weight in zip(reads[1:], weights[1:], strict=True):
        y.addcmul_(x[read], weight)
    return y


def inner_products(x: Tensor, y: Tensor, reads: Sequence[Slices]) -> Tensor:
    """Inner product of every read of ``x`` with ``y``: ``(B, P)``."""
    return torch.stack([(x[read] * y).flatten(1).sum(1) for read in reads], dim=1)
