"""Frames that a camera moves by exactly so many pixels, picture by picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trueshift.audit.shifting import ALL_MOVES, DISTANCES, NEIGHBOURS, Offsets, diagonal

_DRAWS = 2000  # of the bootstrap


@dataclass(frozen=True)
class Estimate:
    """A mean over pictures and its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def bootstrap(values: Tensor) -> Estimate:
    """Estimate a mean; pictures ``(N,)`` are resampled with replacement.

    Examples:
        >>> bootstrap(torch.tensor([0.5, 0.5]))
        Estimate(mean=0.5, low=0.5, high=0.5)
    """
    values, generator = values.double(), torch.Generator().manual_seed(0)
    drawn = [
        values[torch.randint(len(values), values.shape, generator=generator)].mean()
        for _ in range(_DRAWS)
    ]
    low, high = torch.stack(drawn).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    return Estimate(float(values.mean()), float(low), float(high))


@dataclass(frozen=True)
class Move:
    """What frames say that were moved by ``distance`` pixels, compared with the unmoved one.

    Attributes:
        distance: Pixels along both axes; four frames, or for neighbours all eight within a pixel.
        consistency: Share of frames that keep the label; for neighbours of pictures all of whose
            frames do.
        bitwise_share: The same for the bits of the outputs.
        agreement: The same for the windows of an anchored network; None if there are none.
        accuracy: The same for right labels; None without labels.
        image_shares: ``consistency`` of every picture.
        image_accuracies: ``accuracy`` of every picture.
    """

    distance: int
    consistency: Estimate
    bitwise_share: Estimate
    agreement: Estimate | None
    accuracy: Estimate | None
    image_shares: tuple[float, ...]
    image_accuracies: tuple[float, ...] | None


class MoveTally:
    """Collects what is equal in moved frames.

    Args:
        shifts: All that are measured; only those of :data:`ALL_MOVES` are kept.
        num_images: How many pictures there will be.
    """

    def __init__(self, shifts: tuple[Offsets, ...], num_images: int) -> None:
        self.columns = {s: k for k, s in enumerate(s for s in shifts if s in ALL_MOVES)}
        self.tables: dict[str, Tensor] = {}
        self.shape = (num_images, len(self.columns))

    def add(self, shift: Offsets, indices: range, **values: Tensor | None) -> None:
        """Keep values ``(B,)`` of a few pictures at one shift, by name."""
        if shift not in self.columns:
            return
        for name, value in values.items():
            if value is not None:
                table = self.tables.setdefault(name, torch.zeros(self.shape, dtype=torch.float64))
                table[indices.start : indices.stop, self.columns[shift]] = value.double().cpu()

    def curve(self) -> tuple[Move, ...]:
        """Return the moves of every distance that was measured whole."""
        mean: Callable[[Tensor], Tensor] = lambda table: table.mean(1)  # noqa: E731
        moves = (self._move(d, diagonal(d), mean) for d in DISTANCES)
        return tuple(move for move in moves if move is not None)

    def neighbours(self) -> Move | None:
        """Return whether a picture says the same in all frames within one pixel."""
        return self._move(1, NEIGHBOURS, lambda table: (table.amin(1) == 1).double())

    def _move(
        self, distance: int, shifts: tuple[Offsets, ...], reduce: Callable[[Tensor], Tensor]
    ) -> Move | None:
        if not all(shift in self.columns for shift in shifts):
            return None
        columns = [self.columns[shift] for shift in shifts]
        shares = {name: reduce(table[:, columns]) for name, table in self.tables.items()}
        windows, right = shares.get("windows"), shares.get("right")
        return Move(
            distance,
            bootstrap(shares["same"]),
            bootstrap(shares["bits"]),
            None if windows is None else bootstrap(windows),
            None if right is None else bootstrap(right),
            tuple(shares["same"].tolist()),
            None if right is None else tuple(right.tolist()),
        )


def difference(a: Move, b: Move, what: str = "image_shares") -> Estimate | None:
    """Estimate by how much ``b`` exceeds ``a`` on the same pictures; None if not measured."""
    mine, theirs = getattr(a, what), getattr(b, what)
    return (
        None
        if mine is None or theirs is None
        else bootstrap(torch.tensor(theirs) - torch.tensor(mine))
    )


def differences(a: Mapping[str, Move], b: Mapping[str, Move]) -> dict[str, dict[str, Estimate]]:
    """Estimate by how much ``b`` exceeds ``a`` in what was measured of both, move by move."""
    columns = {"consistency": "image_shares", "accuracy": "image_accuracies"}
    gains = {
        name: {what: difference(a[name], b[name], column) for what, column in columns.items()}
        for name in a
        if name in b
    }
    return {
        name: {what: gain for what, gain in by_measure.items() if gain is not None}
        for name, by_measure in gains.items()
    }
