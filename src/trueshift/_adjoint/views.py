"""Where phases lie in a map: offsets, slices and views, without a copy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from types import EllipsisType

import torch
from torch import Tensor

Slices = tuple[slice | EllipsisType, ...]
Widths = tuple[tuple[int, int], ...]


def phase_offsets(phase: int, stride: tuple[int, ...]) -> tuple[int, ...]:
    """Split the row-major index of one phase into one offset per axis."""
    return list(itertools.product(*map(range, stride)))[phase]


def phase_slices(stride: tuple[int, ...]) -> Iterator[Slices]:
    """Yield, for each phase in row-major order, the slices of ``(..., *spatial)`` it keeps."""
    for offsets in itertools.product(*map(range, stride)):
        yield (..., *(slice(o, None, step) for o, step in zip(offsets, stride, strict=True)))


def window_slices(sizes: Sequence[int], stride: tuple[int, ...]) -> Iterator[Slices]:
    """Yield, for each phase, the slices of the largest window that fits at every offset."""
    ends = [size - step + 1 for size, step in zip(sizes, stride, strict=True)]
    for offsets in itertools.product(*map(range, stride)):
        yield (..., *(slice(o, o + end) for o, end in zip(offsets, ends, strict=True)))


def unravel(phase: Tensor, stride: Sequence[int | Tensor]) -> list[Tensor]:
    """Split the row-major index ``phase`` into one offset per axis."""
    offsets: list[Tensor] = []
    for step in reversed(stride):
        offsets.insert(0, phase % step)
        phase = phase // step
    return offsets


def wrap(place: Tensor, size: int) -> Tensor:
    """Return ``place % size``, in exported graphs too, where a size is known only while running."""
    return place % axis_length(size, place.device)


def axis_length(size: int, device: torch.device) -> Tensor:
    """Return a size as a tensor: a graph that holds it serves every size."""
    return torch.arange(size, device=device).amax(0) + 1


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
