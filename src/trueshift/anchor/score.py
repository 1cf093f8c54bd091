"""How the anchor of a frame is chosen: a score of every point, whose bits move with the content.

A convolution may round differently at the end of a row than in its middle. The default score uses
nothing but sums of two terms and powers of two, elementwise: every value is the same expression of
the same pixels at every position, so a shifted frame has the shifted score, bit by bit.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trueshift.anchor.places import spread

APART = 13  # pixels along some axis between the points of several windows

# A sum of two pixels that are s apart adds s * s / 4 to the variance of a low-pass filter.
_NARROW = (1, 1, 2, 2)  # variance 2.5, weights 1 2 3 4 3 2 1: a single peak
_WIDER = (4,)  # 4 more, weights 1 2 3 4 4 4 4 4 3 2 1: a standard deviation of 2.5 pixels


class DifferenceOfGaussians(nn.Module):
    """How much a point stands out: |Gaussian of 1.6 px - Gaussian of 2.5 px| of the summed colours.

    Both filters are cascades of two-point sums along each axis, as the module's text explains: with
    ``dim`` axes, scores are ``32 ** dim`` times those of filters that keep the mean.

    Shape:
        Frames ``(B, C, *spatial)`` to scores ``(B, *spatial - 10)``: only points whose support
        lies inside the frame. ``score[b, i]`` belongs to the pixel ``i + 5``.
    """

    support = 1 + sum(_NARROW) + sum(_WIDER)

    def forward(self, frames: Tensor) -> Tensor:
        if not frames.dtype.is_floating_point or frames.element_size() < 4:
            frames = frames.float()
        if len(frames) == 1:
            return self._one(frames[0])[None]
        scores = frames.new_empty(len(frames), *[n - self.support + 1 for n in frames.shape[2:]])
        for score, frame in zip(scores, frames, strict=True):  # one stays in the cache
            score.copy_(self._one(frame))
        return scores

    def _one(self, frame: Tensor) -> Tensor:
        grey = frame[0] + frame[1] if len(frame) > 1 else frame[0]
        for channel in frame[2:]:
            grey += channel
        grey = grey.contiguous()
        # Axes as steps in one long line: sums of neighbours are then sums of contiguous memory.
        # What runs over the end of a row belongs to no point and is left out below.
        narrow = _smooth(grey.view(-1), grey.stride(), _NARROW)
        wide = _smooth(narrow, grey.stride(), _WIDER)
        first = sum(_WIDER) // 2 * sum(grey.stride())  # the middle of the first wide filter
        wide.sub_(narrow[first : first + len(wide)], alpha=2 ** (len(_WIDER) * grey.ndim)).abs_()
        return wide.as_strided([n - self.support + 1 for n in grey.shape], grey.stride())


def _smooth(line: Tensor, steps: Sequence[int], distances: Sequence[int]) -> Tensor:
    """Add points ``distance`` apart along every axis, once for each distance."""
    for step, distance in itertools.product(steps, distances):
        length = len(line) - step * distance
        line = line.narrow(0, 0, length) + line.narrow(0, step * distance, length)
    return line


class Points(NamedTuple):
    """One point of each score, in Python: for so few numbers, tensors are slow.

    Attributes:
        positions: Counted from the second score along each axis.
        values: The scores there; minus infinity where no point is left.
        left: The scores outside the neighbourhood of the points before, ``(B, *spatial)``.
    """

    positions: list[list[int]]
    values: list[float]
    left: Tensor


def peaks(score: Tensor, count: int = 1) -> Iterator[Points]:
    """Yield the strongest points of each score, one after the other, :data:`APART` or more apart.

    Only local maxima count, points that no neighbour exceeds: at the border of a frame, the slope
    of a stronger point outside would change with every pixel of motion. So the outermost scores
    serve for comparison only. Of equal points the first in reading order counts, an order that
    moves with the content. Values that are not numbers never count.

    Args:
        score: ``(B, *spatial)``, at least three points along each axis.
        count: How many.

    Examples:
        >>> score = torch.tensor([[9.0, 3.0, 1.0, 3.0, 3.0, 0.0]])
        >>> [points.positions for points in peaks(score)]
        [[[2]]]
    """
    left, top = score, None
    if count > 1:
        left = ordered(score)
        top = is_peak(left)
    for number in range(1, count + 1):
        positions, values = _strongest(left, top)
        yield Points(positions, values, left)
        if number < count:
            near = [place.abs() < APART for place in relative(score, positions)]
            left = left.masked_fill(functools.reduce(torch.logical_and, spread(near)), -torch.inf)


def relative(score: Tensor, positions: list[list[int]]) -> list[Tensor]:
    """Coordinates of scores along each axis, ``(B, n)``, counted from the positions of points."""
    sizes, origins = score.shape[1:], torch.tensor(positions, device=score.device)
    origins = origins.view(len(score), len(sizes))
    return [
        torch.arange(-1, n - 1, device=score.device) - origin[:, None]
        for n, origin in zip(sizes, origins.unbind(1), strict=True)
    ]


def ordered(score: Tensor) -> Tensor:
    """Replace what is not a number by less than any number."""
    return score.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def _strongest(score: Tensor, top: Tensor | None) -> tuple[list[list[int]], list[float]]:
    """Find the strongest local maximum of each score; ``top`` tells which points are."""
    middle = inner(score)
    if top is not None:
        return _largest(middle.masked_fill(~top, -torch.inf))
    # The largest value has no larger neighbour, unless one of them is an outermost score.
    positions, values = _largest(middle)
    border = [(0, size - 1) for size in middle.shape[1:]]
    for row, (place, value) in enumerate(zip(positions, values, strict=True)):
        if math.isnan(value) or any(at in ends for at, ends in zip(place, border, strict=True)):
            left = ordered(score[row : row + 1])
            (positions[row],), (values[row],) = _strongest(left, is_peak(left))
    return positions, values


def is_peak(score: Tensor) -> Tensor:
    """Tell which inner points no neighbour exceeds, diagonal ones included."""
    largest = score
    for axis in range(1, score.ndim):
        length = largest.shape[axis] - 2
        first, middle, last = (largest.narrow(axis, start, length) for start in range(3))
        largest = torch.maximum(torch.maximum(first, middle), last)
    return inner(score) >= largest


def inner(score: Tensor) -> Tensor:
    """Leave out the outermost scores."""
    return score[(slice(None), *[slice(1, -1)] * (score.ndim - 1))]


def _largest(score: Tensor) -> tuple[list[list[int]], list[float]]:
    """Find the first largest value of each score: its position, and the value.

    Where there are values that are not numbers, the value found is none either.
    """
    if len(score) == 0:
        return [], []
    positions = list[list[int]]()
    while score.ndim > 2:  # ``amax`` is vectorised, ``max`` is not
        rows = score.amax(tuple(range(2, score.ndim))).argmax(1).tolist()  # the first of several
        score = torch.stack([image[row] for image, row in zip(score, rows, strict=True)])
        positions.append(rows)
    positions.append(score.argmax(1).tolist())
    return [list(place) for place in zip(*positions, strict=True)], score.amax(1).tolist()
