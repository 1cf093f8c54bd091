"""Consistency of predictions under shifts: torchmetrics classes over pure functions.

The classes are imported when first asked for: the functions need torch only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trueshift.metrics.agreement import agreement, predicted_labels, wilson_interval
from trueshift.metrics.protocol import random_pairs

if TYPE_CHECKING:
    from trueshift.metrics.consistency import (
        CircularConsistency,
        MaskCircularConsistency,
        MaskShiftConsistency,
        ShiftConsistency,
    )

__all__ = [
    "CircularConsistency",
    "MaskCircularConsistency",
    "MaskShiftConsistency",
    "ShiftConsistency",
    "agreement",
    "predicted_labels",
    "random_pairs",
    "wilson_interval",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'trueshift.metrics' has no attribute {name!r}")
    return getattr(importlib.import_module("trueshift.metrics.consistency"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
