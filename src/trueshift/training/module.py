"""What training a network has in common for every task: how it is built, optimised and resumed."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from trueshift import models
from trueshift._validate import check_choice
from trueshift.layers.antialias import AdaptiveBlur
from trueshift.layers.spec import Sampling
from trueshift.training.averaging import MovingAverage
from trueshift.training.optim import MultiStep, OneCycle, Poly, rate_factor, sgd
from trueshift.training.randomness import StepSeeds
from trueshift.training.tau import (
    MultiRateLinear,
    StepDecay,
    TauSchedule,
    selectors,
    set_rules,
)
from trueshift.training.timing import BatchTimes

NumPairs = int | Literal["all"]


class NetworkModule(LightningModule):
    """A network of :mod:`trueshift.models` under SGD, with the paper's schedules.

    Args:
        network: A name in ``trueshift.models.BUILDERS``.
        spec: How the network samples.
        num_classes: Labels.
        network_options: Further arguments of the builder, for instance ``stem`` or ``widths``.
        lr: Highest learning rate.
        momentum: Momentum of SGD.
        nesterov: Nesterov's form of it.
        weight_decay: Decay of all weights but those of learned selectors.
        schedule: How the learning rate changes: ``milestones`` and ``factor``, ``power``, or
            ``peak`` and ``shape``; ``None`` keeps it.
        warmup_epochs: Epochs over which the rate first rises linearly.
        tau: Temperature of learned selectors: ``initial``, ``every``, ``factor`` and ``minimum``,
            or ``points`` and ``softmax_from``; ``None`` keeps it.
        ema: Decay of an exponential moving average of the weights, which is then what is validated
            and saved; ``None`` for none.
        compile: Run the network through ``torch.compile``.
        channels_last: Keep maps in the memory format that GPUs like.
        num_pairs: Pairs of shifts per image that consistency compares, or ``"all"``: every shift.
        max_shift: Largest shift of a pair, in pixels.
        consistency_every: Validate consistency every so many epochs; 0 leaves it to the test.
        crop_size: Window through which test images are seen. Only images larger than it can be
            shifted without padding, as S-Cons. and mASSC do; without it these are not measured.
    """

    monitor: str
    times: BatchTimes
    outside: ClassVar[Mapping[str, Callable[..., nn.Module]]] = {}  # builders of other packages

    def __init__(
        self,
        network: str,
        spec: Sampling,
        num_classes: int,
        network_options: dict[str, Any] | None = None,
        lr: float = 0.1,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 1e-4,
        schedule: MultiStep | Poly | OneCycle | None = None,
        warmup_epochs: int = 0,
        tau: StepDecay | MultiRateLinear | None = None,
        ema: float | None = None,
        compile: bool = False,
        channels_last: bool = False,
        num_pairs: NumPairs = 1,
        max_shift: int = 32,
        consistency_every: int = 0,
        crop_size: int | None = None,
    ) -> None:
        super().__init__()
        known = (*models.BUILDERS, *self.outside)
        check_choice(type(self).__name__, "network", network, known)
        spec = Sampling(**spec) if isinstance(spec, Mapping) else spec
        schedule = _build(schedule, (MultiStep, Poly, OneCycle))
        tau = _build(tau, (StepDecay, MultiRateLinear))
        arguments = {k: v for k, v in locals().items() if k not in ("self", "__class__", "known")}
        self.save_hyperparameters({name: _plain(value) for name, value in arguments.items()})
        self.spec, self.schedule, self.tau_schedule = spec, schedule, tau
        builder: Any = self.outside.get(network) or getattr(models, network)
        self.network: nn.Module = builder(spec, num_classes=num_classes, **(network_options or {}))
        if channels_last:
            self.network.to(memory_format=torch.channels_last)
        if compile:
            self.network.compile()
        self.train_seconds, self.train_cpu_seconds, self.seed = 0.0, 0.0, _global_seed()
        self._started: tuple[float, float] | None = None

    def forward(self, images: Tensor) -> Tensor:
        if self.hparams["channels_last"]:
            images = images.contiguous(memory_format=torch.channels_last)
        return self.network(images)

    def configure_optimizers(self) -> Any:
        hp, trainer = self.hparams, self.trainer
        total = trainer.estimated_stepping_batches  # also loads the data
        if not math.isfinite(total):
            raise ValueError("training needs an end: set trainer.max_epochs or trainer.max_steps.")
        steps = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        factor = rate_factor(self.schedule, hp["warmup_epochs"], steps, total / steps)
        return sgd(
            self.network, hp["lr"], hp["momentum"], hp["weight_decay"], hp["nesterov"], factor
        )

    def configure_callbacks(self) -> list[Callback]:
        if self.trainer.state.fn != TrainerFn.FITTING:
            return []
        callbacks: list[Callback] = [StepSeeds()]
        if self.tau_schedule is not None:
            callbacks.append(TauSchedule(self.tau_schedule))
        if self.hparams["ema"] is not None:
            callbacks.append(MovingAverage(self.hparams["ema"]))
        return callbacks

    def on_train_start(self) -> None:
        self._started = time.perf_counter(), time.process_time()

    def on_train_end(self) -> None:
        self.train_seconds, self.train_cpu_seconds = self._seconds()
        self._started = None

    def _seconds(self) -> tuple[float, float]:
        """Return the time of training so far, by the clock and of this process's cores."""
        if self._started is None:
            return self.train_seconds, self.train_cpu_seconds
        clock, cores = self._started
        return (
            self.train_seconds + time.perf_counter() - clock,
            self.train_cpu_seconds + time.process_time() - cores,
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        found = selectors(self.network)
        clock, cores = self._seconds()
        checkpoint["trueshift"] = {
            "seed": self.seed,
            "train_seconds": clock,
            "train_cpu_seconds": cores,
            "rules": (found[0].train_rule, found[0].test_rule) if found else None,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        ours = checkpoint["trueshift"]
        self.seed, self.train_seconds = ours["seed"], ours["train_seconds"]
        self.train_cpu_seconds = ours.get("train_cpu_seconds", 0.0)
        if ours["rules"] is not None:
            set_rules(self.network, *ours["rules"])

    def build_consistency(self, metric: Any, **options: Any) -> Any:
        """Build a metric of :mod:`trueshift.metrics` that draws the shifts that were asked for."""
        pairs, max_shift = self.hparams["num_pairs"], self.hparams["max_shift"]
        draws = {"shifts": "all"} if pairs == "all" else {"num_pairs": pairs}
        return metric(max_shift=max_shift, **draws, **options)

    def num_parameters(self) -> dict[str, int]:
        """Count parameters: all, and those of selectors and adaptive filters (paper table 4)."""
        pooling = [m for m in self.network.modules() if isinstance(m, AdaptiveBlur)]
        return {
            "total": sum(p.numel() for p in self.network.parameters()),
            "pooling": sum(
                p.numel() for m in (*selectors(self.network), *pooling) for p in m.parameters()
            ),
        }


def _global_seed() -> int | None:
    seed = os.environ.get("PL_GLOBAL_SEED")
    return None if seed is None else int(seed)


def _build(value: Any, classes: tuple[type, ...]) -> Any:
    """Make the dataclass whose fields a mapping names; checkpoints hold only plain values."""
    if not isinstance(value, Mapping):
        return value
    for cls in classes:
        if set(value) <= {field.name for field in dataclasses.fields(cls)}:
            return cls(**value)
    names = ", ".join(cls.__name__ for cls in classes)
    raise ValueError(f"no schedule has the fields {sorted(value)}. Choose one of: {names}.")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value
