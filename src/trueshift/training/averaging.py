"""A moving average of the weights, by Lightning's callback."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor


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
