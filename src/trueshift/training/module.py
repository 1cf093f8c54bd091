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
from trueshift.bench.parameters import count_parameters
from trueshift.layers.spec import Sampling
from trueshift.training.calibration import calibrate
from trueshift.training.callbacks import MovingAverage
from trueshift.training.optim import RATE_RULES, Muon, RateRule, parameter_groups, rate_factor
from trueshift.training.outside import Conversion, build_outside
from trueshift.training.randomness import StepSeeds
from trueshift.training.tau import (
    TAU_RULES,
    SelectionLog,
    TauRule,
    TauSchedule,
    selectors,
    set_rules,
)
from trueshift.training.timing import BatchTimes

NumPairs = int | Literal["all"]


class NetworkModule(LightningModule):
    """A network, trained by SGD, Adam or Muon with the paper's schedules.

    Args:
        network: A name in ``trueshift.models.BUILDERS``, or the import path of a network of another
            package, such as ``segmentation_models_pytorch.Unet``.
        spec: How the network samples.
        num_classes: Labels.
        network_options: Further arguments of the builder, for instance ``stem`` or ``widths``. That
            of another package gets only these: name its number of classes too.
        convert: How a network of another package is converted; ``None`` leaves it as it is.
        weights: What the network starts from, a file of :func:`trueshift.save`.
        optimizer: ``"sgd"``, as in the paper; ``"adam"`` with decoupled decay (AdamW), for
            pretrained networks; or ``"muon"``, the quickest from scratch: see :class:`Muon`.
        lr: Highest learning rate.
        momentum: Momentum of SGD and Muon.
        nesterov: Nesterov's form of it, for SGD; Muon always has it.
        adam_lr: Highest learning rate of what Muon leaves to Adam.
        weight_decay: Decay of all weights but those of learned selectors.
        schedule: How the learning rate changes, one of ``RATE_RULES``; ``None`` keeps it. In a
            recipe, and in a checkpoint, the class is named: ``class_path`` and ``init_args``.
        warmup_epochs: Epochs over which the rate first rises linearly.
        tau: Temperature of learned selectors, one of ``TAU_RULES``, named in the same way;
            ``None`` keeps it.
        ema: Decay of an exponential moving average of the weights, which is then what is validated
            and saved; ``None`` for none.
        calibrate: Before the first step, fit what depends on the data to a batch of training
            images: the scale of the selectors' logits and a whitening stem (:func:`calibrate`).
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
        convert: Conversion | None = None,
        weights: str | None = None,
        optimizer: Literal["sgd", "adam", "muon"] = "sgd",
        lr: float = 0.1,
        momentum: float = 0.9,
        nesterov: bool = False,
        adam_lr: float = 3e-3,
        weight_decay: float = 1e-4,
        schedule: RateRule | None = None,
        warmup_epochs: int = 0,
        tau: TauRule | None = None,
        ema: float | None = None,
        calibrate: bool = False,
        compile: bool = False,
        channels_last: bool = False,
        num_pairs: NumPairs = 1,
        max_shift: int = 32,
        consistency_every: int = 0,
        crop_size: int | None = None,
    ) -> None:
        super().__init__()
        known = (*models.BUILDERS, *self.outside)
        if "." not in network:
            check_choice(type(self).__name__, "network", network, known)
        check_choice(type(self).__name__, "optimizer", optimizer, ("sgd", "adam", "muon"))
        spec = Sampling(**spec) if isinstance(spec, Mapping) else spec
        convert = Conversion(**convert) if isinstance(convert, Mapping) else convert
        schedule, tau = _rule("schedule", schedule, RATE_RULES), _rule("tau", tau, TAU_RULES)
        arguments = {k: v for k, v in locals().items() if k not in ("self", "__class__", "known")}
        self.save_hyperparameters({name: _plain(value) for name, value in arguments.items()})
        self.spec, self.schedule, self.tau_schedule = spec, schedule, tau
        if "." in network:
            self.network = build_outside(network, spec, network_options or {}, convert)
        else:
            builder = self.outside.get(network) or getattr(models, network)
            self.network = _build(builder, spec, num_classes, network_options or {})
        if channels_last:
            self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if compile:
            self.network.compile()
        self.train_seconds, self.train_cpu_seconds, self.seed = 0.0, 0.0, _global_seed()
        self._started: tuple[float, float] | None = None

    def forward(self, images: Tensor) -> Tensor:
        if self.hparams["channels_last"]:
            images = images.contiguous(memory_format=torch.channels_last)
        return self.network(images)

    def configure_optimizers(self) -> Any:
        trainer = self.trainer
        total = trainer.estimated_stepping_batches  # also loads the data
        if not math.isfinite(total):
            raise ValueError("training needs an end: set trainer.max_epochs or trainer.max_steps.")
        steps = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        factor = rate_factor(self.schedule, self.hparams["warmup_epochs"], steps, total / steps)
        optimizer = self._optimizer()
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        schedule = {"scheduler": scheduler, "interval": "step", "name": "lr"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def _optimizer(self) -> torch.optim.Optimizer:
        if self.hparams["optimizer"] == "muon":
            options = {key: self.hparams[key] for key in ("lr", "momentum", "adam_lr")}
            return Muon(self.parameter_groups(), **options)
        if self.hparams["optimizer"] == "adam":
            return torch.optim.AdamW(self.parameter_groups(), self.hparams["lr"])
        options = {key: self.hparams[key] for key in ("lr", "momentum", "nesterov")}
        return torch.optim.SGD(self.parameter_groups(), **options)

    def setup(self, stage: str) -> None:
        if self.hparams["weights"] is not None and self.trainer.ckpt_path is None:
            _load_weights(self.network, self.hparams["weights"])
        if stage == "fit" and self.hparams["calibrate"]:
            images, _ = next(iter(self.trainer.datamodule.train_dataloader()))  # type: ignore[attr-defined]
            calibrate(self.network, images)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the groups for the optimizer: learned selectors do not decay."""
        return parameter_groups(self.network, self.hparams["weight_decay"])

    def configure_callbacks(self) -> list[Callback]:
        if self.trainer.state.fn != TrainerFn.FITTING:
            return []
        callbacks: list[Callback] = [StepSeeds(), SelectionLog()]
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
        learned = selectors(self.network)
        clock, cores = self._seconds()
        checkpoint["trueshift"] = {
            "seed": self.seed,
            "train_seconds": clock,
            "train_cpu_seconds": cores,
            "rules": (learned[0].train_rule, learned[0].test_rule) if learned else None,
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
        return count_parameters(self.network)


def _global_seed() -> int | None:
    seed = os.environ.get("PL_GLOBAL_SEED")
    return None if seed is None else int(seed)


def _load_weights(network: nn.Module, path: str) -> None:
    saved = models.load(path).state_dict()
    try:
        network.load_state_dict(saved)
    except RuntimeError as error:
        raise ValueError(f"the weights in {path} are not those of this network: {error}") from error


def _build(
    builder: Callable[..., nn.Module],
    spec: Sampling,
    num_classes: int,
    options: Mapping[str, Any],
) -> nn.Module:
    """Build a network; an option that it does not have is a wrong value, since recipes name it."""
    try:
        return builder(spec, num_classes=num_classes, **options)
    except TypeError as error:
        name = builder.__name__
        for option in options:
            if f"unexpected keyword argument {option!r}" in str(error):
                raise ValueError(f"network_options: {name} has no option {option!r}.") from error
        raise


def _rule(argument: str, value: Any, known: Mapping[str, type]) -> Any:
    """Return a rule as it is, or build the one that a mapping names; checkpoints hold mappings."""
    if value is None or type(value) in known.values():
        return value
    if not isinstance(value, Mapping) or "class_path" not in value:
        raise ValueError(
            f"{argument}: pass one of {', '.join(known)}, or a mapping that names it,"
            f" {{'class_path': ..., 'init_args': ...}}, got {value!r}."
        )
    name = str(value["class_path"]).removeprefix("trueshift.training.")
    check_choice(argument, "class", name, known)
    return known[name](**(value.get("init_args") or {}))


def _plain(value: Any) -> Any:
    """Return what a checkpoint may hold: a rule as recipes name it, a spec as a mapping."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = dataclasses.asdict(value)
    if isinstance(value, RateRule | TauRule):
        return {"class_path": f"trueshift.training.{type(value).__name__}", "init_args": fields}
    return fields
