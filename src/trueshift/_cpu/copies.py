"""Borders, windows and components, each in one copy."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from trueshift._cpu.adjoints import linear
from trueshift._cpu.conditions import (
    LIMITS,
    channels_innermost,
    differentiates,
    empty_map,
    image_size,
)
from trueshift._dispatch import fast
from trueshift._validate import Mode
from trueshift.functional import keep_phase, place_phase
from trueshift.windows import Phase, Slices, Widths, component_slices, is_soft, pad, read_at

Pieces = list[tuple[Slices, Slices]]  # (slices of a window, slices of the map)
_component_slices = functools.cache(component_slices)


def _wraps_once(x: Tensor, widths: Widths, mode: Mode) -> bool:
    if mode != "circular":
        return False
    sizes = x.shape[-len(widths) :]
    fits = all(max(pair) <= size for pair, size in zip(widths, sizes, strict=True))
    return fits and any(map(any, widths))


@fast(pad, when=_wraps_once)
def circular_pad(x: Tensor, widths: Widths, mode: Mode = "circular") -> Tensor:
    """Copy the map, then its borders from the copy; the memory format stays."""
    return linear(wrapped_copy, _folded, x, widths, channels_innermost(x))


def wrapped_copy(x: Tensor, widths: Widths, last: bool) -> Tensor:
    """Wrap the borders of the last axes; ``last`` stores the axis before them innermost."""
    axes = range(-len(widths), 0)
    *lead, channels = x.shape[: axes[0]]
    sizes = [x.shape[axis] + sum(pair) for axis, pair in zip(axes, widths, strict=True)]
    shape = (*lead, *sizes, channels) if last else (*lead, channels, *sizes)
    out = torch.empty(shape, dtype=x.dtype, device=x.device)
    middle = out = out.movedim(-1, axes[0] - 1) if last else out
    for axis, (before, _) in zip(axes, widths, strict=True):
        middle = middle.narrow(axis, before, x.shape[axis])
    middle.copy_(x)
    # Axis by axis, borders are copied from the result: it has the better layout by now.
    for axis, (before, after) in zip(axes, widths, strict=True):
        size = x.shape[axis]
        if before:
            out.narrow(axis, 0, before).copy_(out.narrow(axis, size, before))
        if after:
            out.narrow(axis, before + size, after).copy_(out.narrow(axis, before, after))
    return out


def _folded(padded: Tensor, widths: Widths, last: bool) -> Tensor:
    """Add wrapped borders back onto the map that they were copied from."""
    lengths = padded.shape[-len(widths) :]
    sizes = [length - sum(pair) for length, pair in zip(lengths, widths, strict=True)]
    pieces = _pieces([-before for before, _ in widths], lengths, sizes)
    (middle, _), *borders = sorted(pieces, key=lambda piece: -padded[piece[0]].numel())
    x = padded[middle].clone()
    for there, here in borders:
        x[here] += padded[there]
    return x


def _copies_windows(x: Tensor, starts: Sequence[Tensor], lengths: Sequence[int]) -> bool:
    return image_size(x) >= LIMITS.window or differentiates(x)


@fast(read_at, when=_copies_windows)
def copy_windows(x: Tensor, starts: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
    """Copy the pieces of each window that lie side by side; their gradients are added back."""
    corners = list(zip(*(start.tolist() for start in starts), strict=True))
    pieces = {corner: list(_pieces(corner, lengths, x.shape[2:])) for corner in set(corners)}
    own = [pieces[corner] for corner in corners]
    return linear(_copied_pieces, _added_pieces, x, own, lengths, x.shape[2:])


def _copied_pieces(
    x: Tensor, pieces: Sequence[Pieces], lengths: Sequence[int], sizes: Sequence[int]
) -> Tensor:
    windows = empty_map(x, lengths)
    for target, source, own in zip(windows, x, pieces, strict=True):
        for there, here in own:
            target[there].copy_(source[here])
    return windows


def _added_pieces(
    windows: Tensor, pieces: Sequence[Pieces], lengths: Sequence[int], sizes: Sequence[int]
) -> Tensor:
    x = empty_map(windows, sizes)
    for target, source, own in zip(x, windows, pieces, strict=True):
        target.zero_()
        for there, here in own:
            target[here].add_(source[there])
    return x


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


def _is_hard(x: Tensor, phase: Phase, stride: tuple[int, ...]) -> bool:
    return isinstance(phase, Tensor) and not is_soft(phase)


def _only_reads(x: Tensor, phase: Phase, stride: tuple[int, ...]) -> bool:
    learns = x.requires_grad and torch.is_grad_enabled()
    return isinstance(phase, Tensor) and phase.dtype == torch.int64 and not learns


@fast(keep_phase, when=_only_reads)
def copy_components(x: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Copy only what is kept, image by image."""
    kept = _component_slices(stride)
    y = torch.empty_like(x[kept[0]])
    for target, source, place in zip(y, x, phase.tolist(), strict=True):
        target.copy_(source[kept[place]])
    return y


def place_components(y: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Copy between zeros, image by image: the adjoint of :func:`copy_components`."""
    sizes = [size * step for size, step in zip(y.shape[2:], stride, strict=True)]
    u = empty_map(y, sizes).zero_()
    for target, source, place in zip(u, y, phase.tolist(), strict=True):
        target[_component_slices(stride)[place]].copy_(source)
    return u


@fast(keep_phase, when=_is_hard)
def keep_hard(x: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Copy what is kept; its gradient is copied back."""
    return linear(copy_components, place_components, x, phase, stride)


@fast(place_phase, when=_is_hard)
def place_hard(y: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Write every value once; the gradient is what is kept."""
    return linear(place_components, copy_components, y, phase, stride)
