"""Results of an audit: plain numbers, and a few pictures for the report."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trueshift.audit.layers import LayerError
from trueshift.audit.margins import Choice, Margin
from trueshift.audit.moves import Move, differences
from trueshift.audit.selection import Selection
from trueshift.audit.shifting import BOTH, Offsets, Wraps

FORMAT, FORMAT_VERSION = "trueshift-audit", 1
BREAKS = 1e-4  # a relative error that rounding in float32 does not reach


@dataclass(frozen=True)
class Spread:
    """Accuracy over the shifts, as fractions.

    Attributes:
        unshifted: Of the images as they are.
        worst: At the worst shift.
        mean: Over all shifts.
        best: At the best shift.
    """

    unshifted: float
    worst: float
    mean: float
    best: float


@dataclass(frozen=True)
class Measurement:
    """One kind of shift, every shifted image compared with the unshifted one.

    Attributes:
        kind: ``"circular"`` or ``"standard"``.
        window: Size of what the network saw, (height, width).
        shifts: The shifts (dy, dx) that were compared, without (0, 0).
        shares: Consistency of every shift: share of equal labels, over images (and pixels).
        consistency: The mean of ``shares``.
        interval: Wilson interval of it at 95 %; the samples are the images, as the shifts of one
            image are not independent.
        worst_shift: The shift of the lowest share.
        accuracy: Over the shifts; None without labels. For masks, of pixels.
        largest_change: Largest difference of any output to the unshifted image's.
        median_change: Median over pairs (image, shift) of the largest difference.
        output_scale: Standard deviation of the unshifted outputs, to compare changes with.
        bitwise_share: Share of pairs (image, shift) whose outputs have the same bits.
        image_shares: Consistency of every image.
        wraps: Along which axes images were shifted, (vertical, horizontal).
        moves: Standard shifts by exactly 1, 2, 4, ... pixels along both axes, where measured.
        neighbours: Pictures that say the same in all nine frames within one pixel.
    """

    kind: str
    window: tuple[int, int]
    shifts: tuple[Offsets, ...]
    shares: tuple[float, ...]
    consistency: float
    interval: tuple[float, float]
    worst_shift: Offsets
    accuracy: Spread | None
    largest_change: float
    median_change: float
    output_scale: float
    bitwise_share: float
    image_shares: tuple[float, ...]
    wraps: Wraps = BOTH
    moves: tuple[Move, ...] = ()
    neighbours: Move | None = None

    @property
    def bitwise_equal(self) -> bool:
        """Whether every output of a shifted image has the bits of the unshifted one's."""
        return self.bitwise_share == 1

    @property
    def only_rounds(self) -> bool:
        """Whether outputs of shifted images differ by no more than rounding in float32."""
        return self.largest_change <= BREAKS * self.output_scale

    def moves_by_name(self) -> dict[str, Move]:
        """Return :attr:`neighbours` as "all nine" and :attr:`moves` as "1 px", "2 px", ..."""
        near = {} if self.neighbours is None else {"all nine": self.neighbours}
        return near | {f"{move.distance} px": move for move in self.moves}

    def heat_map(self) -> tuple[list[int], list[int], Tensor]:
        """Return the rows dy, the columns dx and the shares ``(rows, columns)``.

        A shift that was not measured is NaN; no shift at all is 1.
        """
        known = {(0, 0): 1.0, **dict(zip(self.shifts, self.shares, strict=True))}
        rows = list(range(min(dy for dy, _ in known), max(dy for dy, _ in known) + 1))
        columns = list(range(min(dx for _, dx in known), max(dx for _, dx in known) + 1))
        grid = torch.full((len(rows), len(columns)), math.nan, dtype=torch.float64)
        for (dy, dx), share in known.items():
            grid[dy - rows[0], dx - columns[0]] = share
        return rows, columns, grid


@dataclass(frozen=True)
class Example:
    """An image and what the network says of it at every shift of ``AuditResult.view``.

    Attributes:
        index: Which of the images.
        picture: What a person sees, uint8 ``(3, H, W)``; the whole image, not the window.
        target: Its label, if labels were given.
        consistency: Share of shifts (and pixels) with the unshifted label.
        labels: int64 ``(V,)``, or masks ``(V, h, w)`` as the network gave them, still shifted.
        confidences: Probability of the label, ``(V,)``; for masks the mean over pixels.
        windows: Top, left, height and width of the windows that an anchored classifier chose in its
            frames, int64 ``(V, K, 4)``; None for others.
    """

    index: int
    picture: Tensor
    target: int | None
    consistency: float
    labels: Tensor
    confidences: Tensor
    windows: Tensor | None = None


@dataclass(frozen=True)
class AuditResult:
    """All numbers of an audit; fractions, never percent.

    Attributes:
        name: The network.
        task: ``"classification"`` or ``"segmentation"``.
        num_images: How many images.
        image_shape: ``(C, H, W)`` of every image.
        measurements: One for each kind of shift.
        layers: Equivariance error of every module, in the order of the calls.
        layer_shifts: The shifts that ``layers`` was measured at.
        margins: How close every selector came to a tie.
        choices: What every selector saw of the first example and chose.
        selection: Whether learned selectors choose, and what that is worth; None without them.
        examples: Images with predictions at every shift of ``view``, the least consistent first.
        view: The shifts (dy, dx) of the examples.
        class_names: Names of the labels, if known.
        images_from: Where the images come from, in words.
        device: Where the network ran.
        dtype: Type of its inputs.
        batch_size: Images per call.
        seconds: Time taken.
        versions: Versions of what computed this.
    """

    name: str
    task: str
    num_images: int
    image_shape: tuple[int, int, int]
    measurements: tuple[Measurement, ...]
    layers: tuple[LayerError, ...]
    layer_shifts: tuple[Offsets, ...]
    margins: tuple[Margin, ...]
    choices: tuple[Choice, ...]
    selection: Selection | None
    examples: tuple[Example, ...]
    view: tuple[Offsets, ...]
    class_names: tuple[str, ...] | None
    images_from: str
    device: str
    dtype: str
    batch_size: int
    seconds: float
    versions: dict[str, str]

    @property
    def consistency(self) -> float:
        """The lowest consistency of all kinds of shifts that were measured."""
        return min(m.consistency for m in self.measurements)

    @property
    def bitwise_equal(self) -> bool:
        """Whether no shift of any kind changed a bit of any output."""
        return all(m.bitwise_equal for m in self.measurements)

    @property
    def only_rounds(self) -> bool:
        """Whether no shift of any kind changed outputs by more than rounding in float32 does."""
        return all(m.only_rounds for m in self.measurements)

    @property
    def first_break(self) -> LayerError | None:
        """The first module whose output is not the shifted one; None if nothing breaks."""
        broken = (layer for layer in self.layers if layer.error > BREAKS)
        return None if self.only_rounds else next(broken, None)

    @property
    def largest_increase(self) -> LayerError | None:
        """The module that adds most to the error of its input; None if nothing breaks."""
        worst = max(self.layers, key=lambda layer: layer.added, default=None)
        breaks = worst is not None and worst.added > BREAKS and not self.only_rounds
        return worst if breaks else None

    def to_dict(self) -> dict[str, Any]:
        """Return everything but pictures and masks as plain values, ready for JSON."""
        plain = {
            field.name: _plain(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if field.name not in ("examples", "view", "choices")
        }
        first, most = self.first_break, self.largest_increase
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "consistency": self.consistency,
            "bitwise_equal": self.bitwise_equal,
            "first_break": None if first is None else first.name,
            "largest_increase": None if most is None else most.name,
            "worst_images": [
                {"index": e.index, "consistency": e.consistency, "target": e.target}
                for e in self.examples
            ],
            **plain,
        }

    def __str__(self) -> str:
        from trueshift.report.words import summary_lines

        lines = summary_lines(self)
        return "\n".join(lines)

    def to_json(self, path: str | os.PathLike[str], other: AuditResult | None = None) -> Path:
        """Write the numbers to a JSON file and return its path.

        Args:
            path: File to write.
            other: The audit of a second network, under the key ``against``; by how much it does
                better on frames that move is under ``differences``.
        """
        path = Path(path)
        if not path.parent.is_dir():
            raise FileNotFoundError(f"audit: no folder {path.parent} to write {path.name} to.")
        numbers = self.to_dict()
        if other is not None:
            numbers["against"] = other.to_dict()
            for a, b in itertools.product(self.measurements, other.measurements):
                if a.kind == b.kind == "standard":
                    gains = differences(a.moves_by_name(), b.moves_by_name())
                    numbers["differences"] = _plain(gains)
        path.write_text(json.dumps(numbers, indent=1, allow_nan=False) + "\n")
        return path

    def to_html(self, path: str | os.PathLike[str], other: AuditResult | None = None) -> Path:
        """Write the report, one HTML file that needs nothing else, and return its path.

        Args:
            path: File to write.
            other: The audit of a second network on the same images, to compare with.
        """
        # By name: `report` imports this package, and needs jinja2.
        from trueshift.report.html import write_html

        written: Path = write_html(self, path, other)
        return written


def _plain(value: Any) -> Any:
    """Turn dataclasses and tuples into what JSON has; JSON has no infinity."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
