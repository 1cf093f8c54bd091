"""Where windows may lie in a frame: a lattice that the strongest point of the frame fixes.

Along each axis a window of ``w`` pixels has ``f - w + 1`` places in a frame of ``f``. The strongest
point, at position ``a``, allows those places that are ``a`` modulo the spacing ``m``. The ``n`` of
them that lie nearest the centre are taken: exactly one in each of ``n`` neighbouring runs of ``m``
places. When the content moves, the lattice moves along; the windows stay on the same content until
one of them leaves its run and re-enters at the other end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Places:
    """The admissible places of windows in frames of one size.

    Args:
        frame: Size of the frames along each axis.
        window: Size of the windows along each axis.
        spacing: Distance ``m`` of the lattice along each axis.
        counts: Number of windows ``n`` along each axis.
    """

    frame: tuple[int, ...]
    window: tuple[int, ...]
    spacing: tuple[int, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if any(w > f for w, f in zip(self.window, self.frame, strict=True)):
            raise ValueError(
                f"anchor: windows of {self.window} do not fit into frames of {self.frame}."
                " Pass a smaller window, or larger frames."
            )
        axes = zip(self.room, self.spacing, self.counts, strict=True)
        if any(m * n > room for room, m, n in axes):
            most = tuple(room // n for room, n in zip(self.room, self.counts, strict=True))
            least = tuple(
                w + m * n - 1
                for w, m, n in zip(self.window, self.spacing, self.counts, strict=True)
            )
            advice = f"modulus={most}, " if min(most) > 0 else ""
            raise ValueError(
                f"anchor: windows of {self.window} have {self.room} places in frames of"
                f" {self.frame}, too few for {self.counts} windows at a modulus of {self.spacing}."
                f" Pass {advice}fewer anchors, or frames of at least {least}."
            )

    @property
    def room(self) -> tuple[int, ...]:
        """Number of places along each axis."""
        return tuple(f - w + 1 for f, w in zip(self.frame, self.window, strict=True))

    @property
    def start(self) -> tuple[int, ...]:
        """First place that is used: the runs lie around the centre."""
        axes = zip(self.room, self.spacing, self.counts, strict=True)
        return tuple((room - m * n) // 2 for room, m, n in axes)

    @property
    def middle(self) -> tuple[int, ...]:
        """Residues that put the windows around the centre of the frame."""
        axes = zip(self.room, self.spacing, self.counts, self.start, strict=True)
        return tuple((room - 1) // 2 - (n - 1) * m // 2 - start for room, m, n, start in axes)

    def along(self, axis: int, residues: Tensor) -> Tensor:
        """Return the corners along one axis: ``(B, n)``, from residues ``(B, dim)``."""
        steps = torch.arange(self.counts[axis], device=residues.device) * self.spacing[axis]
        return residues[:, axis, None] + steps + self.start[axis]

    def corners(self, residues: Tensor) -> Tensor:
        """Return the corners of all windows, row-major: ``(B, K, dim)``."""
        return grid([self.along(axis, residues) for axis in range(len(self.frame))])


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
