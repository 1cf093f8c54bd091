"""Train and test a classifier."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from trueshift.metrics import CircularConsistency, ShiftConsistency
from trueshift.training.module import NetworkModule
from trueshift.training.timing import BatchTimes, centre_crop

Batch = tuple[Tensor, Tensor]


class Classifier(NetworkModule):
    """Classification with cross-entropy.

    Validation logs accuracy; a test also measures circular consistency (C-Cons.), accuracy on the
    shifted images, the share of shifted images whose outputs are bitwise those of the unshifted
    one, and with ``crop_size`` the standard consistency (S-Cons.). All are fractions.

    Args:
        label_smoothing: Smoothing of the cross-entropy.
        **options: Arguments of :class:`NetworkModule`.
    """

    monitor = "val/accuracy"

    def __init__(self, label_smoothing: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.save_hyperparameters({"label_smoothing": label_smoothing})
        num_classes = self.hparams["num_classes"]
        self.val_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.consistency = self.build_consistency(CircularConsistency)
        self.shift_consistency = (
            self.build_consistency(ShiftConsistency, size=self.hparams["crop_size"])
            if self.hparams["crop_size"]
            else None
        )
        self.shifted_accuracy, self.bitwise_equal = MeanMetric(), MeanMetric()
        self.times = BatchTimes()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        images, target = batch
        smoothing = self.hparams["label_smoothing"]
        loss = F.cross_entropy(self(images), target, label_smoothing=smoothing)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        images, target = self._cropped(batch[0]), batch[1]
        logits = self(images)
        self.val_accuracy(logits, target)
        self.log("val/loss", F.cross_entropy(logits, target), sync_dist=True)
        self.log("val/accuracy", self.val_accuracy, prog_bar=True)
        every = self.hparams["consistency_every"]
        if every and (self.current_epoch + 1) % every == 0:
            self.consistency.update(self, images, target)
            self.log("val/circular_consistency", self.consistency, on_epoch=True)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        images, target = self._cropped(batch[0]), batch[1]
        logits = self.times.measure(self, images)
        self.test_accuracy(logits, target)

        def shifted(x: Tensor) -> Tensor:
            scores = self(x)
            self.shifted_accuracy.update(scores.argmax(1) == target)
            self.bitwise_equal.update((scores == logits).all(1))
            return scores

        self.consistency.update(shifted, images, target)
        self.log("test/accuracy", self.test_accuracy)
        self.log("test/circular_consistency", self.consistency, on_epoch=True)
        self.log("test/shifted_accuracy", self.shifted_accuracy, on_epoch=True)
        self.log("test/bitwise_equal", self.bitwise_equal, on_epoch=True)
        if self.shift_consistency is not None:
            self.shift_consistency.update(self, batch[0], target)
            self.log("test/shift_consistency", self.shift_consistency, on_epoch=True)

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        images = batch[0] if isinstance(batch, list | tuple) else batch
        confidence, label = self(self._cropped(images)).softmax(1).max(1)
        return {"label": label, "confidence": confidence}

    def _cropped(self, images: Tensor) -> Tensor:
        return centre_crop(images, self.hparams["crop_size"])
