"""Up-sampling by 2 with a filter of three taps: what lies between two values is their mean."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from trueshift._adjoint import component_view, empty_map
from trueshift.padding import pad


def fill_between(y: Tensor, phase: Tensor, mode: str) -> Tensor:
    """Place a map at hard phases of stride 2 and filter with Tri-3, scaled to keep the mean.

    No zero is placed and read again. Every value is a mean that is computed in the same way
    wherever it stands.

    Args:
        y: ``(B, C, *spatial)``.
        phase: Hard ``(B,)``.
        mode: Border, ``"circular"`` or ``"zeros"``.

    Returns:
        ``(B, C, *spatial * 2)``.

    Examples:
        >>> fill_between(torch.tensor([[[1.0, 3.0]]]), torch.tensor([0]), "circular")
        tensor([[[1., 2., 3., 2.]]])
    """
    dim, sizes = y.ndim - 2, y.shape[2:]
    halves = pad(y, ((1, 1),) * dim, mode) * 0.5
    out = empty_map(y, [2 * size for size in sizes])
    components = component_view(out, (2,) * dim)  # (B, 2, 2, C, h, w)
    places = list(itertools.product((0, 1), repeat=dim))
    for parts, image, half, place in zip(components, y, halves, phase.tolist(), strict=True):
        offsets = places[place]
        parts[offsets].copy_(image)
        for between in places[1:]:
            there = tuple(o ^ b for o, b in zip(offsets, between, strict=True))
            _mean(half, offsets, between, sizes, parts[there])
    return out


def _mean(
    half: Tensor,
    offsets: tuple[int, ...],
    between: tuple[int, ...],
    sizes: Sequence[int],
    out: Tensor,
) -> None:
    """Write the means of neighbours along the axes that ``between`` marks, of halves of values."""
    for axis, (marked, size) in enumerate(zip(between, sizes, strict=True), start=1):
        half = half if marked else half.narrow(axis, 1, size)
    *others, last = [axis for axis, marked in enumerate(between, start=1) if marked]
    for axis in others:
        half = torch.add(*_neighbours(half, axis, offsets, sizes)).mul_(0.5)
    torch.add(*_neighbours(half, last, offsets, sizes), out=out)


def _neighbours(
    half: Tensor, axis: int, offsets: tuple[int, ...], sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return both neighbours of every value that lies between two along an axis of an image."""
    start, size = 1 - offsets[axis - 1], sizes[axis - 1]
    return half.narrow(axis, start, size), half.narrow(axis, start + 1, size)
