"""Scores of all components at once.

Convolving every component with a 3x3 kernel is one convolution of the whole map with taps a stride
apart. And the mean over channels and space is linear, so the second convolution of f_theta needs
one output channel, the mean of all of them, and one tap where its border wraps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from trueshift._cpu.conditions import (
    LIMITS,
    by_chunks,
    channels_innermost,
    chunks,
    full_precision,
    image_size,
)
from trueshift._cpu.copies import wrapped_copy
from trueshift._dispatch import fast
from trueshift._validate import Mode
from trueshift.exact import CONVOLUTIONS, channel_sum, channels_last, convolve, order_free_mean
from trueshift.functional import Theta, conv_choice, conv_logits, norm_choice, norm_logits
from trueshift.ties import TieBreaker, argmax_phase, break_ties
from trueshift.windows import component_view, offset_blocks, pad


def _has_rounded_sums(x: Tensor, theta: Theta, stride: Any, mode: Mode, tie_breaker: Any) -> bool:
    return mode == "circular" and full_precision(x)


@fast(conv_choice, when=_has_rounded_sums)
def choose_by_rounded_sums(
    x: Tensor, theta: Theta, stride: tuple[int, ...], mode: Mode, tie_breaker: TieBreaker
) -> Tensor:
    """Compare rounded sums; where they are too close, exact ones.

    The terms have the same bits at every position, only the sums over space do not.
    """
    border = tuple((step, step) for step in stride)
    weight1, bias1, weight2, _ = theta

    def means(part: Tensor) -> Tensor:
        last = channels_innermost(part)
        hidden = convolve(wrapped_copy(part, border, last), weight1, bias1, dilation=stride)
        return spatial_means(hidden.relu_(), stride, last)

    per_image = max(weight1.shape[:2]) * math.prod(x.shape[2:])
    hidden = by_chunks(means, x, per_image=per_image)  # (B, C_hid, *stride)
    terms = hidden.double() * _tap(weight2)
    margin = max(1.0, weight1.shape[0] / 512) * LIMITS.close
    unsure = terms.abs().sum(1).flatten(1).amax(1) * margin

    def exactly(part: Tensor) -> Tensor:
        return collapsed_logits(part, theta, stride, mode, exact=True)

    return _choose(terms.sum(1).flatten(1), unsure, exactly, x, tie_breaker, stride)


def _choose(
    scores: Tensor,
    unsure: Tensor,
    exactly: Callable[[Tensor], Tensor],
    x: Tensor,
    tie_breaker: TieBreaker,
    stride: tuple[int, ...],
) -> Tensor:
    """Choose the largest score; where the best two differ by less than ``unsure``, look again."""
    best, second = scores.topk(2, dim=1).values.unbind(1)
    close = ~(best - second > unsure)  # also where a score is not finite
    if not close.any():
        return scores.argmax(1)
    scores[close] = exactly(x[close])
    return argmax_phase(scores, tie_breaker, stride)


@fast(argmax_phase)
def argmax_where_tied(logits: Tensor, x: TieBreaker, stride: tuple[int, ...]) -> Tensor:
    """Read the map only if there is a tie to break."""
    tied = logits == logits.amax(1, keepdim=True)
    unclear = tied.sum(1) != 1  # none is where a logit is not a number
    if not unclear.any():
        return logits.argmax(1)
    if not logits.isfinite().all():
        raise ValueError(
            "choose: scores must be finite to choose a phase, got"
            f" {logits[unclear][0].tolist()}. Check the input and the weights for NaN and infinity."
        )
    return break_ties(logits, x if isinstance(x, Tensor) else x(), stride)


def _trains(x: Tensor, theta: Theta, stride: Any, mode: Mode, *, exact: bool = False) -> bool:
    if exact or mode != "circular" or not torch.is_grad_enabled():
        return False
    return full_precision(x) and theta[0].dtype == x.dtype


@fast(conv_logits, when=_trains)
def trained_logits(
    x: Tensor, theta: Theta, stride: tuple[int, ...], mode: Mode, *, exact: bool = False
) -> Tensor:
    """Keep only the map and the sign of the first convolution for the backward pass."""
    weight1, bias1, weight2, bias2 = theta
    means, _ = ComponentMeans.apply(x, weight1, bias1, stride)
    return (means * _tap(weight2)).sum(1).flatten(1) + bias2.mean()


def _has_dilated_border(
    x: Tensor, theta: Theta, stride: Any, mode: Mode, *, exact: bool = False
) -> bool:
    modes = {mode} if isinstance(mode, str) else set(mode)
    return modes <= {"circular", "zeros"}


@fast(conv_logits, when=_has_dilated_border)
def collapsed_logits(
    x: Tensor, theta: Theta, stride: tuple[int, ...], mode: Mode, *, exact: bool = False
) -> Tensor:
    """Run both convolutions on the whole map, the second with one output channel."""
    weight1, bias1, weight2, bias2 = theta
    border = tuple((step, step) for step in stride)

    def terms(part: Tensor) -> Tensor:
        wide = pad(part, border, mode)
        hidden = convolve(wide, weight1, bias1, dilation=stride, exact=exact)
        hidden = hidden.relu() if hidden.requires_grad else hidden.relu_()
        if mode != "circular":
            taps = weight2.mean(0, keepdim=True)
            return convolve(pad(hidden, border, mode), taps, dilation=stride, exact=exact)
        if not exact or channels_last(hidden):
            return convolve(hidden, _tap(weight2), exact=exact)
        return channel_sum(hidden * _tap(weight2))

    values = by_chunks(terms, x, per_image=_per_image(x, weight1))  # (B, 1, *spatial)
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    blocks = offset_blocks(values, stride).flatten(2, 1 + len(stride)).squeeze(1)  # (B, P, h, w)
    axes = tuple(range(2, blocks.ndim))
    means = order_free_mean(blocks, axes) if exact else blocks.mean(axes)
    return means + bias2.mean()


def _tap(weight2: Tensor) -> Tensor:
    """Return the mean over output channels and the sum of taps, of which each reads every pixel."""
    axes = tuple(range(2, weight2.ndim))
    return weight2.mean(0, keepdim=True).sum(axes, keepdim=True)


def _per_image(x: Tensor, weight: Tensor) -> int:
    """Return how many values the larger of a convolution's maps has per image."""
    return max(weight.shape[:2]) * math.prod(x.shape[2:])


def spatial_means(x: Tensor, stride: tuple[int, ...], last: bool) -> Tensor:
    """Return the mean over space of every component, ``(B, C, *stride)``, in rounded sums.

    One axis after the other, in the order of memory: several times faster than all at once.
    """
    count = math.prod(x.shape[2:]) // math.prod(stride)
    sums = x.movedim(1, -1) if last else x
    for axis, step in enumerate(stride, start=1 if last else 2):
        sums = sums.unflatten(axis, (-1, step)).sum(axis)
    return (sums.movedim(-1, 1) if last else sums) / count


class ComponentMeans(Function):
    """The mean over space of ``relu(conv(component))``, for every component; circular borders.

    The gradient of the map is a convolution too, of a map that is constant per component where the
    ReLU was positive and zero elsewhere.
    """

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, stride: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        means, positive = [], []
        for (part,) in chunks(x, per_image=_per_image(x, weight)):
            hidden = _convolve_components(part, weight, stride, bias)
            positive.append(hidden > 0)
            means.append(spatial_means(hidden.relu_(), stride, channels_last(hidden)))
        return torch.cat(means), torch.cat(positive)  # (B, hidden, *stride), (B, hidden, *spatial)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, _, ctx.stride = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None
        x, weight, positive = ctx.saved_tensors
        stride, axes = ctx.stride, tuple(range(2, x.ndim))
        need_x, need_weight, need_bias, _ = ctx.needs_input_grad
        counts = [size // step for size, step in zip(x.shape[2:], stride, strict=True)]
        with torch.autocast("cpu", enabled=False):
            above = positive * (grad / math.prod(counts)).repeat(1, 1, *counts)
            flipped = weight.flip(axes).transpose(0, 1)
            of_x = _convolve_components(above, flipped, stride) if need_x else None
            of_weight = _of_weight(x, above, weight, stride) if need_weight else None
            return of_x, of_weight, above.sum((0, *axes)) if need_bias else None, None


def _convolve_components(
    x: Tensor, weight: Tensor, stride: tuple[int, ...], bias: Tensor | None = None
) -> Tensor:
    wide = pad(x, tuple((step, step) for step in stride), "circular")
    return CONVOLUTIONS[len(stride)](wide, weight, bias, dilation=stride)


def _of_weight(x: Tensor, above: Tensor, weight: Tensor, stride: tuple[int, ...]) -> Tensor:
    total, dim = torch.zeros_like(weight), len(stride)
    none, one = [0] * dim, [1] * dim
    for part, over in chunks(x, above, per_image=_per_image(x, weight)):
        components = component_view(part, stride).flatten(0, dim)
        components = pad(components, ((1, 1),) * dim, "circular")
        over = component_view(over, stride).flatten(0, dim)
        _, gradient, _ = torch.ops.aten.convolution_backward(
            over, components, weight, None, one, none, one, False, none, 1, [False, True, False]
        )  # the values of the weight are not read
        total = total + gradient
    return total


def _is_power_sum(x: Tensor, p: float, stride: Any, tie_breaker: Any, **_: bool) -> bool:
    return p != math.inf


@fast(norm_choice, when=_is_power_sum)
def choose_by_rounded_norms(
    x: Tensor, p: float, stride: tuple[int, ...], tie_breaker: TieBreaker, *, exact: bool = True
) -> Tensor:
    """Compare rounded sums of powers; where they are too close, exact norms."""

    def means(part: Tensor) -> Tensor:
        last = channels_innermost(part)
        return spatial_means(_channel_powers(part, p, last), stride, last).flatten(1).double()

    sums = by_chunks(means, x, per_image=image_size(x))
    norms = sums if p == 1 else sums.sqrt()

    def exactly(part: Tensor) -> Tensor:
        return norm_logits(part, p, stride, exact=True)

    return _choose(norms, norms.amax(1) * LIMITS.close, exactly, x, tie_breaker, stride)


def _channel_powers(x: Tensor, p: float, last: bool) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    if not last:
        powers = x.to(wide).abs() if p == 1 else x.to(wide).square()
        return powers.sum(1, keepdim=True)
    norms = torch.linalg.vector_norm(x, p, 1, keepdim=True, dtype=wide)  # no map of powers
    return norms if p == 1 else norms.square()
