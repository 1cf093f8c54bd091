"""Where windows may lie in a frame: a strong point of the frame fixes the place of each.

Along each axis a window of ``w`` pixels has ``f - w + 1`` places in a frame of ``f``. A point at
position ``a`` puts its window at place ``a`` modulo ``m`` of a run of ``m`` places in the middle.
When the content moves, the window moves along, until it leaves its run and re-enters at the other
end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trueshift._validate import check_positive

Size = int | Sequence[int]
MODULUS = 32  # the total stride of most networks: a jump keeps their grid; see docs/frames.md


def check_sizes(name: str, value: Size) -> int | tuple[int, ...]:
    """Check one positive integer, or one for each axis."""
    several = isinstance(value, list | tuple)
    for number in value if several else [value]:  # type: ignore[union-attr]
        check_positive("anchor", **{name: number})  # type: ignore[arg-type]  # refuses the rest
    return tuple(int(n) for n in value) if several else int(value)  # type: ignore


def per_axis(name: str, value: int | tuple[int, ...], dim: int) -> tuple[int, ...]:
    """Return one size for each of ``dim`` axes."""
    if isinstance(value, int):
        return (value,) * dim
    if len(value) != dim:
        raise ValueError(
            f"anchor: {name} {value} has {len(value)} entries for frames with {dim} spatial axes."
            f" Pass one integer, or {dim}; frames need a batch axis, (B, C, *spatial)."
        )
    return value


@dataclass(frozen=True)
class Line:
    """The places of windows along one axis.

    Args:
        frame: Size of the frame.
        window: Size of the windows.
        modulus: Number ``m`` of places.
        count: Number of windows that one point fixes, ``modulus`` apart: more than one for maps.
    """

    frame: int
    window: int
    modulus: int
    count: int = 1

    @property
    def start(self) -> int:
        """First place that is used: the run lies in the middle."""
        return (self.frame - self.window + 1 - self.modulus * self.count) // 2

    @property
    def middle(self) -> int:
        """Residue that puts the windows around the centre of the frame."""
        return (self.frame - self.window - (self.count - 1) * self.modulus) // 2 - self.start

    def corners(self, residues: Tensor) -> Tensor:
        """Return where the windows begin: ``(*, count)``, from residues ``(*)``."""
        steps = torch.arange(self.count, device=residues.device) * self.modulus
        return residues[..., None] + steps + self.start


def lines(
    frame: Sequence[int], window: Sequence[int], modulus: Sequence[int] | None
) -> tuple[Line, ...]:
    """Return the places along each axis.

    Args:
        frame: Size of the frames along each axis.
        window: Size of the windows along each axis.
        modulus: Along each axis; ``None`` takes :data:`MODULUS`, or as many as there is room for.
    """
    room = [f - w + 1 for f, w in zip(frame, window, strict=True)]
    if min(room) < 1:
        raise ValueError(
            f"anchor: windows of {tuple(window)} do not fit into frames of {tuple(frame)}."
            " Pass a smaller window, or larger frames."
        )
    if modulus is None:
        modulus = [min(MODULUS, r, w) for r, w in zip(room, window, strict=True)]
    if any(m > r for m, r in zip(modulus, room, strict=True)):
        least = tuple(w + m - 1 for w, m in zip(window, modulus, strict=True))
        raise ValueError(
            f"anchor: windows of {tuple(window)} have {tuple(room)} places in frames of"
            f" {tuple(frame)}, fewer than the modulus {tuple(modulus)}. Pass a smaller modulus, or"
            f" frames of at least {least}."
        )
    return tuple(Line(f, w, m) for f, w, m in zip(frame, window, modulus, strict=True))


def residues(
    axes: Sequence[Line], positions: Sequence[Sequence[int]], values: Sequence[float]
) -> list[list[int]]:
    """Residues of points; where no point is above zero, those of central windows."""
    centre = [axis.middle for axis in axes]
    return [
        [at % axis.modulus for at, axis in zip(place, axes, strict=True)] if value > 0 else centre
        for place, value in zip(positions, values, strict=True)
    ]


def central_corner(axes: Sequence[Line], residue: Sequence[int]) -> list[int]:
    """Corner of the window in the middle of each run."""
    return [r + a.start + a.count // 2 * a.modulus for r, a in zip(residue, axes, strict=True)]


def agreement(axes: Sequence[Line], points: Sequence[int], move: Sequence[int]) -> float:
    """Probability that two frames choose the same windows.

    Assumed: the strongest of all points that either frame sees is equally likely to be any of them.
    Both frames choose the same windows if it lies in both and its residue does not wrap around:
    along an axis ``n (1 - d / m)`` of ``n`` points, if ``n`` is a multiple of the modulus ``m``.
    The frames share a fraction ``q`` of their points, so together they have ``2 - q`` times the
    points of one: the probability is the product of ``1 - d / m`` over the axes, over ``2 - q``.

    Args:
        axes: The places of windows.
        points: Number of scored points along each axis.
        move: Pixels between the two frames along each axis.

    Returns:
        The probability, counted for any ``n``. No rule with ``m`` places exceeds the product.
    """
    kept = shared = 1.0
    for axis, step, n in zip(axes, move, points, strict=True):
        d = abs(step)
        kept *= sum(place % axis.modulus >= d for place in range(d, n)) / n
        shared *= max(0, n - d) / n
    return kept / (2 - shared)


def grid(axes: list[Tensor]) -> Tensor:
    """Combine corners along each axis, ``(B, n)`` each, to ``(B, K, dim)`` in row-major order."""
    return torch.stack(torch.broadcast_tensors(*spread(axes)), -1).flatten(1, -2)


def spread(axes: list[Tensor]) -> list[Tensor]:
    """Give values along each axis, ``(B, n)`` each, the axes of a map: ``(B, 1, n)`` and so on."""
    dim = len(axes)
    return [
        value.view(len(value), *[value.shape[1] if i == axis else 1 for i in range(dim)])
        for axis, value in enumerate(axes)
    ]
