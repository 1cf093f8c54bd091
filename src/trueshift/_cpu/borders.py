"""Circular borders and windows, each in one copy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from trueshift._cpu.conditions import LIMITS, differentiates, image_size
from trueshift._cpu.layout import channels_innermost, empty_map
from trueshift._dispatch import fast
from trueshift._validate import Mode
from trueshift.windows import Slices, Widths, pad, phase_offsets, read_at


def _wraps_once(x: Tensor, widths: Widths, mode: Mode) -> bool:
    if mode != "circular":
        return False
    sizes = x.shape[-len(widths) :]
    fits = all(max(pair) <= size for pair, size in zip(widths, sizes, strict=True))
    return fits and any(map(any, widths))


@fast(pad, when=_wraps_once)
def circular_pad(x: Tensor, widths: Widths, mode: Mode = "circular") -> Tensor:
    """Copy the map, then its borders from the copy; the memory format stays."""
    last = channels_innermost(x)
    if not torch.is_grad_enabled():
        return wrapped_copy(x, widths, last)
    padded: Tensor = CircularPad.apply(x, widths, last)
    return padded


def wrapped_copy(x: Tensor, widths: Widths, last: bool) -> Tensor:
    """Wrap the borders of the last axes; ``last`` stores the axis before them innermost."""
    dim = len(widths)
    sizes = [n + sum(pair) for n, pair in zip(x.shape[-dim:], widths, strict=True)]
    middle = out = _empty(x, sizes, last)
    for axis, (before, _) in zip(range(-dim, 0), widths, strict=True):
        middle = middle.narrow(axis, before, x.shape[axis])
    middle.copy_(x)
    # Axis by axis, borders are copied from the result: it has the better layout by now.
    for axis, (before, after) in zip(range(-dim, 0), widths, strict=True):
        size = x.shape[axis]
        if before:
            out.narrow(axis, 0, before).copy_(out.narrow(axis, size, before))
        if after:
            out.narrow(axis, before + size, after).copy_(out.narrow(axis, before, after))
    return out


def _empty(x: Tensor, sizes: Sequence[int], last: bool) -> Tensor:
    *lead, channels = x.shape[: -len(sizes)]
    shape = (*lead, *sizes, channels) if last else (*lead, channels, *sizes)
    out = torch.empty(shape, dtype=x.dtype, device=x.device)
    return out.movedim(-1, -1 - len(sizes)) if last else out


class CircularPad(Function):
    """:func:`wrapped_copy`, whose adjoint is :class:`CircularFold`."""

    @staticmethod
    def forward(x: Tensor, widths: Widths, last: bool) -> Tensor:
        return wrapped_copy(x, widths, last)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.widths, ctx.last = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return CircularFold.apply(grad, ctx.widths, ctx.last), None, None


class CircularFold(Function):
    """Add wrapped borders back onto the map that they were copied from."""

    @staticmethod
    def forward(padded: Tensor, widths: Widths, last: bool) -> Tensor:
        dim = len(widths)
        sizes = [n - sum(pair) for n, pair in zip(padded.shape[-dim:], widths, strict=True)]
        x = _empty(padded, sizes, last)
        x.copy_(padded[inner_region(widths, sizes)])
        for inside, outside in _wrapped_regions(sizes, widths):
            x[inside] += padded[outside]
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.widths, ctx.last = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return CircularPad.apply(grad, ctx.widths, ctx.last), None, None


def inner_region(widths: Widths, sizes: Sequence[int]) -> Slices:
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
    for pairs in itertools.islice(itertools.product(*per_axis), 1, None):  # the first is the map
        inside, outside = zip(*pairs, strict=True)
        yield (..., *inside), (..., *outside)


def filled_windows(x: Tensor, phase: Tensor, stride: tuple[int, ...], widths: Widths) -> Tensor:
    """Extend the borders by zeros and cut the window at each image's hard phase, in one copy."""
    out = empty_map(x, _window_sizes(x, stride, widths))
    offsets = phase_offsets(stride)
    for target, source, place in zip(out, x, phase.tolist(), strict=True):
        for axis, (offset, (before, _)) in enumerate(zip(offsets[place], widths, strict=True), 1):
            ahead, start = max(before - offset, 0), max(offset - before, 0)
            start = min(start, source.shape[axis])
            inside = min(source.shape[axis] - start, target.shape[axis] - ahead)
            behind = target.shape[axis] - ahead - inside
            target.narrow(axis, 0, ahead).zero_()
            target.narrow(axis, ahead + inside, behind).zero_()
            target, source = target.narrow(axis, ahead, inside), source.narrow(axis, start, inside)
        target.copy_(source)
    return out


def copies_images(x: Tensor) -> bool:
    """Whether images are large enough to be copied one by one, and no backward pass follows."""
    return image_size(x) >= LIMITS.window and not differentiates(x)


def _copies_windows(x: Tensor, starts: Sequence[Tensor], lengths: Sequence[int]) -> bool:
    return copies_images(x)


@fast(read_at, when=_copies_windows)
def copy_windows(x: Tensor, starts: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
    """Copy the pieces of each window that lie side by side."""
    corners = list(zip(*(start.tolist() for start in starts), strict=True))
    pieces = {corner: list(_pieces(corner, lengths, x.shape[2:])) for corner in set(corners)}
    out = empty_map(x, lengths)
    for target, source, corner in zip(out, x, corners, strict=True):
        for there, here in pieces[corner]:
            target[there].copy_(source[here])
    return out


def _window_sizes(x: Tensor, stride: tuple[int, ...], widths: Widths) -> list[int]:
    return [n + sum(pair) - s + 1 for n, s, pair in zip(x.shape[2:], stride, widths, strict=True)]


def _pieces(
    corner: Sequence[int], lengths: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[Slices, Slices]]:
    """Yield (slices of the window, slices of the map) that together fill a wrapped window."""
    per_axis = []
    for first, length, size in zip(corner, lengths, sizes, strict=True):
        parts, done = [], 0
        while done < length:
            start = (first + done) % size
            count = min(size - start, length - done)
            parts.append((slice(done, done + count), slice(start, start + count)))
            done += count
        per_axis.append(parts)
    for pairs in itertools.product(*per_axis):
        there, here = zip(*pairs, strict=True)
        yield (..., *there), (..., *here)
