"""Stop a run at a point from which it goes on exactly."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

_ASK_OTHERS_EVERY = 20  # batches; asking other processes makes all wait


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
