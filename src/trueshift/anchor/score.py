"""How the anchor of a frame is chosen: a score of every point, whose bits move with the content.

A convolution may round differently at the end of a row than in its middle. The default score uses
nothing but sums of two terms and powers of two, elementwise: every value is the same expression of
the same pixels at every position, so a shifted frame has the shifted score, bit by bit.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trueshift.anchor.places import spread

APART = 13  # pixels along some axis between the points of several windows

# A sum of two pixels that are s apart adds s * s / 4 to the variance of a low-pass filter.
_NARROW = (1, 1, 2, 2)  # variance 2.5, weights 1 2 3 4 3 2 1: a single peak
_WIDER = (4,)  # 4 more, weights 1 2 3 4 4 4 4 4 3 2 1: a standard deviation of 2.5 pixels


class DifferenceOfGaussians(nn.Module):
    """How much a point stands out: |Gaussian of 1.6 px - Gaussian of 2.5 px| of the summed colours.

    Both filters are cascades of two-point averages along each axis, as the module's text explains.

    Shape:
        Frames ``(B, C, *spatial)`` to scores ``(B, *spatial - 10)``: only points whose support
        lies inside the frame. ``score[b, i]`` belongs to the pixel ``i + 5``.
    """

    support = 1 + sum(_NARROW) + sum(_WIDER)

    def forward(self, frames: Tensor) -> Tensor:
        if not frames.dtype.is_floating_point or frames.element_size() < 4:
            frames = frames.float()
        scores = [self._one(frame) for frame in frames.split(1)]  # one stays in the cache
        return torch.cat(scores) if len(scores) > 1 else scores[0]

    def _one(self, frames: Tensor) -> Tensor:
        grey = frames[:, 0]
        for channel in range(1, frames.shape[1]):
            grey = grey + frames[:, channel]
        narrow = smooth(grey, _NARROW)
        wide = smooth(narrow, _WIDER)
        border = sum(_WIDER) // 2
        for axis in range(1, narrow.ndim):
            narrow = narrow.narrow(axis, border, wide.shape[axis])
        dim = frames.ndim - 2
        # Products with powers of two are exact, so that it does not matter when they are taken.
        wide.sub_(narrow, alpha=2 ** (len(_WIDER) * dim))
        return wide.abs_().mul_(0.5 ** (len(_NARROW + _WIDER) * dim))


def smooth(x: Tensor, distances: tuple[int, ...]) -> Tensor:
    """Add pixels ``distance`` apart along every axis, once for each distance."""
    for axis in range(1, x.ndim):
        for distance in distances:
            length = x.shape[axis] - distance
            x = x.narrow(axis, 0, length) + x.narrow(axis, distance, length)
    return x


def peaks(score: Tensor, count: int = 1) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the strongest points of each score, one after the other, :data:`APART` or more apart.

    Only local maxima count, points that no neighbour exceeds: at the border of a frame, the slope
    of a stronger point outside would change with every pixel of motion. So the outermost scores
    serve for comparison only. Of equal points the first in reading order counts, an order that
    moves with the content. Values that are not numbers never count.

    Args:
        score: ``(B, *spatial)``, at least three points along each axis.
        count: How many.

    Yields:
        Positions int64 ``(B, dim)``, counted from the second score along each axis; values
        ``(B,)``, minus infinity where no point is left; and the score ``(B, *spatial)`` outside the
        neighbourhood of the points so far.

    Examples:
        >>> score = torch.tensor([[9.0, 3.0, 1.0, 3.0, 3.0, 0.0]])
        >>> [position.tolist() for position, _, _ in peaks(score)]
        [[[2]]]
    """
    left = score.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    top = None if count == 1 else is_peak(left)
    for number in range(1, count + 1):
        position, value = _strongest(left, top)
        yield position, value, left
        if number == count:
            return
        near = [
            (torch.arange(-1, n - 1, device=score.device) - place[:, None]).abs() < APART
            for n, place in zip(score.shape[1:], position.unbind(1), strict=True)
        ]
        left = left.masked_fill(functools.reduce(torch.logical_and, spread(near)), -torch.inf)


def _strongest(score: Tensor, top: Tensor | None) -> tuple[Tensor, Tensor]:
    """Find the strongest local maximum of each score; ``top`` tells which points are."""
    middle = inner(score)
    if top is not None:
        return _largest(middle.masked_fill(~top, -torch.inf))
    # The largest value has no larger neighbour, unless one of them is an outermost score.
    position, value = _largest(middle)
    border = [(0, size - 1) for size in middle.shape[1:]]
    rows = [  # in Python: quicker than tensors so small
        row
        for row, place in enumerate(position.tolist())
        if any(at in ends for at, ends in zip(place, border, strict=True))
    ]
    if rows:
        position[rows], value[rows] = _strongest(score[rows], is_peak(score[rows]))
    return position, value


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
    for axis in range(1, score.ndim):
        score = score.narrow(axis, 1, score.shape[axis] - 2)
    return score


def _largest(score: Tensor) -> tuple[Tensor, Tensor]:
    """Find the first largest value of each score: its position ``(B, dim)``, and the value."""
    place = list[Tensor]()
    while score.ndim > 2:  # ``amax`` is vectorised, ``max`` is not
        rows = score.flatten(2).amax(2)
        place.append(rows.argmax(1))  # of several, torch promises the first
        first = place[-1].view(-1, *[1] * (score.ndim - 1))
        score = score.take_along_dim(first, 1).squeeze(1)
    value, last = score.max(1)
    return torch.stack([*place, last], 1), value
