"""Write what a network predicts: labels as one CSV, masks as pictures."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter


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
