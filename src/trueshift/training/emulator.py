"""Train and test an emulator: a network that learns the next state of a flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from trueshift._validate import check_positive
from trueshift.metrics import (
    GridImprint,
    RelativeError,
    RolloutExactness,
    SpectrumError,
    ValidTime,
    rollout,
)
from trueshift.training.fno import fno
from trueshift.training.module import NetworkModule, NumPairs
from trueshift.training.timing import BatchTimes

SHOWN = (1, 2, 5, 10, 20, 50, 100, 200)  # steps whose error a test logs


class Emulator(NetworkModule):
    """Learns the next state of a flow, ``u + network(u)``, by AdamW on the squared error.

    Batches are states ``(B, C, *shape)`` and those that follow them, ``(B, T, C, *shape)``, as
    :class:`trueshift.data.Flows` makes them. The loss is the mean over the unrolled steps.

    Validation logs the relative error of one step and of a roll-out, and the valid time: steps
    until the error passes 0.2. A test also measures the error after 1, 2, 5, 10 ... steps, the
    energy spectrum, the imprint of the sampling grid, and the share of shifts under which a long
    roll-out is, bit for bit, the shifted one. See :mod:`trueshift.metrics`.

    Args:
        unroll: Steps that training unrolls; gradients flow through all of them.
        curriculum_epochs: Epochs over which the number of steps rises from 1 to ``unroll``.
        noise: Standard deviation of normal noise on the first state of a training sample.
        exact_steps: Steps of the roll-outs that are compared bit for bit.
        grid_stride: Points between two samples of the coarsest map, whose imprint is measured.
        wraps: Which axes wrap; ``None`` means all. A channel is ``(False, True)``.
        num_pairs: Shifts of every test batch whose roll-outs are compared, or ``"all"``.
        lr: Highest learning rate.
        weight_decay: AdamW's decay of all weights but those of learned selectors.
        **options: Other arguments of :class:`NetworkModule`. ``num_classes`` is the number of
            channels of a state, ``momentum`` AdamW's first one.
    """

    monitor = "val/valid_time"
    outside: ClassVar = {"fno": fno}

    def __init__(
        self,
        unroll: int = 1,
        curriculum_epochs: int = 0,
        noise: float = 0.0,
        exact_steps: int = 200,
        grid_stride: int = 8,
        wraps: Sequence[bool] | None = None,
        num_pairs: NumPairs = 5,
        lr: float = 2e-3,
        weight_decay: float = 1e-4,
        **options: Any,
    ) -> None:
        super().__init__(num_pairs=num_pairs, lr=lr, weight_decay=weight_decay, **options)
        training = {"unroll": unroll, "curriculum_epochs": curriculum_epochs, "noise": noise}
        test = {"exact_steps": exact_steps, "grid_stride": grid_stride, "wraps": wraps}
        self.save_hyperparameters({**training, **test})
        check_positive("Emulator", unroll=unroll, exact_steps=exact_steps)
        if noise < 0 or curriculum_epochs < 0:
            raise ValueError(
                "Emulator: noise and curriculum_epochs must not be negative, got"
                f" noise={noise}, curriculum_epochs={curriculum_epochs}."
            )
        if self.hparams["nesterov"]:
            raise ValueError("Emulator: AdamW has no Nesterov momentum. Leave nesterov out.")
        self.one_step, self.error = RelativeError(), RelativeError()
        self.valid_time, self.spectrum = ValidTime(), SpectrumError(wraps)
        self.imprint = GridImprint(grid_stride, wraps)
        self.exactness = RolloutExactness(exact_steps, num_pairs, wraps)
        self.times = BatchTimes()

    def forward(self, state: Tensor) -> Tensor:
        return state + super().forward(state)

    def _optimizer(self) -> torch.optim.Optimizer:
        lr, betas = self.hparams["lr"], (self.hparams["momentum"], 0.999)
        return torch.optim.AdamW(self.parameter_groups(), lr=lr, betas=betas)

    def num_unrolled(self, epoch: int) -> int:
        """Return how many steps an epoch, counted from 0, unrolls."""
        unroll, rise = self.hparams["unroll"], self.hparams["curriculum_epochs"]
        return unroll if epoch >= rise else 1 + (unroll - 1) * epoch // rise

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        state, target = batch
        if target.shape[1] < self.hparams["unroll"]:
            raise ValueError(
                f"Emulator: unroll={self.hparams['unroll']} needs that many states after the first,"
                f" got {target.shape[1]}. Set the unroll of the data to the same number."
            )
        if self.hparams["noise"]:
            state = state + self.hparams["noise"] * torch.randn_like(state)
        num_steps = self.num_unrolled(self.current_epoch)
        states = rollout(self, state, num_steps, check=False)
        loss = F.mse_loss(states, target[:, :num_steps])
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        state, target = batch
        self._one_step(state, target)
        # In the first epochs a roll-out may blow up; that is no reason to stop.
        states = rollout(self, state, target.shape[1], check=False)
        self.error.update(states, target)
        self.valid_time.update(states, target)
        self.log("val/valid_time", self.valid_time, prog_bar=True, on_epoch=True)

    def on_validation_epoch_end(self) -> None:
        curve = self._log_errors("val")
        self.log("val/rollout_error", curve[min(len(curve), 10) - 1])

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        state, target = batch
        self._one_step(state, target)
        states = rollout(self, state, target.shape[1])
        for metric in (self.error, self.valid_time, self.spectrum):
            metric.update(states, target)
        self.exactness.update(self, state)
        self.log("test/valid_time", self.valid_time, on_epoch=True)
        self.log("test/spectrum_error", self.spectrum, on_epoch=True)
        self.log("test/grid_imprint", self.imprint, on_epoch=True)
        self.log("test/bitwise_equal", self.exactness, on_epoch=True)

    def on_test_start(self) -> None:
        self.times.reset()  # validation has batches of its own

    def on_test_epoch_end(self) -> None:
        curve = self._log_errors("test")
        for step in (step for step in SHOWN if step <= len(curve)):
            self.log(f"test/error_{step}", curve[step - 1])

    def _log_errors(self, stage: str) -> Tensor:
        """Log the error of one step; return those of the roll-out, ``(T,)``, and begin again."""
        self.log(f"{stage}/one_step_error", float(self.one_step.compute()), prog_bar=True)
        curve = self.error.compute().view(-1)  # torchmetrics squeezes one step
        for metric in (self.one_step, self.error):
            metric.reset()
        return curve

    def _one_step(self, state: Tensor, target: Tensor) -> None:
        """Compare one step from every true state with the next true state."""
        for following in target.unbind(1):
            after = self.times.measure(self, state)
            self.one_step.update(after[:, None], following[:, None])
            if self.trainer.testing:
                self.imprint.update(after, following)
            state = following
