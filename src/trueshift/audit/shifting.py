"""Shifts that an audit moves images by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trueshift._validate import check_positive
from trueshift.shifts import circular_shift, standard_shift

Offsets = tuple[int, int]
Shifts = str | int | Sequence[Offsets]
Wraps = tuple[bool, ...]
BOTH: Wraps = (True, True)
DISTANCES = (1, 2, 4, 8, 16, 32)  # of moves along both axes
NEIGHBOURS = tuple((dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if (dy, dx) != (0, 0))


def diagonal(distance: int) -> tuple[Offsets, ...]:
    """Return the four moves of a distance along both axes."""
    return tuple((dy, dx) for dy in (-distance, distance) for dx in (-distance, distance))


ALL_MOVES = frozenset(NEIGHBOURS).union(*map(diagonal, DISTANCES))


class ShiftSet(NamedTuple):
    """One kind of shift, what the network sees, the shifts to measure, and which axes wrap."""

    kind: str
    window: tuple[int, int]
    shifts: tuple[Offsets, ...]
    wraps: Wraps = BOTH

    def ranges(self, size: tuple[int, int]) -> list[range]:
        """Return the shifts dy and dx of images of a size that are possible."""
        return shift_ranges(self.kind, size, self.window, self.wraps)

    def see(self, images: Tensor, shift: Offsets = (0, 0)) -> Tensor:
        """Return images or masks ``(..., H, W)`` as the network sees them under a shift."""
        if self.kind == "circular":
            return circular_shift(images, *shift)
        return standard_shift(images, self.window, *shift)


def shift_set(
    kind: str,
    shifts: Shifts | None,
    size: tuple[int, int],
    window: int | None,
    multiple: int | tuple[int, ...],
    seed: int,
    wraps: Wraps = BOTH,
) -> ShiftSet:
    """Return the shifts of one kind.

    Args:
        kind: ``"circular"`` or ``"standard"``.
        shifts: ``"all"``, how many to draw at random, or a list of (dy, dx); None means all
            circular ones, and for standard ones the moves of :data:`ALL_MOVES` that fit.
        size: Height and width of the images.
        window: Side of what the network sees under standard shifts; None chooses.
        multiple: What the network needs its sizes to be a multiple of, or one per axis.
        seed: Seed of the draw.
        wraps: Along which axes circular shifts go.

    Examples:
        >>> shift_set("circular", "all", (2, 2), None, 1, 0).shifts
        ((-1, -1), (-1, 0), (0, -1))
    """
    if window is not None:
        check_positive("audit", window=window)
        if window > min(size):
            raise ValueError(
                f"audit: window={window} is larger than the images, {size}. Use a smaller one."
            )
    seen = size
    if kind == "standard":
        seen = default_window(size, multiple) if window is None else (window, window)
    empty = ShiftSet(kind, seen, (), wraps if kind == "circular" else BOTH)
    return empty._replace(shifts=_resolve(shifts, empty, size, seed))


def shift_ranges(
    kind: str, size: tuple[int, int], window: tuple[int, int], wraps: Wraps = BOTH
) -> list[range]:
    """Return the shifts dy and dx that are possible.

    Examples:
        >>> shift_ranges("circular", (4, 5), (4, 5)), shift_ranges("standard", (4, 5), (3, 3))
        ([range(-2, 2), range(-2, 3)], [range(-1, 1), range(-1, 2)])
    """
    axes = zip(size, window, wraps, strict=True)
    return [_range(kind, n, w) if moves else range(1) for n, w, moves in axes]


def default_window(size: tuple[int, int], multiple: int | tuple[int, ...]) -> tuple[int, int]:
    """Return the window of standard shifts: about three quarters of the image, in round numbers.

    Examples:
        >>> default_window((256, 256), 1), default_window((32, 32), 1)
        ((192, 192), (24, 24))
    """

    def side(pixels: int, multiple: int) -> int:
        step = math.lcm(multiple, 32 if pixels >= 128 else 8 if pixels >= 16 else 1)
        kept = pixels * 3 // 4 // step * step or pixels * 3 // 4 // multiple * multiple
        return kept or pixels

    rows, columns = (multiple, multiple) if isinstance(multiple, int) else multiple
    return side(size[0], rows), side(size[1], columns)


def _resolve(
    shifts: Shifts | None, shift_set: ShiftSet, size: tuple[int, int], seed: int
) -> tuple[Offsets, ...]:
    """Return the shifts without (0, 0), in order; circular ones up to half the size."""
    kind, window = shift_set.kind, shift_set.window
    rows, columns = ranges = shift_set.ranges(size)
    if shifts is None and kind == "standard":
        offsets = {(dy, dx) for dy, dx in ALL_MOVES if dy in rows and dx in columns}
    elif shifts is None or isinstance(shifts, str):
        if shifts not in (None, "all"):
            raise ValueError(f"audit: shifts must be 'all', a number or a list, got {shifts!r}.")
        offsets = {(dy, dx) for dy in rows for dx in columns}
    elif isinstance(shifts, Sequence | Tensor):
        offsets = {_offsets(one, ranges, shift_set) for one in shifts}
    else:
        check_positive("audit", shifts=shifts)
        generator, width = torch.Generator().manual_seed(seed), len(columns)
        drawn = torch.randperm(len(rows) * width, generator=generator)[: shifts + 1].tolist()
        pairs = [(rows[k // width], columns[k % width]) for k in drawn]
        offsets = set([pair for pair in pairs if pair != (0, 0)][:shifts])
    offsets.discard((0, 0))
    if not offsets:
        raise ValueError(
            f"audit: no shift to compare with the unshifted image: images of size {size} seen"
            f" through {window} by {kind} shifts, shifts={shifts!r}. Use larger images, a smaller"
            " window or other shifts."
        )
    return tuple(sorted(offsets))


def _range(kind: str, pixels: int, window: int) -> range:
    if kind == "circular":
        return range(-(pixels // 2), pixels - pixels // 2)
    room = pixels - window
    return range(room // 2 - room, room // 2 + 1)


def _offsets(given: Any, ranges: list[range], shift_set: ShiftSet) -> Offsets:
    pair = tuple(int(v) for v in given) if isinstance(given, Sequence | Tensor) else ()
    if len(pair) != 2:
        raise ValueError(f"audit: every shift must be a pair (dy, dx), got {given!r}.")
    stays = [axis for axis in (0, 1) if pair[axis] and not shift_set.wraps[axis]]
    if stays:
        raise ValueError(
            f"audit: the shift {pair} moves images along axis {2 + stays[0]}, which does not wrap"
            " in this network. Leave it out, or pass wraps=(True, True)."
        )
    if shift_set.kind == "circular":
        dy, dx = (r.start + (v - r.start) % len(r) for v, r in zip(pair, ranges, strict=True))
        return dy, dx
    if any(v not in r for v, r in zip(pair, ranges, strict=True)):
        spans = " and ".join(f"{r.start}..{r.stop - 1}" for r in ranges)
        raise ValueError(
            f"audit: the standard shift {pair} moves the window out of the image; allowed: {spans}."
            " Use larger images or a smaller window."
        )
    return pair[0], pair[1]
