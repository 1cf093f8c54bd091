"""What the quickstart writes: a table, pictures and a report."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trueshift import models
from trueshift.audit import audit
from trueshift.data import SHAPE_NAMES, Shapes, make_shapes
from trueshift.quickstart.rows import TITLES
from trueshift.quickstart.run import NETWORK_FILE
from trueshift.report.figures import Curve, Prediction, curves_picture, shifts_picture
from trueshift.report.html import write_html
from trueshift.report.tables import markdown_table
from trueshift.shifts import circular_shift

HEADS = (
    "Method",
    "Accuracy",
    "Accuracy, shifted",
    "C-Cons.",
    "Bitwise equal",
    "Parameters",
    "ms / image",
    "Training s",
)
Results = Mapping[str, Mapping[str, Any]]
_KEPT = ("row", "metrics", "parameters", "time", "ms_per_image")
_UNSEEN = 1_000  # added to the seed of the training pictures


def write_all(results: Results, folder: Path, seed: int) -> list[Path]:
    """Write ``table.md``, ``table.json``, the pictures and the report.

    Args:
        results: Row name to what its ``results.json`` holds.
        folder: The folder of the run.
        seed: Seed of the run; pictures and report show images that were not trained on.

    Returns:
        The pictures and, last, the report.
    """
    (folder / "table.md").write_text(markdown_table(HEADS, table_rows(results)) + "\n")
    kept = {name: {key: row[key] for key in _KEPT} for name, row in results.items()}
    (folder / "table.json").write_text(json.dumps(kept, indent=2) + "\n")
    curves = [Curve(TITLES[name], *_accuracies(folder / name / "metrics.csv")) for name in results]
    networks = {name: models.load(folder / name / NETWORK_FILE) for name in results}
    return [
        curves_picture(curves, folder / "curves.png"),
        _flicker_picture(networks, folder / "shifts.png", seed),
        _report(networks, folder / "report.html", seed),
    ]


def table_rows(results: Results) -> list[tuple[str, ...]]:
    """Return the rows of the table as text, in percent."""
    return [_cells(name, row) for name, row in results.items()]


def _cells(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    metrics = row["metrics"]
    return (
        TITLES[name],
        f"{metrics['accuracy']:.1%}",
        f"{metrics['shifted_accuracy']:.1%}",
        f"{metrics['circular_consistency']:.1%}",
        "yes" if metrics["all_bitwise_equal"] else "no",
        f"{row['parameters']['total']:,}",
        f"{row['ms_per_image']:.2f}",
        f"{row['time']['train_seconds']:.0f}",
    )


def _accuracies(path: Path) -> tuple[list[float], list[float]]:
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("val/accuracy")]
    return [int(row["epoch"]) + 1.0 for row in rows], [float(row["val/accuracy"]) for row in rows]


def _flicker_picture(networks: Mapping[str, nn.Module], path: Path, seed: int) -> Path:
    """Draw the image on which the first network changes its mind most, and all predictions."""
    images, labels, _ = make_shapes(64, 32, seed + _UNSEEN)
    first = next(iter(networks.values()))
    changes = [len({one.label for one in _along_diagonal(first, image)}) for image in images]
    chosen = int(torch.tensor(changes).argmax())
    predictions = {
        TITLES[name]: _along_diagonal(network, images[chosen]) for name, network in networks.items()
    }
    title = f"a {SHAPE_NAMES[int(labels[chosen])]}, moved pixel by pixel"
    return shifts_picture(images[chosen], title, predictions, path)


def _along_diagonal(network: nn.Module, image: Tensor, num_shifts: int = 16) -> list[Prediction]:
    """Predict an image that moves along the diagonal."""
    normal = _normalise(image)[None]
    moved = torch.cat([circular_shift(normal, i, i) for i in range(num_shifts)])
    with torch.inference_mode():
        confidences, labels = network.eval()(moved).softmax(1).max(1)
    pairs = zip(labels.tolist(), confidences.tolist(), strict=True)
    return [Prediction(SHAPE_NAMES[label], confidence) for label, confidence in pairs]


def _report(networks: Mapping[str, nn.Module], path: Path, seed: int) -> Path:
    """Audit the baseline and LPS under shifts and write one HTML file that compares them."""
    pictures, labels, _ = make_shapes(40, 32, seed + _UNSEEN)
    options: dict[str, Any] = {
        "labels": labels,
        "shifts": 64,
        "seed": seed,
        "class_names": SHAPE_NAMES,
        "images_from": f"{len(pictures)} built-in pictures that were not trained on",
    }
    images = _normalise(pictures)
    plain = audit(networks["baseline"], images, name=TITLES["baseline"], **options)
    same = [example.index for example in plain.examples]
    exact = audit(networks["lps"], images, name=TITLES["lps"], examples=same, **options)
    return write_html(plain, path, exact)


def _normalise(pictures: Tensor) -> Tensor:
    """Bring uint8 pictures ``(..., 3, H, W)`` to what the networks were trained on."""
    mean = torch.tensor(Shapes.mean).view(3, 1, 1)
    std = torch.tensor(Shapes.std).view(3, 1, 1)
    return (pictures / 255 - mean) / std
