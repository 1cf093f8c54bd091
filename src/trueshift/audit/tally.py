"""Counts of an audit: outputs of shifted images against those of the unshifted ones."""

from __future__ import annotations

import torch
from torch import Tensor

from trueshift.audit.moves import MoveTally
from trueshift.audit.predictor import IGNORE, labels_of
from trueshift.audit.results import Measurement, Spread
from trueshift.audit.shifting import Offsets, ShiftSet
from trueshift.shifts import circular_shift, common_region

_KEPT = 2**20  # changes kept for the median


class Tally:
    """Counts of one kind of shift.

    Args:
        shift_set: The shifts that are compared.
        num_images: How many images there will be.
    """

    def __init__(self, shift_set: ShiftSet, num_images: int) -> None:
        self.shift_set, shifts = shift_set, shift_set.shifts
        self.shares = torch.zeros(len(shifts), dtype=torch.float64)
        self.image_shares = torch.zeros(num_images, dtype=torch.float64)
        self.correct = torch.zeros(len(shifts), 2, dtype=torch.float64)  # right, counted
        self.correct_still = torch.zeros(2, dtype=torch.float64)
        self.moves = MoveTally(shifts, num_images)
        self.largest, self.bitwise = 0.0, 0
        self.changes: list[Tensor] = []
        self.every = -(-len(shifts) * num_images // _KEPT)
        self.num_compared = 0
        self.moments = torch.zeros(3, dtype=torch.float64)  # count, sum, sum of squares

    def start(self, reference: Tensor, labels: Tensor | None) -> None:
        """Count the outputs of unshifted images."""
        values = reference.detach().double()
        sums = torch.stack([values.sum(), values.square().sum()]).cpu()
        self.moments += torch.cat([torch.tensor([float(values.numel())]), sums])
        if labels is not None:
            _check_labels(labels, max(reference.shape[1], 2))
            self.correct_still += self._right(labels_of(reference), labels, (0, 0)).sum(0)

    def add(
        self,
        k: int,
        reference: Tensor,
        output: Tensor,
        labels: Tensor | None,
        indices: range,
        same_windows: Tensor | None = None,
    ) -> None:
        """Count a batch at shift number ``k``; an anchored network has the same windows or not."""
        from trueshift.metrics.agreement import agreement  # the package needs torchmetrics

        shift = self.shift_set.shifts[k]
        still, moved = self._aligned(reference, output, shift)
        same, _ = agreement(labels_of(still), labels_of(moved))
        self.shares[k] += same.sum().cpu()
        self.image_shares[indices.start : indices.stop] += same.cpu()
        change = (still - moved).abs().flatten(1).amax(1).float().cpu()
        self.largest = max(self.largest, float(change.max()))
        self.bitwise += int((change == 0).sum())
        offset = -self.num_compared % self.every
        self.changes.append(change[offset :: self.every])
        self.num_compared += len(change)
        right = None
        if labels is not None:
            counts = self._right(labels_of(output), labels, shift)
            self.correct[k] += counts.sum(0)
            right = counts[:, 0] / counts[:, 1].clamp(min=1)
        self.moves.add(
            shift, indices, same=same, bits=change == 0, windows=same_windows, right=right
        )

    def result(self) -> Measurement:
        """Return the fractions."""
        from trueshift.metrics.agreement import wilson_interval  # the package needs torchmetrics

        kind, window, shifts, wraps = self.shift_set
        num_images, num_shifts = len(self.image_shares), len(shifts)
        shares = self.shares / num_images
        consistency = float(shares.mean()) if bool((shares < 1).any()) else 1.0
        count, total, squares = self.moments.tolist()
        variance = max(squares / count - (total / count) ** 2, 0.0)
        return Measurement(
            kind=kind,
            window=window,
            shifts=shifts,
            shares=tuple(shares.tolist()),
            consistency=consistency,
            interval=wilson_interval(consistency, num_images),
            worst_shift=shifts[int(shares.argmin())],
            accuracy=self._accuracy(),
            largest_change=self.largest,
            median_change=float(torch.cat(self.changes).median()),
            output_scale=variance**0.5,
            bitwise_share=self.bitwise / self.num_compared,
            image_shares=tuple((self.image_shares / num_shifts).tolist()),
            wraps=wraps,
            moves=self.moves.curve() if kind == "standard" else (),
            neighbours=self.moves.neighbours() if kind == "standard" else None,
        )

    def _accuracy(self) -> Spread | None:
        if self.correct_still[1] == 0:
            return None
        each = self.correct[:, 0] / self.correct[:, 1].clamp(min=1)
        still = float(self.correct_still[0] / self.correct_still[1])
        return Spread(still, float(each.min()), float(each.mean()), float(each.max()))

    def _aligned(self, still: Tensor, moved: Tensor, shift: Offsets) -> tuple[Tensor, Tensor]:
        """Move the outputs of a segmenter back; those of a classifier are where they are."""
        if still.ndim == 2:
            return still, moved
        if self.shift_set.kind == "circular":
            return still, circular_shift(moved, -shift[0], -shift[1])
        return common_region(still, moved, (0, 0), shift)

    def _right(self, answer: Tensor, labels: Tensor, shift: Offsets) -> Tensor:
        """Return for each image how many labels are right and how many count: ``(B, 2)``."""
        target = labels.to(answer.device)
        if answer.ndim == 3:
            target = self.shift_set.see(target, shift)
        if target.shape != answer.shape:
            raise ValueError(
                f"audit: labels must have shape {tuple(answer.shape)} for this network, got"
                f" {tuple(target.shape)}."
            )
        counts = target != IGNORE if answer.ndim == 3 else torch.ones_like(target, dtype=torch.bool)
        both = torch.stack([(answer == target) & counts, counts], 1)
        return both.double().flatten(2).sum(2).cpu() if both.ndim > 2 else both.double().cpu()


def _check_labels(labels: Tensor, num_classes: int) -> None:
    counted = labels[labels != IGNORE] if labels.ndim == 3 else labels
    wrong = counted[(counted < 0) | (counted >= num_classes)]
    if len(wrong):
        raise ValueError(
            f"audit: labels must be in 0..{num_classes - 1}, as the network has {num_classes}"
            f" classes, got {int(wrong[0])}."
        )
