"""Every number of the paper's tables, as printed there, and which results of ours belong to it.

"Learnable Polyphase Sampling for Shift Invariant and Equivariant Convolutional Networks", NeurIPS
2022. Fractions are in percent, as in the paper; times in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        method: Its name in the paper.
        antialias: The filter's name in the paper, or ``"-"``.
        network: The network's name in the paper.
        key: What a result has in its ``row`` if it belongs here; spec fields by their own names.
        recipe: The recipe that trains it, below ``recipes/``, without suffix.
        numbers: Metric name to the paper's value, or (value, standard deviation).
    """

    method: str
    antialias: str
    network: str
    key: Mapping[str, Any]
    recipe: str | None = None
    numbers: Mapping[str, float | tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table of the paper, or one of our own that is like it.

    Attributes:
        number: Its number there; ``None`` for our own, whose rows have no numbers of the paper.
        caption: What it shows.
        metrics: Metric name in ``results.json`` to the heading of the column.
        rows: Its rows, in the paper's order.
        not_fractions: Metrics that are printed as they are, not in percent.
    """

    number: str | None
    caption: str
    metrics: Mapping[str, str]
    rows: tuple[Row, ...]
    not_fractions: tuple[str, ...] = ()

    def has_paper(self, metric: str) -> bool:
        """Whether the paper gives numbers for a column."""
        return any(metric in row.numbers for row in self.rows)


FILTERS = {"-": None, "Rect-2": "rect2", "Tri-3": "tri3", "Bin-5": "bin5", "Adapt-3": "adapt3"}
METHODS = {
    "Baseline": "stride",
    "DeepLabV3+": "stride",
    "LPF": "stride",
    "DDAC": "stride",
    "DDAC*": "stride",
    "APS": "aps",
    "LPS": "lps",
    "LPD only": "lps",
    "LPS (softmax)": "lps",
}
NETWORKS = {
    "ResNet-18": "resnet18",
    "ResNet-50": "resnet50",
    "ResNet-101": "resnet101",
    "DeepLabV3+ ResNet-18": "deeplabv3plus_resnet18",
    "DeepLabV3+ ResNet-101": "deeplabv3plus_resnet101",
    "U-Net": "unet",
}


_RECIPES = {
    "Baseline": "stride",
    "DeepLabV3+": "stride",
    "DDAC*": "ddac",
    "LPD only": "lpd_only",
    "LPS (softmax)": "lps_softmax",
}


def _row(
    folder: str, metrics: Mapping[str, str], method: str, antialias: str, network: str, *values: Any
) -> Row:
    data, _, setting = folder.partition("-")
    builder, filter_name = NETWORKS[network], FILTERS[antialias]
    key: dict[str, Any] = {
        "data": "vocsegmentation" if data == "voc" else data,
        "network": builder,
        "method": METHODS[method],
        "antialias": filter_name,
        "padding_mode": "zeros" if setting == "standard" else "circular",
    }
    if data == "cifar10":
        key["train_rule"] = "softmax" if method == "LPS (softmax)" else "gumbel"
    if data == "voc" and method in ("LPD only", "LPS", "APS"):
        key["up"] = "polyphase" if method == "LPS" else "linear"
    parts = (builder, setting, _RECIPES.get(method, method.lower()), filter_name)
    recipe = f"{data}/" + "_".join(part for part in parts if part)
    numbers = dict(zip(metrics, values, strict=True))
    return Row(method, antialias, network, key, recipe, numbers)


def _table(
    number: str, folder: str, caption: str, metrics: Mapping[str, str], *rows: tuple[Any, ...]
) -> Table:
    """Build a table; a row is method, filter, network and a value for each metric."""
    return Table(number, caption, metrics, tuple(_row(folder, metrics, *row) for row in rows))


_CIRCULAR = {"accuracy": "Acc.", "circular_consistency": "C-Cons."}
_STANDARD = {"accuracy": "Acc.", "shift_consistency": "S-Cons."}
_HUNDRED = (100.0, 0.0)
_R18, _R50, _R101 = "ResNet-18", "ResNet-50", "ResNet-101"
_DEEPLAB18, _DEEPLAB101 = "DeepLabV3+ ResNet-18", "DeepLabV3+ ResNet-101"

CIFAR10 = _table(
    "1",
    "cifar10",
    "ResNet-18 (CIFAR10) top-1 accuracy and circular shift consistency",
    _CIRCULAR,
    ("Baseline", "-", _R18, (91.44, 0.33), (89.64, 0.39)),
    ("APS", "-", _R18, (94.07, 0.28), _HUNDRED),
    ("LPS", "-", _R18, (94.45, 0.05), _HUNDRED),
    ("LPF", "Rect-2", _R18, (93.1, 0.17), (94.75, 0.43)),
    ("APS", "Rect-2", _R18, (94.38, 0.25), _HUNDRED),
    ("LPS", "Rect-2", _R18, (94.69, 0.06), _HUNDRED),
    ("LPF", "Tri-3", _R18, (93.97, 0.18), (96.74, 0.2)),
    ("APS", "Tri-3", _R18, (94.36, 0.17), _HUNDRED),
    ("LPS", "Tri-3", _R18, (94.8, 0.14), _HUNDRED),
    ("LPF", "Bin-5", _R18, (94.43, 0.15), (98.34, 0.15)),
    ("APS", "Bin-5", _R18, (94.44, 0.19), _HUNDRED),
    ("LPS", "Bin-5", _R18, (94.49, 0.1), _HUNDRED),
    ("DDAC", "Adapt-3", _R18, (93.17, 0.19), (95.13, 0.15)),
    ("APS", "Adapt-3", _R18, (94.42, 0.13), _HUNDRED),
    ("LPS", "Adapt-3", _R18, (94.57, 0.12), _HUNDRED),
    # The ablation of the appendix; its other row is LPS with Tri-3 above.
    ("LPS (softmax)", "Tri-3", _R18, (93.22, 0.13), _HUNDRED),
)

IMAGENET_CIRCULAR = _table(
    "2",
    "imagenet-circular",
    "ResNet-18 top-1 classification accuracy and circular consistency on ImageNet",
    _CIRCULAR,
    ("Baseline", "-", _R18, 64.88, 80.39),
    ("APS", "-", _R18, 67.05, 100.0),
    ("LPS", "-", _R18, 67.39, 100.0),
    ("LPF", "Rect-2", _R18, 67.03, 84.35),
    ("APS", "Rect-2", _R18, 67.6, 100.0),
    ("LPS", "Rect-2", _R18, 68.45, 100.0),
    ("DDAC", "Adapt-3", _R18, 67.6, 77.23),
    ("APS", "Adapt-3", _R18, 69.02, 100.0),
    ("LPS", "Adapt-3", _R18, 69.11, 100.0),
)

IMAGENET_STANDARD = _table(
    "3",
    "imagenet-standard",
    "ResNet-50/101 top-1 classification accuracy and shift consistency on ImageNet",
    _STANDARD,
    ("Baseline", "-", _R50, 76.16, 89.2),
    ("LPF", "Tri-3", _R50, 76.83, 90.91),
    ("LPS", "Tri-3", _R50, 77.14, 91.43),
    ("Baseline", "-", _R101, 77.7, 90.6),
    ("LPF", "Tri-3", _R101, 78.4, 91.6),
    ("LPS", "Tri-3", _R101, 78.51, 91.69),
    ("DDAC", "Adapt-3", _R101, 79.0, 91.8),
    ("DDAC*", "Adapt-3", _R101, 78.64, 91.83),
    ("LPS", "Adapt-3", _R101, 78.8, 92.4),
)

VOC_CIRCULAR = _table(
    "5",
    "voc-circular",
    "Semantic segmentation with circular shifts (ResNet-18 with DeepLabV3+) on PASCAL VOC",
    {"miou": "mIoU", "circular_consistency": "mASCC"},
    ("DeepLabV3+", "-", _DEEPLAB18, 70.03, 95.42),
    ("LPF", "Rect-2", _DEEPLAB18, 71.02, 96.03),
    ("DDAC", "Adapt-3", _DEEPLAB18, 72.28, 95.98),
    ("APS", "Adapt-3", _DEEPLAB18, 72.37, 96.70),
    ("LPD only", "Adapt-3", _DEEPLAB18, 72.47, 96.23),
    ("LPS", "Adapt-3", _DEEPLAB18, 72.37, 100.0),
)

VOC_STANDARD = _table(
    "6",
    "voc-standard",
    "Semantic segmentation with standard shifts (ResNet-101 with DeepLabV3+) on PASCAL VOC",
    {"miou": "mIoU", "shift_consistency": "mASSC"},
    ("DeepLabV3+", "-", _DEEPLAB101, 78.5, 95.5),
    ("LPF", "Tri-3", _DEEPLAB101, 79.4, 95.9),
    ("DDAC", "Adapt-3", _DEEPLAB101, 80.3, 96.3),
    ("DDAC*", "Adapt-3", _DEEPLAB101, 80.31, 97.83),
    ("LPS", "Adapt-3", _DEEPLAB101, 80.43, 97.98),
)


def _table_4(method: str, antialias: str, total: int, pooling: int, *milliseconds: float) -> Row:
    key = {
        "network": NETWORKS[_R101],
        "method": {"LPD": "lps", "APS": "aps", "Default": "stride"}[method],
        "antialias": FILTERS[antialias],
    }
    numbers = {"total": total, "pooling": pooling, "batch_ms": milliseconds}
    return Row(method, antialias, _R101, key, None, numbers)  # type: ignore[arg-type]


# Table 4 holds counts and times of the same five networks.
TABLE_4 = (
    _table_4("LPD", "Tri-3", 42_966_730, 446_080, 83.61, 0.19),
    _table_4("LPD", "Adapt-3", 44_751_034, 2_230_384, 130.69, 0.2),
    _table_4("Default", "Adapt-3", 44_304_954, 1_784_304, 124.69, 0.25),
    _table_4("APS", "Tri-3", 42_520_650, 0, 77.68, 0.22),
    _table_4("Default", "Tri-3", 42_520_650, 0, 68.72, 0.4),
)
PARAMS = Table(
    "4",
    "Trainable parameters of ResNet-101 with 10 classes: all, and those of the pooling layers",
    {"total": "Absolute", "pooling": "Relative"},
    TABLE_4,
)
TIME = Table(
    "4",
    "Inference time of ResNet-101 in ms per batch of 32 images of 224 x 224 x 3",
    {"batch_ms": "Mean (ms)"},
    TABLE_4,
)

TABLES = {
    "cifar10": CIFAR10,
    "imagenet-circular": IMAGENET_CIRCULAR,
    "imagenet-standard": IMAGENET_STANDARD,
    "params": PARAMS,
    "time": TIME,
    "voc-circular": VOC_CIRCULAR,
    "voc-standard": VOC_STANDARD,
}
