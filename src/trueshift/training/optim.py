"""Optimizer and learning rate: parameter groups, schedules as functions of the epoch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trueshift._validate import check_positive
from trueshift.layers.selectors import ConvSelector


class RateRule(ABC):
    """Factor of the learning rate over a run; recipes name a class of :data:`RATE_RULES`."""

    @abstractmethod
    def __call__(self, epoch: float, epochs: float) -> float:
        """Return the factor of the rate after ``epoch`` of ``epochs``."""


@dataclass(frozen=True)
class MultiStep(RateRule):
    """Multiply the learning rate by ``factor`` at every milestone.

    Args:
        milestones: Numbers of epochs after which the rate falls.
        factor: What the rate is multiplied by.

    Examples:
        >>> [MultiStep((30, 60))(epoch, 90) for epoch in (0, 30)]
        [1.0, 0.1]
    """

    milestones: Sequence[int]
    factor: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", tuple(self.milestones))  # YAML has only lists
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"MultiStep: milestones must increase, got {self.milestones}.")

    def __call__(self, epoch: float, epochs: float) -> float:
        return float(self.factor ** sum(epoch >= milestone for milestone in self.milestones))


@dataclass(frozen=True)
class Poly(RateRule):
    """Let the learning rate fall to 0 as ``(1 - epoch / epochs) ** power``.

    Args:
        power: 0.9 in the usual set-up of DeepLab.
    """

    power: float

    def __call__(self, epoch: float, epochs: float) -> float:
        return float(max(0.0, 1 - epoch / epochs) ** self.power)


@dataclass(frozen=True)
class OneCycle(RateRule):
    """Let the learning rate rise and fall once.

    Args:
        peak: Share of all epochs after which the rate is highest.
        shape: ``"linear"`` (a triangle) or ``"cosine"``.
    """

    peak: float
    shape: str = "linear"

    def __post_init__(self) -> None:
        if not 0 <= self.peak < 1 or self.shape not in ("linear", "cosine"):
            raise ValueError(
                "OneCycle: peak must lie in [0, 1) and shape be 'linear' or 'cosine', got"
                f" peak={self.peak}, shape={self.shape!r}."
            )

    def __call__(self, epoch: float, epochs: float) -> float:
        share = min(epoch / epochs, 1.0)
        rising = share < self.peak
        height = share / self.peak if rising else (1 - share) / (1 - self.peak)
        return height if self.shape == "linear" else (1 - math.cos(math.pi * height)) / 2


RATE_RULES: dict[str, type[RateRule]] = {
    "MultiStep": MultiStep,
    "Poly": Poly,
    "OneCycle": OneCycle,
}


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split parameters into those that decay and those of learned selectors, which do not.

    Without decay on selectors their logits stay apart, which is what makes the choice stable
    (paper appendix, optimization parameters). The weights of adaptive filters do decay.

    Args:
        model: Any network.
        weight_decay: Decay of everything but the selectors.

    Returns:
        Groups for a torch optimizer; the second one only if there are selectors.
    """
    exempt = {
        parameter
        for module in model.modules()
        if isinstance(module, ConvSelector)
        for parameter in module.parameters()
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in trained if parameter not in exempt]
    selectors = [parameter for parameter in trained if parameter in exempt]
    groups = [{"params": decayed, "weight_decay": weight_decay}]
    return [*groups, {"params": selectors, "weight_decay": 0.0}] if selectors else groups


class Muon(torch.optim.Adam):
    """Orthogonalised momentum for the filters of a network, Adam for everything else.

    The step of a filter bank is its momentum, as a matrix with a row per output channel, with all
    singular values brought near one (K. Jordan, Muon, 2024). Before it, the bank is scaled so that
    its rows have norm 1 in the mean: ``lr`` is the relative change of a step, and nothing decays.
    That suits convolutions followed by a norm.

    Args:
        groups: What :func:`parameter_groups` returns. Parameters of more than two axes in the first
            group are filters; the others and those of selectors are trained by Adam.
        lr: Learning rate of filters.
        momentum: Nesterov momentum of filters.
        adam_lr: Learning rate of everything else.
    """

    def __init__(
        self, groups: Sequence[dict[str, Any]], lr: float, momentum: float, adam_lr: float
    ) -> None:
        body, *selectors = groups
        filters = [p for p in body["params"] if p.ndim > 2]
        rest = [p for p in body["params"] if p.ndim <= 2]
        adam = [{**group, "momentum": None} for group in ({**body, "params": rest}, *selectors)]
        muon = {"params": filters, "lr": lr, "momentum": momentum}
        super().__init__([muon, *adam], adam_lr, betas=(0.9, 0.98))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        filters = self.param_groups[0]
        for weight in filters["params"]:
            if weight.grad is not None:
                self._turn(weight, weight.grad, filters["lr"], filters["momentum"])
                weight.grad = None  # Adam then leaves it alone
        super().step()
        return loss

    def _turn(self, weight: Tensor, grad: Tensor, lr: float, momentum: float) -> None:
        state = self.state[weight]
        if not state:  # Adam wants a step in every state that it loads
            state.update(step=torch.zeros(()), mean=torch.zeros_like(weight))
        mean = state["mean"]
        mean.mul_(momentum).add_(grad)
        ahead = torch.add(grad, mean, alpha=momentum)
        weight.mul_(len(weight) ** 0.5 / weight.norm())
        weight.sub_(orthogonal(ahead.flatten(1)).view_as(weight), alpha=lr)


def orthogonal(matrix: Tensor, steps: int = 4) -> Tensor:
    """Bring the singular values of a matrix near one, by Newton-Schulz iterations in bfloat16.

    They end between about 0.7 and 1.2, except those that are tiny compared with the largest.
    """
    x = matrix.bfloat16() / (matrix.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(steps):
        gram = x @ x.T
        x = 3.4445 * x + (2.0315 * gram @ gram - 4.7750 * gram) @ x
    return (x.T if tall else x).to(matrix.dtype)


def rate_factor(
    schedule: RateRule | None, warmup_epochs: int, steps_per_epoch: int, epochs: float
) -> Callable[[int], float]:
    """Return the factor of the learning rate as a function of the optimizer step.

    Args:
        schedule: ``None`` keeps the rate.
        warmup_epochs: Epochs over which the rate first rises linearly, step by step.
        steps_per_epoch: Optimizer steps of an epoch.
        epochs: All epochs of the run.
    """
    check_positive("rate_factor", steps_per_epoch=steps_per_epoch)

    def factor(step: int) -> float:
        main = 1.0 if schedule is None else schedule(step / steps_per_epoch, epochs)
        warm = (step + 1) / (warmup_epochs * steps_per_epoch) if warmup_epochs else 1.0
        return main * min(1.0, warm)

    return factor
