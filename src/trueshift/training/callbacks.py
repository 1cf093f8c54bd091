"""Callbacks of every run: progress, interruption, predictions, averaged weights."""

from __future__ import annotations

import csv
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BasePredictionWriter,
    Checkpoint,
    ProgressBar,
    WeightAveraging,
)
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

_ASK_OTHERS_EVERY = 20  # batches; asking other processes makes all wait


class PlainProgress(ProgressBar):
    """Print a line at the end of every epoch, and every minute within long ones.

    Args:
        every_seconds: Time between two lines within an epoch.
    """

    def __init__(self, every_seconds: float = 60.0) -> None:
        super().__init__()
        self.every_seconds = every_seconds
        self._enabled = True
        self._printed = self._started = time.monotonic()

    def disable(self) -> None:
        """Print nothing; Lightning calls this on all processes but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Print again."""
        self._enabled = True

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        self._printed = self._started = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        total = self.total_train_batches
        self._now_and_then(trainer, f"{self._epoch(trainer)}, batch {batch_idx + 1}/{total}")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._line(trainer, f"{self._epoch(trainer)} done", seconds=True)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        total = trainer.num_test_batches[dataloader_idx]
        self._now_and_then(trainer, f"test, batch {batch_idx + 1}/{total}")

    def _epoch(self, trainer: Trainer) -> str:
        last = trainer.max_epochs
        of = f"/{last}" if last is not None and last > 0 else ""
        return f"epoch {trainer.current_epoch + 1}{of}"

    def _now_and_then(self, trainer: Trainer, text: str) -> None:
        if time.monotonic() - self._printed >= self.every_seconds:
            self._line(trainer, text)

    def _line(self, trainer: Trainer, text: str, seconds: bool = False) -> None:
        self._printed = time.monotonic()
        if not self._enabled:
            return
        values = {k: float(v) for k, v in trainer.callback_metrics.items() if "test/" not in k}
        parts = [f"{name} {value:.4g}" for name, value in sorted(values.items())]
        if seconds:
            parts.append(f"{self._printed - self._started:.1f} s")
        print(", ".join([text, *parts]), flush=True)


class SaveOnInterrupt(Checkpoint):
    """On Ctrl-C finish the batch, save the checkpoint ``last.ckpt`` and stop.

    A second Ctrl-C stops at once; then the last checkpoint is the one of the epoch before.

    Args:
        folder: Where checkpoints are.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / "last.ckpt"
        self.asked = False
        self._before: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.path = trainer.strategy.broadcast(self.path)
        # Not sooner: Lightning notes the handlers that it puts back in the end before this hook.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.world_size > 1 and batch_idx % _ASK_OTHERS_EVERY:
            return
        asked = trainer.strategy.reduce_boolean_decision(self.asked, all=False)
        if not asked or trainer.is_last_batch:  # the end of an epoch saves by itself
            return
        trainer.save_checkpoint(self.path)
        raise KeyboardInterrupt

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._restore()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._restore()

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("\nstopping after this batch (Ctrl-C again: at once)", file=sys.stderr, flush=True)

    def _restore(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None


class WritePredictions(BasePredictionWriter):
    """Write ``predictions.csv`` (index, label, confidence) or ``masks/<index>.png``.

    Indices are places in the data, also when several processes share the work.

    Args:
        folder: Where to write.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__(write_interval="batch")
        self.folder = Path(folder)
        self._rows: list[tuple[int, int, float]] = []

    def write_on_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        if "mask" in prediction:
            for index, mask in zip(batch_indices or (), prediction["mask"], strict=True):
                self._write_mask(index, mask.cpu().numpy())
            return
        values = prediction["label"].tolist(), prediction["confidence"].tolist()
        self._rows += zip(batch_indices or (), *values, strict=True)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._rows:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        part = f"_{trainer.global_rank}" if trainer.world_size > 1 else ""
        with (self.folder / f"predictions{part}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("index", "label", "confidence"))
            writer.writerows(sorted(self._rows))
        self._rows = []

    def _write_mask(self, index: int, mask: Any) -> None:
        from PIL import Image

        folder = self.folder / "masks"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(mask, mode=None).save(folder / f"{index:06d}.png")


class MovingAverage(WeightAveraging):
    """Keep an exponential moving average of the weights; it is what is validated and saved.

    Args:
        decay: Share of the old average that stays at every step.
    """

    def __init__(self, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"MovingAverage: decay must lie between 0 and 1, got {decay}.")

        def average(mean: Tensor, current: Tensor, _: Any) -> Tensor:
            if current.ndim == 0:  # tau and the counters of batch norm are no weights
                return current
            return torch.lerp(current, mean, decay)

        super().__init__(avg_fn=average)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        # Elsewhere the averaged weights are what counts, and they are loaded already.
        if trainer.state.fn == TrainerFn.FITTING:
            super().on_load_checkpoint(trainer, pl_module, checkpoint)
