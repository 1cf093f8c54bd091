"""Every number of the paper's tables, as printed there, and how a result of ours is told to belong.

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
    recipe: str | None
    numbers: Mapping[str, float | tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table of the paper, or one of our own that is like it.

    Attributes:
        number: Its number there; ``None`` for our own, whose rows have no numbers of the paper.
        caption: What it shows.
        metrics: Metric name in ``results.json`` to the heading of the column.
        rows: Its rows, in the paper's order.
    """

    number: str | None
    caption: str
    metrics: Mapping[str, str]
    rows: tuple[Row, ...]

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


def _row(
    folder: str, method: str, antialias: str, network: str, metrics: tuple[str, ...], *values: Any
) -> Row:
    builder, method_name = NETWORKS[network], METHODS[method]
    filter_name = FILTERS[antialias]
    data, _, setting = folder.partition("-")
    key: dict[str, Any] = {
        "data": "vocsegmentation" if data == "voc" else data,
        "network": builder,
        "method": method_name,
        "antialias": filter_name,
        "padding_mode": "zeros" if setting == "standard" else "circular",
    }
    if data == "cifar10":
        key["train_rule"] = "softmax" if method == "LPS (softmax)" else "gumbel"
    if data == "voc" and method in ("LPD only", "LPS", "APS"):
        key["up"] = "polyphase" if method == "LPS" else "linear"
    numbers = dict(zip(metrics, values, strict=True))
    return Row(
        method, antialias, network, key, _recipe(folder, builder, method, filter_name), numbers
    )


def _recipe(folder: str, builder: str, method: str, antialias: str | None) -> str:
    names = {
        "Baseline": "stride",
        "DeepLabV3+": "stride",
        "DDAC*": "ddac",
        "LPD only": "lpd_only",
        "LPS (softmax)": "lps_softmax",
    }
    name = names.get(method, method.lower())
    data, _, setting = folder.partition("-")
    parts = [builder, setting, name, antialias or ""]
    return f"{data}/" + "_".join(part for part in parts if part)


def _rows(
    folder: str, metrics: tuple[str, ...], *rows: tuple[Any, ...], network: str | None = None
) -> tuple[Row, ...]:
    made = []
    for method, antialias, *rest in rows:
        name = network or rest.pop(0)
        made.append(_row(folder, method, antialias, name, metrics, *rest))
    return tuple(made)


_CIRCULAR = ("accuracy", "circular_consistency")
_STANDARD = ("accuracy", "shift_consistency")
_HUNDRED = (100.0, 0.0)

CIFAR10 = Table(
    "1",
    "ResNet-18 (CIFAR10) top-1 accuracy and circular shift consistency",
    {"accuracy": "Acc.", "circular_consistency": "C-Cons."},
    _rows(
        "cifar10",
        _CIRCULAR,
        ("Baseline", "-", (91.44, 0.33), (89.64, 0.39)),
        ("APS", "-", (94.07, 0.28), _HUNDRED),
        ("LPS", "-", (94.45, 0.05), _HUNDRED),
        ("LPF", "Rect-2", (93.1, 0.17), (94.75, 0.43)),
        ("APS", "Rect-2", (94.38, 0.25), _HUNDRED),
        ("LPS", "Rect-2", (94.69, 0.06), _HUNDRED),
        ("LPF", "Tri-3", (93.97, 0.18), (96.74, 0.2)),
        ("APS", "Tri-3", (94.36, 0.17), _HUNDRED),
        ("LPS", "Tri-3", (94.8, 0.14), _HUNDRED),
        ("LPF", "Bin-5", (94.43, 0.15), (98.34, 0.15)),
        ("APS", "Bin-5", (94.44, 0.19), _HUNDRED),
        ("LPS", "Bin-5", (94.49, 0.1), _HUNDRED),
        ("DDAC", "Adapt-3", (93.17, 0.19), (95.13, 0.15)),
        ("APS", "Adapt-3", (94.42, 0.13), _HUNDRED),
        ("LPS", "Adapt-3", (94.57, 0.12), _HUNDRED),
        # The ablation of the appendix; its other row is LPS with Tri-3 above.
        ("LPS (softmax)", "Tri-3", (93.22, 0.13), _HUNDRED),
        network="ResNet-18",
    ),
)

IMAGENET_CIRCULAR = Table(
    "2",
    "ResNet-18 top-1 classification accuracy and circular consistency on ImageNet",
    {"accuracy": "Acc.", "circular_consistency": "C-Cons."},
    _rows(
        "imagenet-circular",
        _CIRCULAR,
        ("Baseline", "-", 64.88, 80.39),
        ("APS", "-", 67.05, 100.0),
        ("LPS", "-", 67.39, 100.0),
        ("LPF", "Rect-2", 67.03, 84.35),
        ("APS", "Rect-2", 67.6, 100.0),
        ("LPS", "Rect-2", 68.45, 100.0),
        ("DDAC", "Adapt-3", 67.6, 77.23),
        ("APS", "Adapt-3", 69.02, 100.0),
        ("LPS", "Adapt-3", 69.11, 100.0),
        network="ResNet-18",
    ),
)

IMAGENET_STANDARD = Table(
    "3",
    "ResNet-50/101 top-1 classification accuracy and shift consistency on ImageNet",
    {"accuracy": "Acc.", "shift_consistency": "S-Cons."},
    _rows(
        "imagenet-standard",
        _STANDARD,
        ("Baseline", "-", "ResNet-50", 76.16, 89.2),
        ("LPF", "Tri-3", "ResNet-50", 76.83, 90.91),
        ("LPS", "Tri-3", "ResNet-50", 77.14, 91.43),
        ("Baseline", "-", "ResNet-101", 77.7, 90.6),
        ("LPF", "Tri-3", "ResNet-101", 78.4, 91.6),
        ("LPS", "Tri-3", "ResNet-101", 78.51, 91.69),
        ("DDAC", "Adapt-3", "ResNet-101", 79.0, 91.8),
        ("DDAC*", "Adapt-3", "ResNet-101", 78.64, 91.83),
        ("LPS", "Adapt-3", "ResNet-101", 78.8, 92.4),
    ),
)

VOC_CIRCULAR = Table(
    "5",
    "Semantic segmentation with circular shifts (ResNet-18 with DeepLabV3+) on PASCAL VOC",
    {"miou": "mIoU", "circular_consistency": "mASCC"},
    _rows(
        "voc-circular",
        ("miou", "circular_consistency"),
        ("DeepLabV3+", "-", 70.03, 95.42),
        ("LPF", "Rect-2", 71.02, 96.03),
        ("DDAC", "Adapt-3", 72.28, 95.98),
        ("APS", "Adapt-3", 72.37, 96.70),
        ("LPD only", "Adapt-3", 72.47, 96.23),
        ("LPS", "Adapt-3", 72.37, 100.0),
        network="DeepLabV3+ ResNet-18",
    ),
)

VOC_STANDARD = Table(
    "6",
    "Semantic segmentation with standard shifts (ResNet-101 with DeepLabV3+) on PASCAL VOC",
    {"miou": "mIoU", "shift_consistency": "mASSC"},
    _rows(
        "voc-standard",
        ("miou", "shift_consistency"),
        ("DeepLabV3+", "-", 78.5, 95.5),
        ("LPF", "Tri-3", 79.4, 95.9),
        ("DDAC", "Adapt-3", 80.3, 96.3),
        ("DDAC*", "Adapt-3", 80.31, 97.83),
        ("LPS", "Adapt-3", 80.43, 97.98),
        network="DeepLabV3+ ResNet-101",
    ),
)


def _table_4(*values: tuple[str, str, int, int, float, float]) -> tuple[Row, ...]:
    return tuple(
        Row(
            method,
            antialias,
            "ResNet-101",
            {
                "network": "resnet101",
                "method": {"LPD": "lps", "APS": "aps", "Default": "stride"}[method],
                "antialias": FILTERS[antialias],
            },
            None,
            {"total": total, "pooling": pooling, "batch_ms": (mean, std)},
        )
        for method, antialias, total, pooling, mean, std in values
    )


# Table 4 holds counts and times of the same five networks.
TABLE_4 = _table_4(
    ("LPD", "Tri-3", 42_966_730, 446_080, 83.61, 0.19),
    ("LPD", "Adapt-3", 44_751_034, 2_230_384, 130.69, 0.2),
    ("Default", "Adapt-3", 44_304_954, 1_784_304, 124.69, 0.25),
    ("APS", "Tri-3", 42_520_650, 0, 77.68, 0.22),
    ("Default", "Tri-3", 42_520_650, 0, 68.72, 0.4),
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
