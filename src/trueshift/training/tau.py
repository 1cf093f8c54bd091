"""Learned selectors in training: their temperature (paper appendix), and whether they choose."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from trueshift._validate import check_choice, check_positive
from trueshift.audit.selection import at_chance, entropy_of_choices, expected_agreement
from trueshift.layers.selectors import TEST_RULES, TRAIN_RULES, ConvSelector, set_tau

BACKBONE = "backbone"


class TauRule(ABC):
    """tau as a function of the epoch; recipes name a class of :data:`TAU_RULES`."""

    softmax_from: int | None = None

    @abstractmethod
    def __call__(self, epoch: int, backbone: float | None = None) -> float:
        """Return tau of an epoch, counted from 1; ``backbone`` is tau of the loaded selectors."""


@dataclass(frozen=True)
class StepDecay(TauRule):
    """Multiply tau by ``factor`` every few epochs, down to ``minimum`` (the paper's CIFAR-10).

    Args:
        initial: tau of the first epochs.
        every: Epochs between two steps.
        factor: What tau is multiplied by.
        minimum: What tau never falls below.

    Examples:
        >>> [StepDecay()(epoch) for epoch in (1, 10, 11)]
        [1.0, 1.0, 0.85]
    """

    initial: float = 1.0
    every: int = 10
    factor: float = 0.85
    minimum: float = 0.025

    def __post_init__(self) -> None:
        check_positive("StepDecay", every=self.every)
        if not 0 < self.factor < 1 or not 0 < self.minimum <= self.initial:
            raise ValueError(
                "StepDecay: factor must lie between 0 and 1 and minimum between 0 and initial, got"
                f" {self}."
            )

    def __call__(self, epoch: int, backbone: float | None = None) -> float:
        tau = self.initial
        for _ in range((epoch - 1) // self.every):
            tau = max(self.factor * tau, self.minimum)
        return tau


@dataclass(frozen=True)
class MultiRateLinear(TauRule):
    """Draw straight lines through (epoch, tau) points (the paper's ImageNet and segmentation).

    Args:
        points: Pairs of an epoch, counted from 1, and tau; tau is held after the last. The first
            tau may be ``"backbone"``: the one that the loaded selectors have when training starts.
        softmax_from: Epoch from which selectors use a plain softmax, in training and in testing
            (the paper's standard-shift setting: the last 28 epochs).

    Examples:
        >>> MultiRateLinear(((1, 1.0), (3, 0.5)))(2)
        0.75
    """

    points: Sequence[tuple[int, float | str]]
    softmax_from: int | None = None

    def __post_init__(self) -> None:
        points = tuple((epoch, tau) for epoch, tau in self.points)  # YAML has only lists
        object.__setattr__(self, "points", points)
        epochs = [epoch for epoch, _ in points]
        if not points or epochs[0] != 1 or any(b <= a for a, b in itertools.pairwise(epochs)):
            raise ValueError(
                f"MultiRateLinear: epochs must start at 1 and increase, got points={points}."
            )
        for number, (_, tau) in enumerate(points):
            named = number == 0 and tau == BACKBONE
            if not named and (isinstance(tau, str) or tau <= 0):
                raise ValueError(
                    "MultiRateLinear: tau must be a positive number, or 'backbone' in the first"
                    f" point, got points={points}."
                )

    def __call__(self, epoch: int, backbone: float | None = None) -> float:
        points = [(e, self._number(tau, backbone)) for e, tau in self.points]
        for (start, high), (end, low) in itertools.pairwise(points):
            if epoch < end:
                return high + (low - high) * (epoch - start) / (end - start)
        return points[-1][1]

    def _number(self, tau: float | str, backbone: float | None) -> float:
        if tau != BACKBONE:
            return float(tau)
        if backbone is None:
            raise ValueError("MultiRateLinear: the first point is 'backbone', pass its tau.")
        return backbone


TAU_RULES: dict[str, type[TauRule]] = {
    "StepDecay": StepDecay,
    "MultiRateLinear": MultiRateLinear,
}


def selectors(model: nn.Module) -> list[ConvSelector]:
    """Return the learned selectors of a network."""
    return [module for module in model.modules() if isinstance(module, ConvSelector)]


def set_rules(network: nn.Module, train_rule: str, test_rule: str) -> None:
    """Let every learned selector choose by other rules, and note it where the network was built.

    Args:
        network: The network, changed in place.
        train_rule: ``"gumbel"``, ``"straight"`` or ``"softmax"``.
        test_rule: ``"argmax"`` or ``"softmax"``.
    """
    check_choice("set_rules", "train_rule", train_rule, TRAIN_RULES)
    check_choice("set_rules", "test_rule", test_rule, TEST_RULES)
    learned = selectors(network)
    for selector in learned:
        selector.train_rule, selector.test_rule = train_rule, test_rule
    origin: Any = getattr(network, "origin", None)
    if learned and origin is not None:  # so that a saved file builds the network that was trained
        spec = origin.arguments["spec"].replace(train_rule=train_rule, test_rule=test_rule)
        arguments = {**origin.arguments, "spec": spec}
        network.origin = dataclasses.replace(origin, arguments=arguments)


class TauSchedule(Callback):
    """Set tau of every learned selector at the start of each epoch.

    tau is a buffer, so it is in every checkpoint; which value an epoch has depends on the epoch
    only, so a resumed run goes on with the right one. A network without learned selectors is left
    as it is.

    Args:
        schedule: tau as a function of the epoch.
    """

    def __init__(self, schedule: TauRule) -> None:
        self.schedule = schedule
        self.backbone: float | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        learned = selectors(pl_module)
        if self.backbone is None and learned:
            self.backbone = float(learned[0].tau)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not selectors(pl_module):
            return
        epoch = trainer.current_epoch + 1
        tau = self.schedule(epoch, self.backbone)
        set_tau(pl_module, tau)
        pl_module.log("tau", tau)
        softmax_from = self.schedule.softmax_from
        if softmax_from is not None and epoch >= softmax_from:
            set_rules(cast(nn.Module, pl_module.network), "softmax", "softmax")

    def state_dict(self) -> dict[str, Any]:
        return {"backbone": self.backbone}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.backbone = state_dict["backbone"]


class SelectionLog(Callback):
    """Log once an epoch, on its last batch, whether learned selectors choose.

    ``selector/agreement`` is the expected share of Gumbel draws that keep the component of the
    largest logit, and ``selector/entropy`` that of the choices in bits, both in the mean over
    layers. A selector that ends at chance is reported in words, next to the progress.
    """

    def __init__(self) -> None:
        self._hooks: list[Any] = []
        self._agreement: dict[str, float] = {}
        self._entropy: list[float] = []
        self._at_chance: dict[str, float] = {}

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx + 1 != trainer.num_training_batches:
            return
        for name, module in pl_module.named_modules():
            if isinstance(module, ConvSelector):
                note = functools.partial(self._note, pl_module, name.removesuffix(".selector"))
                self._hooks.append(module.register_forward_hook(note))

    def _note(
        self, pl_module: LightningModule, name: str, module: nn.Module, _: object, logits: Tensor
    ) -> None:
        gathered: Any = pl_module.all_gather(logits.detach())  # of all processes
        logits = gathered.reshape(-1, logits.shape[1])
        self._agreement[name] = expected_agreement(logits)
        self._entropy.append(entropy_of_choices(logits.argmax(1)))
        self._at_chance.pop(name, None)
        if at_chance(self._agreement[name], logits.shape[1]):
            self._at_chance[name] = 1 / logits.shape[1]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        if self._entropy:
            pl_module.log("selector/agreement", fmean(self._agreement.values()))
            pl_module.log("selector/entropy", fmean(self._entropy))
            self._entropy.clear()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and trainer.progress_bar_callback is not None:
            for name, chance in self._at_chance.items():
                share = self._agreement[name]
                print(
                    f"{name} chooses at chance: {share:.1%} of draws with Gumbel noise agree with"
                    f" its largest logit; noise alone gives {chance:.1%}.",
                    flush=True,
                )
