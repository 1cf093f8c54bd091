"""Selectors: which polyphase component to keep.

A selector is a module ``(x, stride) -> logits (B, P)`` with a method ``choose(x, stride) ->
phase``. Any score that permutes when the map shifts keeps the sampling shift-equivariant (paper
claim 1).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trueshift._adjoint import channels_innermost, channels_last, offset_blocks
from trueshift._chunks import by_chunks
from trueshift._eager import by_hand, in_full_precision, only_result
from trueshift._validate import (
    PADDING_MODES,
    Stride,
    check_channels,
    check_choice,
    check_dim,
    check_divisible,
    check_map,
    check_positive,
    stride_per_axis,
)
from trueshift.functional import order_free_mean
from trueshift.layers.scoring import (
    ComponentMeans,
    bordered,
    bordered_components,
    component_means,
    per_image,
    spatial_means,
)
from trueshift.layers.steady import CONVS, channel_sum, convolve
from trueshift.ties import argmax_phase

TRAIN_RULES = ("gumbel", "straight", "softmax")
TEST_RULES = ("argmax", "softmax")

# Scores closer than this are compared again with exact sums; torch's float32 sums, which add parts
# of parts, err less.
_CLOSE = 2.0**-16


class ConvSelector(nn.Module):
    """The learned selector of LPS: f_theta of the paper (section 4.2, appendix table A3).

    Every component goes through the same convolution, ReLU and second convolution; the mean over
    channels and space is its logit. That mean is linear, so the second convolution is run with one
    output channel, the mean of all of them, and with one tap where its border is circular.

    While training the phase is soft: a Gumbel-softmax sample at temperature ``tau``. At test time
    it is the hard argmax, and where scores are close the sums are order-free, so that the choice is
    exact.

    Args:
        channels: Channels ``C`` of the feature map.
        hidden_channels: Width ``C_hid`` of the first convolution; ``None`` means ``C``.
        padding_mode: Border of both convolutions; ``"circular"`` makes the logits exactly
            shift-permutation-equivariant.
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

    tau: Tensor

    def __init__(
        self,
        channels: int,
        hidden_channels: int | None = None,
        padding_mode: str = "circular",
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
        check_choice("ConvSelector", "padding_mode", padding_mode, PADDING_MODES)
        check_choice("ConvSelector", "train_rule", train_rule, TRAIN_RULES)
        check_choice("ConvSelector", "test_rule", test_rule, TEST_RULES)
        _check_tau("ConvSelector", tau)
        self.channels, self.dim, self.padding_mode = channels, dim, padding_mode
        self.train_rule, self.test_rule = train_rule, test_rule
        same: dict[str, Any] = {"padding": 1, "padding_mode": padding_mode}
        self.conv1 = CONVS[dim](channels, hidden_channels, 3, **same)
        self.conv2 = CONVS[dim](hidden_channels, hidden_channels, 3, **same)
        self.register_buffer("tau", torch.tensor(float(tau)))

    def forward(self, x: Tensor, stride: Stride = 2) -> Tensor:
        scores = self._exact_scores(x, self._steps(x, stride))
        logits = scores + self.conv2.bias.mean()  # type: ignore[union-attr]
        return logits.to(torch.promote_types(x.dtype, torch.float32))

    def choose(
        self,
        x: Tensor,
        stride: Stride = 2,
        witness: Tensor | None = None,
        *,
        wide: Tensor | None = None,
    ) -> Tensor:
        """Return the phase of ``x``: soft while training, hard at test time.

        Args:
            x: ``(B, C, *spatial)``.
            stride: Sampling factor of all axes, or one per axis.
            witness: A map that moves as ``x`` does and breaks ties in its place: that which will be
                sampled, if ``x`` is not.
            wide: ``x`` with a circular border of one stride, if there is one: a hard choice then
                need not copy the map for it.
        """
        if self.training and self.train_rule != "softmax":
            logits, hard = self(x, stride), self.train_rule == "straight"
            return F.gumbel_softmax(logits, self.tau, hard, dim=1)  # type: ignore[arg-type]
        if self.training or self.test_rule == "softmax":
            return (self(x, stride) / self.tau).softmax(1)
        with torch.no_grad():
            steps = self._steps(x, stride)
            scores = self.scores(x, steps) if wide is None else self.scores(x, steps, wide=wide)
            return argmax_phase(scores, x if witness is None else witness, steps)

    def scores(self, x: Tensor, stride: Stride = 2, *, wide: Tensor | None = None) -> Tensor:
        """Return what :meth:`choose` compares at test time: logits, exact where nearly tied.

        They come without the bias that all of them share. Arguments as for :meth:`choose`.
        """
        steps = self._steps(x, stride)
        usual = only_result() and x.device.type == "cpu" and in_full_precision(x)
        if not usual or self.training or self.padding_mode != "circular":
            return self._exact_scores(x, steps)
        weight, bias = self.conv1.weight, self.conv1.bias

        def component(part: Tensor, wide: Tensor | None = None) -> Tensor:
            wide = bordered(part, steps) if wide is None else wide
            return component_means(wide, weight, bias, steps)  # type: ignore[arg-type]

        maps = (x,) if wide is None else (x, wide)
        means = by_chunks(component, *maps, per_image=per_image(x, weight))
        terms = means.double() * self._tap()  # (B, hidden, *stride)
        scores = terms.sum(1).flatten(1)
        best, second = scores.topk(2, dim=1).values.unbind(1)
        unsure = terms.abs().sum(1).flatten(1).amax(1) * self._rounding
        close = ~(best - second > unsure)  # too close for rounded sums to tell apart
        if bool(close.any()):
            scores[close] = self._exact_scores(x[close], steps)
        return scores

    @property
    def _rounding(self) -> float:
        """How far rounded sums may be off, as a share of the sum of absolute values."""
        return max(1.0, self.conv1.out_channels / 512) * _CLOSE

    def _steps(self, x: Tensor, stride: Stride) -> tuple[int, ...]:
        check_map("ConvSelector", x, self.dim)
        check_channels("ConvSelector", x, self.channels)
        steps = stride_per_axis("ConvSelector", stride, self.dim)
        check_divisible("ConvSelector", x, steps)
        return steps

    def _exact_scores(self, x: Tensor, steps: tuple[int, ...]) -> Tensor:
        """Return the scores in full precision; at test time by order-free sums."""
        weight = self.conv1.weight
        if self.training and self.padding_mode == "circular" and by_hand(x, weight):
            means, _ = ComponentMeans.apply(x, weight, self.conv1.bias, steps)
            return (means * self._tap()).sum(1).flatten(1)
        if self.training or self.padding_mode not in ("circular", "zeros"):
            components = bordered_components(x, steps, self.padding_mode)
            terms = self._terms(components, (1,) * self.dim)
        else:
            size = per_image(x, weight)
            terms = by_chunks(lambda part: self._dense_terms(part, steps), x, per_image=size)
        terms = terms.to(torch.promote_types(terms.dtype, torch.float32))
        axes = (1, *range(2 + self.dim, 2 + 2 * self.dim))
        mean = terms.mean(axes) if self.training else order_free_mean(terms, axes)
        return mean.view(x.shape[0], math.prod(steps))

    def _dense_terms(self, x: Tensor, stride: tuple[int, ...]) -> Tensor:
        """Convolve all components at once, with taps a stride apart: forward, that is quicker."""
        return self._terms(bordered(x, stride, self.padding_mode), stride)

    def _terms(self, wide: Tensor, stride: tuple[int, ...]) -> Tensor:
        """What every pixel adds to the logit of its component, ``(B, 1, *stride, h, w)``."""
        hidden = convolve(wide, self.conv1.weight, self.conv1.bias, dilation=stride)
        hidden = hidden.relu() if hidden.requires_grad else hidden.relu_()
        if self.padding_mode != "circular":
            hidden = bordered(hidden, stride, self.padding_mode)
            return offset_blocks(convolve(hidden, self._taps(), dilation=stride), stride)
        tap = self._tap()
        if self.training or channels_last(hidden):
            return offset_blocks(convolve(hidden, tap), stride)
        weighted = hidden * tap if hidden.requires_grad else hidden.mul_(tap)
        return offset_blocks(channel_sum(weighted), stride)

    def _taps(self) -> Tensor:
        """Return the second convolution's weight, the mean over its output channels."""
        return self.conv2.weight.mean(0, keepdim=True)

    def _tap(self) -> Tensor:
        """Return the sum of its taps: where the border is circular, each reads every pixel."""
        return self._taps().sum(tuple(range(2, 2 + self.dim)), keepdim=True)

    def extra_repr(self) -> str:
        """Show the rules."""
        return f"train_rule={self.train_rule}, test_rule={self.test_rule}"


class NormSelector(nn.Module):
    """The handcrafted selector of APS: the component of the largest l_p norm (paper section 3).

    It has no parameters, and its choice is hard while training too.

    Args:
        p: 1, 2 or ``inf``.
    """

    def __init__(self, p: float = 2) -> None:
        super().__init__()
        if p not in (1, 2, math.inf):
            raise ValueError(f"NormSelector: p must be 1, 2 or inf, got {p!r}.")
        self.p = p

    def forward(self, x: Tensor, stride: Stride = 2) -> Tensor:
        norms = self._norms(x, stride, exact=not self.training)
        return norms.to(torch.promote_types(x.dtype, torch.float32))

    def choose(self, x: Tensor, stride: Stride = 2) -> Tensor:
        """Return the hard phase of ``x``."""
        check_map("NormSelector", x)
        steps = stride_per_axis("NormSelector", stride, x.ndim - 2)
        with torch.no_grad():
            norms = self._norms(x, steps, exact=False) if self.training else self.scores(x, steps)
            return argmax_phase(norms, x, steps)

    def scores(self, x: Tensor, stride: Stride = 2) -> Tensor:
        """Return what :meth:`choose` compares at test time: norms, exact where nearly tied."""
        if torch.compiler.is_compiling():
            return self._norms(x, stride, exact=True)
        norms = self._norms(x, stride, exact=False)
        best, second = norms.topk(2, dim=1).values.unbind(1)
        close = second >= best * (1 - _CLOSE)  # too close for rounded sums to tell apart
        if bool(close.any()):
            norms[close] = self._norms(x[close], stride, exact=True)
        return norms

    def _norms(self, x: Tensor, stride: Stride, *, exact: bool) -> Tensor:
        check_map("NormSelector", x)
        dim = x.ndim - 2
        steps = stride_per_axis("NormSelector", stride, dim)
        check_divisible("NormSelector", x, steps)
        axes = tuple(range(2 + dim, 2 + 2 * dim))
        if self.p == math.inf:
            return offset_blocks(x.abs(), steps).amax((1, *axes)).flatten(1)

        def means(part: Tensor) -> Tensor:
            terms = self._powers(part) if exact else self._channel_powers(part)
            if not exact and terms.device.type == "cpu":
                return spatial_means(terms, steps).flatten(1).double()
            return order_free_mean(offset_blocks(terms, steps), (1, *axes)).flatten(1)

        count = math.prod(x.shape[2:]) // math.prod(steps) * (x.shape[1] if exact else 1)
        sums = by_chunks(means, x) * count
        return sums if self.p == 1 else sums.sqrt()

    def _powers(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return wide.abs() if self.p == 1 else wide.square()

    def _channel_powers(self, x: Tensor) -> Tensor:
        """Sum powers over channels; the sum rounds differently from place to place."""
        if not channels_innermost(x):
            return self._powers(x).sum(1, keepdim=True)
        wide = torch.promote_types(x.dtype, torch.float32)
        norms = torch.linalg.vector_norm(x, self.p, 1, keepdim=True, dtype=wide)  # no map of powers
        return norms if self.p == 1 else norms.square()

    def extra_repr(self) -> str:
        """Show the norm."""
        return f"p={self.p}"


class FixedSelector(nn.Module):
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

    def forward(self, x: Tensor, stride: Stride = 2) -> Tensor:
        return F.one_hot(self.choose(x, stride), self._num_phases(x, stride)).to(x.dtype)

    def choose(self, x: Tensor, stride: Stride = 2) -> Tensor:
        """Return the same hard phase for every image."""
        num_phases = self._num_phases(x, stride)
        if self.index >= num_phases:
            raise ValueError(
                f"FixedSelector: stride={stride} has {num_phases} phases, got index {self.index}."
            )
        return torch.full((x.shape[0],), self.index, dtype=torch.int64, device=x.device)

    def _num_phases(self, x: Tensor, stride: Stride) -> int:
        check_map("FixedSelector", x)
        return math.prod(stride_per_axis("FixedSelector", stride, x.ndim - 2))

    def extra_repr(self) -> str:
        """Show the component."""
        return f"index={self.index}"


def set_tau(model: nn.Module, tau: float) -> None:
    """Set the Gumbel-softmax temperature of every learned selector in ``model``.

    Args:
        model: Any module that holds :class:`ConvSelector` layers.
        tau: The temperature, positive.
    """
    _check_tau("set_tau", tau)
    selectors = [module for module in model.modules() if isinstance(module, ConvSelector)]
    if not selectors:
        raise ValueError(f"set_tau: {type(model).__name__} holds no ConvSelector to set tau of.")
    for selector in selectors:
        selector.tau.fill_(float(tau))


def _check_tau(who: str, tau: float) -> None:
    number = isinstance(tau, int | float) and not isinstance(tau, bool)
    if not (number and math.isfinite(tau) and tau > 0):
        raise ValueError(f"{who}: tau must be a positive number, got {tau!r}.")
