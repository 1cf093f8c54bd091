"""Eager kernels: linear maps written next to their adjoints.

Down-sampling by a phase and up-sampling by the same phase are each other's adjoint, and so are
wrapping a border and folding it back. Each pair here is two autograd functions that serve as each
other's backward: no full-size temporary, no slow scatter, and higher derivatives for free. Tracers
never get here: ``functional.py`` gives them the plain formulas.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

# From these sizes of an image on, copies of rows, image by image, are quicker than one gather of
# values.
_PICK_ELEMENTS = 2**13
_WRAP_ELEMENTS = 2**16

Slices = tuple[slice | EllipsisType, ...]
Widths = tuple[tuple[int, int], ...]


def channels_last(x: Tensor) -> bool:
    """Tell whether ``x`` is laid out channels-last (and not also in the default order)."""
    if x.is_contiguous() or x.ndim not in (4, 5):
        return False
    return x.is_contiguous(memory_format=last_format(x.ndim))


def last_format(ndim: int) -> torch.memory_format:
    """Return the channels-last format for tensors of ``ndim`` axes (the default one in 1-D)."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return formats.get(ndim, torch.contiguous_format)


def phase_offsets(phase: int, stride: tuple[int, ...]) -> tuple[int, ...]:
    """Split the row-major index of one phase into one offset per axis."""
    return list(itertools.product(*map(range, stride)))[phase]


def phase_slices(stride: tuple[int, ...]) -> Iterator[Slices]:
    """Yield, for each phase in row-major order, the slices of ``(..., *spatial)`` it keeps."""
    for offsets in itertools.product(*map(range, stride)):
        yield (..., *(slice(o, None, step) for o, step in zip(offsets, stride, strict=True)))


def unravel(phase: Tensor, stride: tuple[int, ...]) -> list[Tensor]:
    """Split the row-major index ``phase`` into one offset per axis."""
    offsets: list[Tensor] = []
    for step in reversed(stride):
        offsets.insert(0, phase % step)
        phase = phase // step
    return offsets


def offset_blocks(x: Tensor, stride: tuple[int, ...]) -> Tensor:
    """View ``(B, C, *spatial)`` as ``(B, C, *stride, *spatial // stride)``, without a copy."""
    dim = len(stride)
    sizes = [n for size, s in zip(x.shape[2:], stride, strict=True) for n in (size // s, s)]
    blocks = x.reshape(*x.shape[:2], *sizes)  # (B, C, h, s, w, s)
    steps = [3 + 2 * axis for axis in range(dim)]
    return blocks.permute(0, 1, *steps, *(step - 1 for step in steps))


def component_view(x: Tensor, stride: tuple[int, ...]) -> Tensor:
    """View ``(B, C, *spatial)`` as ``(B, *stride, C, *spatial // stride)``, without a copy."""
    return offset_blocks(x, stride).movedim(1, 1 + len(stride))


def pick(blocks: Tensor, phase: Tensor, stride: tuple[int, ...], *, last: bool = False) -> Tensor:
    """Read from ``(B, C, *stride, *sizes)`` the block at each image's phase: ``(B, C, *sizes)``."""
    ordered = _offsets_first(blocks, len(stride), last)
    if ordered.stride(-1) == 1 and image_by_image(ordered, math.prod(stride) * _PICK_ELEMENTS):
        picked = blocks.new_empty(ordered.shape[0], *ordered.shape[1 + len(stride) :])
        offsets = list(itertools.product(*map(range, stride)))
        for image, source, place in zip(picked, ordered, phase.tolist(), strict=True):
            image.copy_(source[offsets[place]])
    else:
        picked = ordered[_per_image(phase, stride)]
    return picked.movedim(-1, 1) if last else picked


def image_by_image(x: Tensor, elements: int = _WRAP_ELEMENTS) -> bool:
    """Whether images of ``x`` are large enough to be copied one by one.

    Such copies leave no trace for a backward pass.
    """
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and x.requires_grad):
        return False
    return x.device.type == "cpu" and math.prod(x.shape[1:]) >= elements


def _per_image(phase: Tensor, stride: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Index of each image's phase in blocks whose axes begin with batch and offsets."""
    return (torch.arange(phase.shape[0], device=phase.device), *unravel(phase, stride))


def _offsets_first(blocks: Tensor, dim: int, last: bool) -> Tensor:
    """Order the axes as batch, offsets, then channels and space as they lie in memory."""
    space = range(2 + dim, 2 + 2 * dim)
    rest = (*space, 1) if last else (1, *space)
    return blocks.permute(0, *range(2, 2 + dim), *rest)


def _empty_up(y: Tensor, stride: tuple[int, ...], fill: bool) -> Tensor:
    """Allocate the map that ``y`` is up-sampled to, in the layout of ``y``."""
    out = _empty(y, [size * step for size, step in zip(y.shape[2:], stride, strict=True)])
    return out.zero_() if fill else out


def _empty(y: Tensor, sizes: Sequence[int]) -> Tensor:
    """Allocate a map of other spatial sizes, in the layout of ``y``."""
    layout = last_format(y.ndim) if channels_last(y) else torch.contiguous_format
    shape = (*y.shape[:2], *sizes)
    return torch.empty(shape, dtype=y.dtype, device=y.device, memory_format=layout)


class HardDown(Function):
    """Keep one polyphase component per image."""

    @staticmethod
    def forward(x: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
        return pick(offset_blocks(x, stride), phase, stride, last=channels_last(x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, phase, ctx.stride = inputs
        ctx.save_for_backward(phase)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (phase,) = ctx.saved_tensors
        return HardUp.apply(grad, phase, ctx.stride), None, None


class HardUp(Function):
    """Place a map at one phase per image, zeros elsewhere."""

    @staticmethod
    def forward(y: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
        u, last = _empty_up(y, stride, fill=True), channels_last(y)
        blocks = _offsets_first(offset_blocks(u, stride), len(stride), last)
        blocks[_per_image(phase, stride)] = y.movedim(1, -1) if last else y
        return u

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, phase, ctx.stride = inputs
        ctx.save_for_backward(phase)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (phase,) = ctx.saved_tensors
        return HardDown.apply(grad, phase, ctx.stride), None, None


class SoftDown(Function):
    """Sum the polyphase components with weights ``(B, P)``."""

    @staticmethod
    def forward(x: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
        return _weighted_sum(x, phase, phase_slices(stride))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, phase, ctx.stride = inputs
        ctx.save_for_backward(x, phase)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, phase = ctx.saved_tensors
        need_x, need_phase, _ = ctx.needs_input_grad
        grad_x = SoftUp.apply(grad, phase, ctx.stride) if need_x else None
        grad_phase = _inner(x, grad, phase_slices(ctx.stride)) if need_phase else None
        return grad_x, grad_phase, None


class SoftUp(Function):
    """Place a map at every phase, weighted by ``(B, P)``."""

    @staticmethod
    def forward(y: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
        u = _empty_up(y, stride, fill=False)
        for kept, weight in zip(phase_slices(stride), _broadcast(phase, y.ndim), strict=True):
            torch.mul(y, weight, out=u[kept])
        return u

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        y, phase, ctx.stride = inputs
        ctx.save_for_backward(y, phase)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, phase = ctx.saved_tensors
        need_y, need_phase, _ = ctx.needs_input_grad
        grad_y = SoftDown.apply(grad, phase, ctx.stride) if need_y else None
        grad_phase = _inner(grad, y, phase_slices(ctx.stride)) if need_phase else None
        return grad_y, grad_phase, None


def _broadcast(phase: Tensor, ndim: int) -> Tensor:
    """Shape weights ``(B, P)`` to ``(P, B, 1, ..., 1)`` of ``ndim + 1`` axes."""
    return phase.t().reshape(*reversed(phase.shape), *[1] * (ndim - 1))


def _weighted_sum(x: Tensor, phase: Tensor, reads: Iterator[Slices]) -> Tensor:
    """Sum one read of ``x`` per phase with weights ``(B, P)``."""
    weights = _broadcast(phase, x.ndim)
    first, *others = (x[read] for read in reads)
    y = first * weights[0]
    for part, weight in zip(others, weights[1:], strict=True):
        y.addcmul_(part, weight)
    return y


def _inner(x: Tensor, y: Tensor, reads: Iterator[Slices]) -> Tensor:
    """Inner product of every read of ``x`` with ``y``: ``(B, P)``."""
    return torch.stack([(x[read] * y).flatten(1).sum(1) for read in reads], dim=1)


class SoftWindow(Function):
    """Sum the windows of a map that begin at every offset of a stride, with weights ``(B, P)``."""

    @staticmethod
    def forward(x: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
        return _weighted_sum(x, phase, window_slices(x.shape[2:], stride))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, phase, ctx.stride = inputs
        ctx.save_for_backward(x, phase)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, phase = ctx.saved_tensors
        need_x, need_phase, _ = ctx.needs_input_grad
        grad_x = SoftSpread.apply(grad, phase, ctx.stride) if need_x else None
        windows = window_slices(x.shape[2:], ctx.stride)
        grad_phase = _inner(x, grad, windows) if need_phase else None
        return grad_x, grad_phase, None


class SoftSpread(Function):
    """Add a map at every offset of a stride to a larger one, with weights ``(B, P)``."""

    @staticmethod
    def forward(y: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
        sizes = [n + s - 1 for n, s in zip(y.shape[2:], stride, strict=True)]
        x = _empty(y, sizes).zero_()
        weights = _broadcast(phase, y.ndim)
        for window, weight in zip(window_slices(sizes, stride), weights, strict=True):
            x[window].addcmul_(y, weight)
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        y, phase, ctx.stride = inputs
        ctx.save_for_backward(y, phase)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, phase = ctx.saved_tensors
        need_y, need_phase, _ = ctx.needs_input_grad
        grad_y = SoftWindow.apply(grad, phase, ctx.stride) if need_y else None
        windows = window_slices(grad.shape[2:], ctx.stride)
        grad_phase = _inner(grad, y, windows) if need_phase else None
        return grad_y, grad_phase, None


def window_slices(sizes: Sequence[int], stride: tuple[int, ...]) -> Iterator[Slices]:
    """Yield, for each phase, the slices of the largest window that fits at every offset."""
    ends = [size - step + 1 for size, step in zip(sizes, stride, strict=True)]
    for offsets in itertools.product(*map(range, stride)):
        yield (..., *(slice(o, o + end) for o, end in zip(offsets, ends, strict=True)))


def circular_windows(x: Tensor, phase: Tensor, stride: tuple[int, ...], widths: Widths) -> Tensor:
    """Wrap the borders and cut the window at each image's hard phase, in one copy."""
    sizes = x.shape[2:]
    out_sizes = [n + sum(pair) - s + 1 for n, s, pair in zip(sizes, stride, widths, strict=True)]
    pieces = [
        list(_pieces(offsets, out_sizes, sizes, widths))
        for offsets in itertools.product(*map(range, stride))
    ]
    out = _empty(x, out_sizes)
    for target, source, place in zip(out, x, phase.tolist(), strict=True):
        for there, here in pieces[place]:
            target[there].copy_(source[here])
    return out


def _pieces(
    offsets: Sequence[int], out_sizes: Sequence[int], sizes: Sequence[int], widths: Widths
) -> Iterator[tuple[Slices, Slices]]:
    """Yield (slices of the window, slices of the map) that together fill a wrapped window."""
    per_axis = []
    for offset, out_size, size, (before, _) in zip(offsets, out_sizes, sizes, widths, strict=True):
        parts, done = [], 0
        while done < out_size:
            start = (offset - before + done) % size
            length = min(size - start, out_size - done)
            parts.append((slice(done, done + length), slice(start, start + length)))
            done += length
        per_axis.append(parts)
    for pairs in itertools.product(*per_axis):
        there, here = zip(*pairs, strict=True)
        yield (..., *there), (..., *here)


class CircularPad(Function):
    """Wrap the borders of the last axes; ``last`` stores the axis before them innermost."""

    @staticmethod
    def forward(x: Tensor, widths: Widths, last: bool) -> Tensor:
        dim = len(widths)
        sizes = [n + sum(pair) for n, pair in zip(x.shape[-dim:], widths, strict=True)]
        *lead, channels = x.shape[:-dim]
        shape = (*lead, *sizes, channels) if last else (*lead, channels, *sizes)
        out = torch.empty(shape, dtype=x.dtype, device=x.device)
        out = out.movedim(-1, -1 - dim) if last else out
        out[_inner_region(widths, x.shape[-dim:])] = x
        # Axis by axis, borders are copied from the result itself: it has the better layout by now.
        for axis, (before, after) in zip(range(-dim, 0), widths, strict=True):
            size = x.shape[axis]
            if before:
                out.narrow(axis, 0, before).copy_(out.narrow(axis, size, before))
            if after:
                out.narrow(axis, before + size, after).copy_(out.narrow(axis, before, after))
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.widths, _ = inputs
        ctx.strides = x.stride()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return CircularFold.apply(grad, ctx.widths, ctx.strides), None, None


class CircularFold(Function):
    """Add wrapped borders back onto the map that they were copied from, stored with ``strides``."""

    @staticmethod
    def forward(padded: Tensor, widths: Widths, strides: tuple[int, ...]) -> Tensor:
        dim = len(widths)
        sizes = [n - sum(pair) for n, pair in zip(padded.shape[-dim:], widths, strict=True)]
        shape = (*padded.shape[:-dim], *sizes)
        x = torch.empty_strided(shape, strides, dtype=padded.dtype, device=padded.device)
        x.copy_(padded[_inner_region(widths, sizes)])
        for inside, outside in _wrapped_regions(sizes, widths):
            x[inside] += padded[outside]
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        padded, ctx.widths, _ = inputs
        ctx.last = padded.stride(-1 - len(ctx.widths)) == 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return CircularPad.apply(grad, ctx.widths, ctx.last), None, None


def _inner_region(widths: Widths, sizes: Sequence[int]) -> Slices:
    """Where the map lies inside its padded version."""
    return (..., *(slice(b, b + n) for (b, _), n in zip(widths, sizes, strict=True)))


def _wrapped_regions(sizes: Sequence[int], widths: Widths) -> Iterator[tuple[Slices, Slices]]:
    """Yield (slices of the map, slices of the padded map) of every border and corner."""
    per_axis = []
    for size, (before, after) in zip(sizes, widths, strict=True):
        parts = [(slice(0, size), slice(before, before + size))]
        if before:
            parts.append((slice(size - before, size), slice(0, before)))
        if after:
            parts.append((slice(0, after), slice(before + size, before + size + after)))
        per_axis.append(parts)
    whole_first = itertools.product(*per_axis)
    for pairs in itertools.islice(whole_first, 1, None):
        inside, outside = zip(*pairs, strict=True)
        yield (..., *inside), (..., *outside)
