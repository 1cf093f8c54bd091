"""Scores of all components at once.

Convolving every component with a 3x3 kernel is one convolution of the whole map with taps a stride
apart. And the mean over channels and space is linear, so the second convolution of f_theta needs
one output channel, the mean of all of them, and one tap where its border wraps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from trueshift._cpu.borders import wrapped_copy
from trueshift._cpu.chunks import by_chunks, chunks
from trueshift._cpu.conditions import LIMITS, full_precision, image_size
from trueshift._cpu.layout import channels_innermost
from trueshift._cpu.sums import spatial_means
from trueshift._dispatch import fast
from trueshift._validate import Mode
from trueshift.exact import CONVOLUTIONS, channel_sum, channels_last, convolve, order_free_mean
from trueshift.functional import Theta, conv_logits, conv_ranking, norm_logits, norm_ranking
from trueshift.windows import component_view, offset_blocks, pad


def _ranks_by_rounded_sums(x: Tensor, theta: Theta, stride: Any, mode: Mode) -> bool:
    return mode == "circular" and not torch.is_grad_enabled() and full_precision(x)


@fast(conv_ranking, when=_ranks_by_rounded_sums)
def rank_by_rounded_sums(
    x: Tensor,
    theta: Theta,
    stride: tuple[int, ...],
    mode: Mode,
) -> Tensor:
    """Compare rounded sums; where they are too close, exact ones.

    The terms have the same bits at every position, only the sums over space do not.
    """
    border = tuple((step, step) for step in stride)
    weight1, bias1, weight2, bias2 = theta

    def means(part: Tensor) -> Tensor:
        wide = wrapped_copy(part, border, channels_innermost(part))
        return spatial_means(convolve(wide, weight1, bias1, dilation=stride).relu_(), stride)

    hidden = by_chunks(means, x, per_image=_per_image(x, weight1))  # (B, C_hid, *stride)
    terms = hidden.double() * _tap(weight2)
    scores = terms.sum(1).flatten(1)
    margin = max(1.0, weight1.shape[0] / 512) * LIMITS.close
    unsure = terms.abs().sum(1).flatten(1).amax(1) * margin

    def exactly(part: Tensor) -> Tensor:
        scores = collapsed_logits(part, theta, stride, mode, exact=True)
        return scores - bias2.double().mean()

    return _with_exact(scores, unsure, x, exactly)


def _with_exact(
    scores: Tensor, unsure: Tensor, x: Tensor, exactly: Callable[[Tensor], Tensor]
) -> Tensor:
    """Replace the scores of images whose best two differ by less than ``unsure``."""
    best, second = scores.topk(2, dim=1).values.unbind(1)
    close = ~(best - second > unsure)
    if close.any():
        scores[close] = exactly(x[close])
    return scores


def _trains(x: Tensor, theta: Theta, stride: Any, mode: Mode, *, exact: bool = False) -> bool:
    if exact or mode != "circular" or not torch.is_grad_enabled():
        return False
    return full_precision(x) and theta[0].dtype == x.dtype


@fast(conv_logits, when=_trains)
def trained_logits(
    x: Tensor,
    theta: Theta,
    stride: tuple[int, ...],
    mode: Mode,
    *,
    exact: bool = False,
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
    x: Tensor,
    theta: Theta,
    stride: tuple[int, ...],
    mode: Mode,
    *,
    exact: bool = False,
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
            means.append(spatial_means(hidden.relu_(), stride))
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
    for part, over in chunks(x, above, per_image=_per_image(x, weight)):
        components = component_view(part, stride).flatten(0, dim)
        components = pad(components, ((1, 1),) * dim, "circular")
        over = component_view(over, stride).flatten(0, dim)
        total = total + weight_gradient(over, components, weight)
    return total


def weight_gradient(
    grad: Tensor, x: Tensor, weight: Tensor, stride: tuple[int, ...] | None = None, groups: int = 1
) -> Tensor:
    """Return the gradient of a convolution's weight; the values of the weight are not read."""
    dim = x.ndim - 2
    none, one = [0] * dim, [1] * dim
    _, gradient, _ = torch.ops.aten.convolution_backward(
        grad, x, weight, None, stride or one, none, one, False, none, groups, [False, True, False]
    )
    return cast(Tensor, gradient)


def _is_power_sum(x: Tensor, p: float, stride: tuple[int, ...]) -> bool:
    return p != math.inf


@fast(norm_ranking, when=_is_power_sum)
def rank_by_rounded_norms(x: Tensor, p: float, stride: tuple[int, ...]) -> Tensor:
    """Compare rounded norms; where they are too close, exact ones."""
    norms = _rounded_norms(x, p, stride)
    unsure = norms.amax(1) * LIMITS.close
    return _with_exact(norms, unsure, x, lambda part: norm_logits(part, p, stride, exact=True))


def _is_rounded(x: Tensor, p: float, stride: tuple[int, ...], *, exact: bool = False) -> bool:
    return not exact and p != math.inf and not torch.is_grad_enabled()


@fast(norm_logits, when=_is_rounded)
def rounded_norms(x: Tensor, p: float, stride: tuple[int, ...], *, exact: bool = False) -> Tensor:
    """Sum powers over channels first, then over space axis by axis."""
    return _rounded_norms(x, p, stride).to(torch.promote_types(x.dtype, torch.float32))


def _rounded_norms(x: Tensor, p: float, stride: tuple[int, ...]) -> Tensor:
    def means(part: Tensor) -> Tensor:
        return spatial_means(_channel_powers(part, p), stride).flatten(1).double()

    sums = by_chunks(means, x, per_image=image_size(x))
    sums = sums * (math.prod(x.shape[2:]) // math.prod(stride))
    return sums if p == 1 else sums.sqrt()


def _channel_powers(x: Tensor, p: float) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    if not channels_innermost(x):
        powers = x.to(wide).abs() if p == 1 else x.to(wide).square()
        return powers.sum(1, keepdim=True)
    norms = torch.linalg.vector_norm(x, p, 1, keepdim=True, dtype=wide)  # no map of powers
    return norms if p == 1 else norms.square()
