"""How safe a choice of windows is: for a frame, and on average."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trueshift.anchor.places import Places, spread
from trueshift.anchor.score import strongest
from trueshift.anchor.windows import residues_of


def slack(places: Places, score: Tensor) -> Tensor:
    """Pixels that the content may move towards lower and higher indices: ``(B, dim, 2)``."""
    position, value = strongest(score)
    residues = residues_of(places, position, value)
    last = residues.new_tensor(score.shape[1:]) - 1
    upper = torch.minimum(residues.new_tensor(places.spacing) - 1 - residues, last - position)
    return torch.stack([residues, upper], -1) * (value > 0)[:, None, None]


def margin(places: Places, score: Tensor) -> Tensor:
    """Share by which the strongest point exceeds any that would choose other windows: ``(B,)``."""
    position, value = strongest(score)
    others = [
        (torch.arange(n, device=score.device) - position[:, axis, None]) % m != 0
        for axis, (n, m) in enumerate(zip(score.shape[1:], places.spacing, strict=True))
    ]
    rivals = torch.zeros_like(score, dtype=torch.bool)
    for other in spread(others):
        rivals |= other
    rival = torch.where(rivals, score.nan_to_num(nan=0.0), 0.0).flatten(1).amax(1)
    return torch.where(value > 0, 1 - rival / value, 0.0)


def agreement(places: Places, points: Sequence[int], move: Sequence[int]) -> float:
    """Probability that two frames choose the same windows.

    Assumed: the strongest of all points that either frame sees is equally likely to be any of them.
    Both frames choose the same windows if it lies in both and its residue does not wrap around:
    along an axis ``n (1 - d / m)`` of ``n`` points, if ``n`` is a multiple of the spacing ``m``.
    The frames share a fraction ``q`` of their points, so together they have ``2 - q`` times the
    points of one: the probability is the product of ``1 - d / m`` over the axes, over ``2 - q``.

    Args:
        places: The places of windows.
        points: Number of scored points along each axis.
        move: Pixels between the two frames along each axis.

    Returns:
        The probability, counted for any ``n``. No rule with ``m`` places exceeds the product.
    """
    kept = shared = 1.0
    for step, n, m in zip(move, points, places.spacing, strict=True):
        d = abs(step)
        kept *= sum(place % m >= d for place in range(d, n)) / n
        shared *= max(0, n - d) / n
    return kept / (2 - shared)
