"""Consistency of predictions under shifts: torchmetrics classes over pure functions."""

from trueshift.metrics.agreement import agreement, predicted_labels, wilson_interval
from trueshift.metrics.consistency import (
    CircularConsistency,
    MaskCircularConsistency,
    MaskShiftConsistency,
    ShiftConsistency,
)
from trueshift.metrics.protocol import random_pairs

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
