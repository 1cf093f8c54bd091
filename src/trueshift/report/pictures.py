"""Pictures of results, drawn with matplotlib."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from trueshift._files import check_parent
from trueshift.shifts import circular_shift

_COLOURS = ("#6b7280", "#0ea5e9", "#f59e0b", "#10b981", "#ef4444", "#7c3aed")


class Curve(NamedTuple):
    """Accuracy over epochs, as a fraction."""

    title: str
    epochs: Sequence[float]
    accuracy: Sequence[float]


class Prediction(NamedTuple):
    """A label and how sure the network is of it."""

    label: str
    confidence: float


def curves_picture(curves: Sequence[Curve], path: Path) -> Path:
    """Draw accuracy over epochs.

    Args:
        curves: One per network.
        path: Picture to write; it is returned.
    """
    figure, axes = _figure(7, 4)
    for curve, colour in zip(curves, itertools.cycle(_COLOURS), strict=False):
        percent = [100 * value for value in curve.accuracy]
        axes.plot(curve.epochs, percent, label=curve.title, color=colour, marker=".")
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend()
    return save_figure(figure, path)


def shifts_picture(
    image: Tensor, title: str, predictions: Mapping[str, Sequence[Prediction]], path: Path
) -> Path:
    """Draw one image at every shift, and below it each network's prediction and confidence.

    A cell is coloured where the label is not that of the unshifted image.

    Args:
        image: ``(3, H, W)``, uint8.
        title: What the image shows.
        predictions: Network to its predictions for the image moved by 0, 1, 2, ... pixels.
        path: Picture to write; it is returned.
    """
    num_shifts = len(next(iter(predictions.values())))
    rows = len(predictions)
    figure, axes = _figure(2 + num_shifts * 0.75, 1.6 + 0.5 * rows)
    size = image.shape[-1]
    for i in range(num_shifts):
        moved = circular_shift(image[None], i, i)[0].permute(1, 2, 0).numpy()
        axes.imshow(moved, extent=(i + 0.04, i + 0.96, rows + 0.1, rows + 1.1), aspect="auto")
    for row, (name, under_shifts) in enumerate(predictions.items()):
        y = rows - 1 - row
        axes.text(-0.15, y + 0.5, name, ha="right", va="center", fontsize=9)
        for i, one in enumerate(under_shifts):
            _cell(axes, i, y, one, changed=one.label != under_shifts[0].label)
    axes.set_xlim(-3, num_shifts)
    axes.set_ylim(0, rows + 1.1)
    axes.set_axis_off()
    axes.set_title(f"{title} ({size} px); red: another label than at the start", fontsize=10)
    return save_figure(figure, path)


def _cell(axes: Any, x: float, y: float, one: Prediction, changed: bool) -> None:
    from matplotlib.patches import Rectangle

    face = "#fecaca" if changed else "#dcfce7"
    axes.add_patch(Rectangle((x + 0.04, y + 0.06), 0.92, 0.88, facecolor=face))
    axes.text(x + 0.5, y + 0.62, one.label, ha="center", va="center", fontsize=6)
    axes.text(x + 0.5, y + 0.3, f"{one.confidence:.0%}", ha="center", va="center", fontsize=6)


def picture_grid(rows: int, columns: int, size: float) -> tuple[Any, list[list[Any]]]:
    """Make a figure of panels without ticks.

    Args:
        rows: Panels from top to bottom.
        columns: Panels from left to right.
        size: Width and height of a panel in inches.

    Returns:
        The figure and its panels, row by row.
    """
    figure = _empty(max(columns * size + 0.6, 2), rows * size + 0.3)
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel in axes.flat:
        panel.set_xticks([])
        panel.set_yticks([])
    return figure, [list(row) for row in axes]


def save_figure(figure: Any, path: str | os.PathLike[str]) -> Path:
    """Write a figure to a folder that exists, and return its path."""
    path = Path(path)
    check_parent(path)
    figure.savefig(path, dpi=150)
    return path


def _figure(width: float, height: float) -> tuple[Any, Any]:
    figure = _empty(width, height)
    return figure, figure.add_subplot()


def _empty(width: float, height: float) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('figures need matplotlib: pip install "trueshift[report]".') from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
