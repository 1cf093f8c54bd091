"""The quickstart's table and pictures."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trueshift import models
from trueshift.audit import AuditResult, audit
from trueshift.data import SHAPE_NAMES, Shapes, make_shapes
from trueshift.report.html import write_html
from trueshift.report.pictures import Curve, Prediction, curves_picture, shifts_picture
from trueshift.shifts import circular_shift

TITLES = {
    "baseline": "Baseline (stride)",
    "lpf_tri3": "LPF Tri-3",
    "aps": "APS",
    "ddac_adapt3": "DDAC Adapt-3",
    "lps": "LPS",
    "lps_tri3": "LPS Tri-3",
}
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


def table_rows(results: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return the rows of the table as text, in percent."""
    return [_cells(name, found) for name, found in results.items()]


def write_table(results: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Write the table as ``table.md`` and ``table.json``.

    Args:
        results: Row name to what its ``results.json`` holds.
        folder: Where to write.
    """
    rows = [HEADS, ("---",) * len(HEADS), *table_rows(results)]
    text = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    (folder / "table.md").write_text(text + "\n")
    kept = {
        name: {key: found[key] for key in ("row", "metrics", "parameters", "time", "ms_per_image")}
        for name, found in results.items()
    }
    (folder / "table.json").write_text(json.dumps(kept, indent=2) + "\n")


def write_pictures(folder: Path, names: list[str], seed: int = 0) -> list[Path]:
    """Draw the training curves, and one test image under shifts with every row's prediction.

    Args:
        folder: The folder of the run.
        names: Its rows.
        seed: Seed of the image.

    Returns:
        The pictures.
    """
    curves = [Curve(TITLES[name], *_accuracies(folder / name / "metrics.csv")) for name in names]
    found = [curves_picture(curves, folder / "curves.png")]
    networks = {TITLES[n]: models.load(folder / n / "network.safetensors") for n in names}
    image, label, predictions = _flickering(networks, seed)
    title = f"a {SHAPE_NAMES[label]}, moved pixel by pixel"
    found.append(shifts_picture(image, title, predictions, folder / "shifts.png"))
    return found


def write_report(folder: Path, seed: int = 0, num_images: int = 40, num_shifts: int = 64) -> Path:
    """Audit the baseline and LPS under shifts and write one HTML file that compares them.

    Args:
        folder: The folder of the run.
        seed: Seed of the images.
        num_images: How many images to shift.
        num_shifts: How many shifts of each.

    Returns:
        The report.
    """
    pictures, labels, _ = make_shapes(num_images, 32, seed + 1_000)
    images, found = _normal(pictures), list[AuditResult]()
    examples: int | list[int] = 4
    for name in ("baseline", "lps"):
        network = models.load(folder / name / "network.safetensors")
        found.append(
            audit(
                network,
                images,
                labels,
                num_shifts,
                examples=examples,
                seed=seed,
                name=TITLES[name],
                class_names=SHAPE_NAMES,
                images_from=f"{num_images} built-in pictures that were not trained on",
            )
        )
        examples = [example.index for example in found[0].examples]
    return write_html(found[0], folder / "report.html", found[1])


def _normal(pictures: torch.Tensor) -> torch.Tensor:
    """Bring pictures ``(B, 3, H, W)``, uint8, to what the networks were trained on."""
    mean = torch.tensor(Shapes.mean).view(3, 1, 1)
    std = torch.tensor(Shapes.std).view(3, 1, 1)
    return (pictures / 255 - mean) / std


def _flickering(
    networks: Mapping[str, torch.nn.Module], seed: int, num_shifts: int = 16
) -> tuple[torch.Tensor, int, dict[str, list[Prediction]]]:
    """Find a test image on which the first network changes its mind, and all predictions on it."""
    images, labels, _ = make_shapes(64, 32, seed + 1_000)
    first = next(iter(networks.values()))
    changes = [len({p.label for p in _path(first, image, num_shifts)}) for image in images]
    chosen = int(torch.tensor(changes).argmax())
    predictions = {
        title: _path(network, images[chosen], num_shifts) for title, network in networks.items()
    }
    return images[chosen], int(labels[chosen]), predictions


def _path(network: torch.nn.Module, image: torch.Tensor, num_shifts: int) -> list[Prediction]:
    """Predict an image that moves along the diagonal."""
    normal = _normal(image)[None]
    moved = torch.cat([circular_shift(normal, i, i) for i in range(num_shifts)])
    with torch.inference_mode():
        confidences, found = network.eval()(moved).softmax(1).max(1)
    pairs = zip(found.tolist(), confidences.tolist(), strict=True)
    return [Prediction(SHAPE_NAMES[label], confidence) for label, confidence in pairs]


def _accuracies(path: Path) -> tuple[list[float], list[float]]:
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("val/accuracy")]
    return [int(row["epoch"]) + 1.0 for row in rows], [float(row["val/accuracy"]) for row in rows]


def _cells(name: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    metrics, timing = found["metrics"], found["time"]
    return (
        TITLES[name],
        f"{metrics['accuracy']:.1%}",
        f"{metrics['shifted_accuracy']:.1%}",
        f"{metrics['circular_consistency']:.1%}",
        "yes" if metrics["all_bitwise_equal"] else "no",
        f"{found['parameters']['total']:,}",
        f"{found['ms_per_image']:.2f}",
        f"{timing['train_seconds']:.0f}",
    )
