"""Progress where no terminal is: one plain line now and then, no escape codes."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar


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
