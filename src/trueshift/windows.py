"""Borders of maps, and where phases lie in them: offsets, slices, views and windows.

Letters are those of :mod:`trueshift.functional`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import EllipsisType

import torch
from torch import Tensor
from torch.nn import functional as F

from trueshift._dispatch import formula
from trueshift._validate import Mode, axis_modes

Phase = int | Tensor
Slices = tuple[slice | EllipsisType, ...]
Widths = tuple[tuple[int, int], ...]  # for each spatial axis, how much before and after


@formula
def pad(x: Tensor, widths: Widths, mode: Mode) -> Tensor:
    """Extend a feature map at its borders.

    Unlike ``torch.nn.functional.pad``, a circular border may be wider than the map (it wraps as
    often as needed), and every axis may have a mode of its own.

    Args:
        x: Feature map ``(..., C, *spatial)``.
        widths: For each spatial axis, how much to add before and after.
        mode: ``"circular"``, ``"zeros"``, ``"reflect"`` or ``"replicate"``, or one per axis.

    Examples:
        >>> pad(torch.tensor([[[1, 2, 3]]]), ((2, 1),), "circular")
        tensor([[[2, 3, 1, 2, 3, 1]]])
    """
    modes = axis_modes(mode, len(widths))
    for kind in dict.fromkeys(modes):
        own = tuple(
            pair if axis == kind else (0, 0) for pair, axis in zip(widths, modes, strict=True)
        )
        if not any(map(any, own)):
            continue
        if kind == "circular":
            x = _wrap(x, own)
        else:
            flat = [width for pair in reversed(own) for width in pair]
            x = F.pad(x, flat, mode="constant" if kind == "zeros" else kind)
    return x


def _wrap(x: Tensor, widths: Widths) -> Tensor:
    for axis, (before, after) in zip(range(-len(widths), 0), widths, strict=True):
        size = x.shape[axis]
        if max(before, after) > size:
            place = torch.arange(-before, size + after, device=x.device)
            x = x.index_select(axis, wrap(place, size))
        elif before or after:
            ends = x.narrow(axis, size - before, before), x.narrow(axis, 0, after)
            x = torch.cat([ends[0], x, ends[1]], axis)
    return x


@formula
def phase_window(
    x: Tensor, phase: Phase, stride: tuple[int, ...], widths: Widths, mode: Mode
) -> Tensor:
    """Pad a map and cut what a strided operation reads at the positions of a phase.

    A strided operation without padding on the result gives one value per kept position.

    Args:
        x: ``(B, C, *spatial)``, sizes divisible by the stride.
        phase: Hard, or soft: then the windows of all phases are mixed, which is right for what is
            linear in its input.
        stride: Sampling factor of each axis.
        widths: How far the operation reaches before and after a position, per axis.
        mode: Border.
    """
    if isinstance(phase, int):
        return _window_at(x, phase, stride, widths, mode)
    if is_soft(phase):
        padded = pad(x, widths, mode)
        return _mixed(padded, phase, window_slices(padded.shape[2:], stride))
    axes = list(zip(x.shape[2:], widths, stride, strict=True))
    lengths = [size + before + after - step + 1 for size, (before, after), step in axes]
    starts = unravel(phase, stride)
    if mode != "circular":
        return read_at(pad(x, widths, mode), starts, lengths)
    return read_at(x, [o - before for o, (before, _) in zip(starts, widths, strict=True)], lengths)


@formula
def mix_moves(x: Tensor, weights: Tensor, offsets: Sequence[tuple[int, ...]], mode: Mode) -> Tensor:
    """Move a map ahead by several offsets and mix the results.

    Args:
        x: ``(B, C, *spatial)``.
        weights: Share of each offset in each image, ``(B, P)``.
        offsets: How far to move along each axis, ``P`` of them.
        mode: What comes in at the beginning of an axis.

    Returns:
        ``y[b, c, n] = sum_k weights[b, k] * x[b, c, n - offsets[k]]``.
    """
    padded = pad(x, move_widths(offsets), mode)
    return _mixed(padded, weights, move_slices(x.shape[2:], offsets))


def _mixed(x: Tensor, weights: Tensor, reads: Sequence[Slices]) -> Tensor:
    """Sum several reads of a map with weights ``(B, P)``."""
    shares = weights.to(x.dtype)[(..., *[None] * (x.ndim - 1))].unbind(1)  # (B, 1, 1, 1) each
    return torch.stack([w * x[read] for w, read in zip(shares, reads, strict=True)]).sum(0)


@formula
def read_at(x: Tensor, starts: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
    """Read a window of each image that begins at a place of its own and wraps around.

    Args:
        x: ``(B, C, *spatial)``.
        starts: For each spatial axis, where the windows begin, int64 ``(B,)``.
        lengths: For each spatial axis, how long they are.

    Returns:
        ``y[b, c, n] = x[b, c, (starts[b] + n) % size]``.
    """
    index = [torch.arange(size, device=x.device) for size in x.shape[:2]]
    index = [index[0].view(-1, *[1] * (x.ndim - 1)), index[1].view(-1, *[1] * (x.ndim - 2))]
    for axis, (start, length) in enumerate(zip(starts, lengths, strict=True), start=2):
        place = wrap(start[:, None] + torch.arange(length, device=x.device), x.shape[axis])
        shape = [1] * x.ndim
        shape[0], shape[axis] = -1, length
        index.append(place.view(shape))
    return x[tuple(index)]


def _window_at(
    x: Tensor, phase: int, stride: tuple[int, ...], widths: Widths, mode: Mode
) -> Tensor:
    starts = phase_offsets(stride)[phase]
    reach = [
        (before - start, after - (step - 1 - start))
        for (before, after), start, step in zip(widths, starts, stride, strict=True)
    ]
    x = pad(x, tuple((max(before, 0), max(after, 0)) for before, after in reach), mode)
    kept: Slices = (..., *(slice(max(-before, 0), None) for before, _ in reach))
    return x[kept]


def kernel_reach(weight: Tensor, dilation: Sequence[int] | None = None) -> Widths:
    """How far a kernel reaches before and after a position, per axis."""
    sizes = weight.shape[2:]
    reaches = [d * (n - 1) for n, d in zip(sizes, dilation or (1,) * len(sizes), strict=True)]
    return tuple((reach // 2, reach - reach // 2) for reach in reaches)


# Where phases lie in a map: offsets, slices and views, without a copy


def is_soft(phase: Phase) -> bool:
    """Whether a phase is a weighted mixture, as while training."""
    return isinstance(phase, Tensor) and phase.dtype.is_floating_point


def phase_offsets(stride: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the offsets of every phase, row-major."""
    return list(itertools.product(*map(range, stride)))


def component_slices(stride: tuple[int, ...]) -> list[Slices]:
    """Return the slices of ``(..., *spatial)`` that every phase keeps."""
    return [
        (..., *(slice(o, None, step) for o, step in zip(offsets, stride, strict=True)))
        for offsets in phase_offsets(stride)
    ]


def window_slices(sizes: Sequence[int], stride: tuple[int, ...]) -> list[Slices]:
    """Return, for every phase, the slices of the largest window that fits at every offset."""
    ends = [size - step + 1 for size, step in zip(sizes, stride, strict=True)]
    return [
        (..., *(slice(o, o + end) for o, end in zip(offsets, ends, strict=True)))
        for offsets in phase_offsets(stride)
    ]


def move_widths(offsets: Sequence[tuple[int, ...]]) -> Widths:
    """How far a map must be extended so that :func:`move_slices` fit."""
    return tuple((max(axis), 0) for axis in zip(*offsets, strict=True))


def move_slices(sizes: Sequence[int], offsets: Sequence[tuple[int, ...]]) -> list[Slices]:
    """Return, for every offset, the slices of a map so extended that hold the map moved by it."""
    largest = [before for before, _ in move_widths(offsets)]
    return [
        (..., *(slice(m - o, m - o + n) for m, o, n in zip(largest, offset, sizes, strict=True)))
        for offset in offsets
    ]


def tap_slices(sizes: Sequence[int], size: int, stride: tuple[int, ...]) -> list[Slices]:
    """Return, for every tap of a kernel, the slices that it reads of a padded map.

    Args:
        sizes: Spatial sizes of the result.
        size: Taps per axis.
        stride: Distance of the pixels that the kernel is applied to.
    """
    ends = [(n - 1) * step + 1 for n, step in zip(sizes, stride, strict=True)]
    return [
        (..., *(slice(i, i + end, s) for i, end, s in zip(corner, ends, stride, strict=True)))
        for corner in itertools.product(range(size), repeat=len(stride))
    ]


def unravel(phase: Tensor, stride: Sequence[int | Tensor]) -> list[Tensor]:
    """Split the row-major index ``phase`` into one offset per axis."""
    offsets: list[Tensor] = []
    for step in reversed(stride):
        offsets.insert(0, phase % step)
        phase = phase // step
    return offsets


def offset_blocks(x: Tensor, stride: tuple[int, ...]) -> Tensor:
    """View ``(B, C, *spatial)`` as ``(B, C, *stride, *spatial // stride)``."""
    sizes = [n for size, s in zip(x.shape[2:], stride, strict=True) for n in (size // s, s)]
    blocks = x.reshape(*x.shape[:2], *sizes)  # (B, C, h, s, w, s)
    inner = [3 + 2 * axis for axis in range(len(stride))]
    return blocks.permute(0, 1, *inner, *(axis - 1 for axis in inner))


def component_view(x: Tensor, stride: tuple[int, ...]) -> Tensor:
    """View ``(B, C, *spatial)`` as ``(B, *stride, C, *spatial // stride)``."""
    return offset_blocks(x, stride).movedim(1, 1 + len(stride))


def wrap(place: Tensor, size: int) -> Tensor:
    """Return ``place % size``, in exported graphs too, where a size is known only at run time."""
    return place % axis_length(size, place.device)


def axis_length(size: int, device: torch.device) -> Tensor:
    """Return a size as a tensor: a graph that holds it serves every size."""
    return torch.arange(size, device=device).amax(0) + 1
