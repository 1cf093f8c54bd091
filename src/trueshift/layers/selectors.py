"""Selectors: which polyphase component to keep.

A selector is a module ``(x, stride) -> logits (B, P)`` with a method ``choose(x, stride) ->
phase``. Any score that permutes when the map shifts keeps the sampling shift-equivariant (paper
claim 1). A new one is a subclass of :class:`Selector` with a method ``logits``, and an entry of
:data:`METHODS`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trueshift import functional
from trueshift._validate import (
    Mode,
    Stride,
    check_choice,
    check_dim,
    check_input,
    check_mode,
    check_positive,
)
from trueshift.ties import TieBreaker, argmax_phase

if TYPE_CHECKING:
    from trueshift.layers.spec import Sampling

TRAIN_RULES = ("gumbel", "straight", "softmax")
TEST_RULES = ("argmax", "softmax")
CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class Chosen(nn.Module):
    """Returns the phase: every choice passes through here, so that forward hooks can observe it."""

    def forward(
        self, phase: Tensor, x: Tensor, tie_breaker: TieBreaker | None, stride: Stride
    ) -> Tensor:
        return phase


class Selector(nn.Module):
    """What all selectors share: the choice at test time, the component of the largest logit.

    A subclass defines ``logits(x, stride)``, where ``x`` and ``stride`` are checked already; one
    that is named in :data:`METHODS` also says in ``from_spec`` how a :class:`Sampling` builds it.

    Attributes:
        learns: Whether it has parameters that are trained with the network.
        train_rule: How the phase follows from the logits while training, one of
            :data:`TRAIN_RULES`, ``"argmax"``, or ``"random"``: any phase, drawn for every image.
        test_rule: The same at test time, one of :data:`TEST_RULES`.
        margin: How many cells of ``stride`` pixels at each border of an axis are not scored,
            because content enters and leaves there; at least one cell always is.
    """

    learns: ClassVar[bool] = False
    train_rule = test_rule = "argmax"
    dim: int | None = None  # of the maps that it takes, if not any
    channels: int | None = None
    margin: tuple[int, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.chosen = Chosen()

    @classmethod
    def from_spec(cls, spec: Sampling, channels: int, hidden_channels: int | None) -> Self:
        """Build the selector for a map of ``channels``."""
        return cls()

    @property
    def draws(self) -> bool:
        """Whether phases are random now, so that they do not depend on the map."""
        return self.training and self.train_rule == "random"

    def logits(self, x: Tensor, stride: tuple[int, ...]) -> Tensor:
        """Score every component: ``(B, P)``, permuting with shifts of ``x``."""
        raise NotImplementedError(f"{type(self).__name__}: define logits(x, stride).")

    def hard_phase(self, x: Tensor, stride: tuple[int, ...], tie_breaker: TieBreaker) -> Tensor:
        """Return the phase of the largest logit; a subclass may know a cheaper way to it."""
        return argmax_phase(self.logits(x, stride), tie_breaker, stride)

    def interior(self, x: Tensor, stride: tuple[int, ...]) -> Tensor:
        """Return what is scored of a map: all but the margin."""
        for axis, (cells, step) in enumerate(zip(self.margin, stride, strict=False), start=2):
            most = (x.shape[axis] // step - 1) // 2
            cut = min(cells, most) * step
            x = x.narrow(axis, cut, x.shape[axis] - 2 * cut)
        return x

    def forward(self, x: Tensor, stride: Stride = 2) -> Tensor:
        who, dim, channels = type(self).__name__, self.dim, self.channels
        strides = check_input(who, x, stride, dim=dim, channels=channels)
        logits = self.logits(self.interior(x, strides), strides)
        return logits.to(torch.promote_types(x.dtype, torch.float32))

    def choose(
        self, x: Tensor, stride: Stride = 2, tie_breaker: TieBreaker | None = None
    ) -> Tensor:
        """Return the phase of ``x``, hard or, by the rules of a learned selector, soft.

        Args:
            x: ``(B, C, *spatial)``.
            stride: Sampling factor of all axes, or one per axis.
            tie_breaker: A map that moves as ``x`` does and breaks ties in its place, or a function
                that returns it: the map that will be sampled, if that is another one.
        """
        who, dim, channels = type(self).__name__, self.dim, self.channels
        strides = check_input(who, x, stride, dim=dim, channels=channels)
        rule = self.train_rule if self.training else self.test_rule
        if self.draws:
            phase = torch.randint(math.prod(strides), x.shape[:1], device=x.device)
        elif rule == "argmax":
            with torch.no_grad():
                ties = x if tie_breaker is None else tie_breaker
                scored = self.interior(x, strides) if self.margin else x
                phase = self.hard_phase(scored, strides, ties)
        else:
            phase = self._soft_phase(self(x, strides), rule)
        chosen: Tensor = self.chosen(phase, x, tie_breaker, strides)
        return chosen

    def _soft_phase(self, logits: Tensor, rule: str) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__}: has no rule {rule!r}.")


class ConvSelector(Selector):
    """The learned selector of LPS: f_theta of the paper (section 4.2, appendix table A3).

    Every component goes through the same convolution, ReLU and second convolution; the mean over
    channels and space is its logit (:func:`trueshift.functional.conv_logits`).

    While training the phase is soft: a Gumbel-softmax sample at temperature ``tau``. At test time
    it is the hard argmax, computed so that the choice is exact.

    Args:
        channels: Channels ``C`` of the feature map.
        hidden_channels: Width ``C_hid`` of the first convolution; ``None`` means ``C``.
        padding_mode: Border of both convolutions, for all axes or one per axis; ``"circular"``
            makes the logits exactly shift-permutation-equivariant.
        dim: Number of spatial axes.
        tau: Temperature; change it with :func:`set_tau`.
        train_rule: ``"gumbel"``; ``"straight"``, the same sample made hard with the gradient of the
            soft one (straight-through); or ``"softmax"`` at ``tau`` without sampling (the paper's
            ablation).
        test_rule: ``"argmax"``, or ``"softmax"`` at ``tau`` (the paper's standard-shift setting;
            not exactly equivariant).

    Shape:
        ``x`` is ``(B, C, *spatial)`` with sizes divisible by the stride; logits are ``(B, P)``.
    """

    learns = True
    channels: int
    dim: int
    tau: Tensor

    def __init__(
        self,
        channels: int,
        hidden_channels: int | None = None,
        padding_mode: Mode = "circular",
        *,
        dim: int = 2,
        tau: float = 1.0,
        train_rule: str = "gumbel",
        test_rule: str = "argmax",
    ) -> None:
        super().__init__()
        hidden_channels = channels if hidden_channels is None else hidden_channels
        check_positive("ConvSelector", channels=channels, hidden_channels=hidden_channels)
        check_dim("ConvSelector", dim)
        self.padding_mode = check_mode("ConvSelector", padding_mode, dim)
        check_choice("ConvSelector", "train_rule", train_rule, TRAIN_RULES)
        check_choice("ConvSelector", "test_rule", test_rule, TEST_RULES)
        _check_tau("ConvSelector", tau)
        self.channels, self.dim = channels, dim
        self.train_rule, self.test_rule = train_rule, test_rule
        border = self.padding_mode if isinstance(self.padding_mode, str) else "zeros"
        same: dict[str, Any] = {"padding": 1, "padding_mode": border}
        self.conv1 = CONVS[dim](channels, hidden_channels, 3, **same)
        self.conv2 = CONVS[dim](hidden_channels, hidden_channels, 3, **same)
        self.register_buffer("tau", torch.tensor(float(tau)))

    @classmethod
    def from_spec(cls, spec: Sampling, channels: int, hidden_channels: int | None) -> Self:
        """Build the selector for a map of ``channels``."""
        return cls(
            channels,
            hidden_channels or spec.hidden_channels(channels),
            spec.selector_padding or spec.padding_mode,
            dim=spec.dim,
            train_rule=spec.train_rule,
            test_rule=spec.test_rule,
        )

    def logits(self, x: Tensor, stride: tuple[int, ...]) -> Tensor:
        """Score every component with f_theta."""
        mode, exact = self.padding_mode, not self.training
        return functional.conv_logits(x, self._theta(), stride, mode, exact=exact)

    def hard_phase(self, x: Tensor, stride: tuple[int, ...], tie_breaker: TieBreaker) -> Tensor:
        """Return the phase of the largest logit."""
        return functional.conv_choice(x, self._theta(), stride, self.padding_mode, tie_breaker)

    def _soft_phase(self, logits: Tensor, rule: str) -> Tensor:
        if rule == "softmax":
            return (logits / self.tau).softmax(1)
        return F.gumbel_softmax(logits, self.tau, rule == "straight", dim=1)  # type: ignore[arg-type]

    def _theta(self) -> functional.Theta:
        first, second = self.conv1, self.conv2
        return first.weight, first.bias, second.weight, second.bias  # type: ignore[return-value]

    def extra_repr(self) -> str:
        """Show the border and the rules."""
        rules = f"train_rule={self.train_rule}, test_rule={self.test_rule}"
        return f"padding_mode={self.padding_mode}, {rules}"


class NormSelector(Selector):
    """The handcrafted selector of APS: the component of the largest l_p norm (paper section 3).

    It has no parameters, and its choice is hard while training too.

    Args:
        p: 1, 2 or ``inf``.
        train_rule: ``"argmax"``, or ``"random"``: while training, a phase drawn for every image.
            The network then learns to do well with any phase, as if images were shifted.
    """

    def __init__(self, p: float = 2, train_rule: str = "argmax") -> None:
        super().__init__()
        if p not in (1, 2, math.inf):
            raise ValueError(f"NormSelector: p must be 1, 2 or inf, got {p!r}.")
        check_choice("NormSelector", "train_rule", train_rule, ("argmax", "random"))
        self.p, self.train_rule = p, train_rule

    @classmethod
    def from_spec(cls, spec: Sampling, channels: int, hidden_channels: int | None) -> Self:
        """Build the selector for a map of any channels."""
        return cls(spec.norm, "random" if spec.train_rule == "random" else "argmax")

    def logits(self, x: Tensor, stride: tuple[int, ...]) -> Tensor:
        """Return the norm of every component."""
        return functional.norm_logits(x, self.p, stride, exact=not self.training)

    def hard_phase(self, x: Tensor, stride: tuple[int, ...], tie_breaker: TieBreaker) -> Tensor:
        """Return the phase of the largest norm."""
        return functional.norm_choice(x, self.p, stride, tie_breaker, exact=not self.training)

    def extra_repr(self) -> str:
        """Show the norm and the rule."""
        return f"p={self.p}, train_rule={self.train_rule}"


class FixedSelector(Selector):
    """Plain striding: always the same component, by default the first. Not shift-equivariant.

    Args:
        index: The component to keep.
    """

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(f"FixedSelector: index must be an integer, got {index!r}.")
        if index < 0:
            raise ValueError(f"FixedSelector: index must be at least 0, got {index}.")
        self.index = index

    def logits(self, x: Tensor, stride: tuple[int, ...]) -> Tensor:
        """Return 1 for the component and 0 for the others."""
        return F.one_hot(self.choose(x, stride), math.prod(stride)).to(x.dtype)

    def choose(
        self, x: Tensor, stride: Stride = 2, tie_breaker: TieBreaker | None = None
    ) -> Tensor:
        """Return the same hard phase for every image."""
        num_phases = math.prod(check_input("FixedSelector", x, stride, divisible=False))
        if self.index >= num_phases:
            raise ValueError(
                f"FixedSelector: stride={stride} has {num_phases} phases, got index {self.index}."
            )
        return torch.full((x.shape[0],), self.index, dtype=torch.int64, device=x.device)

    def extra_repr(self) -> str:
        """Show the component."""
        return f"index={self.index}"


METHODS: dict[str, type[Selector]] = {
    "stride": FixedSelector,
    "aps": NormSelector,
    "lps": ConvSelector,
}


def set_tau(model: nn.Module, tau: float) -> None:
    """Set the Gumbel-softmax temperature of every learned selector in ``model``.

    Args:
        model: Any module that holds :class:`ConvSelector` layers.
        tau: The temperature, positive.
    """
    _check_tau("set_tau", tau)
    selectors = [module for module in model.modules() if isinstance(module, ConvSelector)]
    if not selectors:
        raise ValueError(f"set_tau: {type(model).__name__} has no ConvSelector to set tau in.")
    for selector in selectors:
        selector.tau.fill_(float(tau))


def _check_tau(who: str, tau: float) -> None:
    number = isinstance(tau, int | float) and not isinstance(tau, bool)
    if not (number and math.isfinite(tau) and tau > 0):
        raise ValueError(f"{who}: tau must be a positive number, got {tau!r}.")
