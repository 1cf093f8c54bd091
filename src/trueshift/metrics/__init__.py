"""Consistency under shifts, and errors of roll-outs: torchmetrics classes over pure functions.

The classes are imported when first asked for: the functions need torch only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trueshift.metrics.agreement import agreement, predicted_labels, wilson_interval
from trueshift.metrics.protocol import random_pairs
from trueshift.metrics.rollout import rollout

if TYPE_CHECKING:
    from trueshift.metrics.consistency import (
        CircularConsistency,
        MaskCircularConsistency,
        MaskShiftConsistency,
        ShiftConsistency,
    )
    from trueshift.metrics.flows import (
        GridImprint,
        RelativeError,
        RolloutExactness,
        SpectrumError,
        ValidTime,
    )

__all__ = [
    "CircularConsistency",
    "GridImprint",
    "MaskCircularConsistency",
    "MaskShiftConsistency",
    "RelativeError",
    "RolloutExactness",
    "ShiftConsistency",
    "SpectrumError",
    "ValidTime",
    "agreement",
    "predicted_labels",
    "random_pairs",
    "rollout",
    "wilson_interval",
]

_FLOWS = ("GridImprint", "RelativeError", "RolloutExactness", "SpectrumError", "ValidTime")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'trueshift.metrics' has no attribute {name!r}")
    home = "flows" if name in _FLOWS else "consistency"
    return getattr(importlib.import_module(f"trueshift.metrics.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
