"""What learned selectors sum: while training, with a backward pass that keeps little."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from trueshift._adjoint import channels_last, component_view
from trueshift._chunks import chunks
from trueshift.layers.steady import CONV_FUNCTIONS, convolve, weight_gradient
from trueshift.padding import pad


class ComponentMeans(Function):
    """The mean over space of ``relu(conv(component))``, for every component; circular borders.

    Forward, all components are convolved at once, with taps a stride apart. Kept for the backward
    pass are the map itself and where the ReLU was positive. The gradient of the map is one such
    convolution too, of a map that is constant per component there and zero elsewhere.
    """

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, stride: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        means, positive = [], []
        for (part,) in chunks(x, per_image=per_image(x, weight)):
            hidden = _convolve(part, weight, stride, bias)
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
            of_x = _convolve(above, flipped, stride) if need_x else None
            of_weight = _of_weight(x, above, weight, stride) if need_weight else None
            return of_x, of_weight, above.sum((0, *axes)) if need_bias else None, None


def component_means(wide: Tensor, weight: Tensor, bias: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Return what :class:`ComponentMeans` does, where no backward pass follows.

    Only the sums over space round by place: what they add are the same bits wherever it stands.

    Args:
        wide: The map with a circular border of one stride.
        weight: Of the convolution.
        bias: Of the convolution.
        stride: Sampling factor of each axis.
    """
    hidden = convolve(wide, weight, bias, dilation=stride)
    return spatial_means(hidden.relu_(), stride)  # (B, hidden, *stride)


def spatial_means(x: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Return the mean over space of every component, ``(B, C, *stride)``.

    One axis after the other, in the order of memory: several times quicker than all at once.
    """
    last, count = channels_last(x), math.prod(x.shape[2:]) // math.prod(stride)
    sums = x.movedim(1, -1) if last else x
    for axis, step in enumerate(stride, start=1 if last else 2):
        sums = sums.unflatten(axis, (-1, step)).sum(axis)
    return (sums.movedim(-1, 1) if last else sums) / count


def _of_weight(x: Tensor, above: Tensor, weight: Tensor, stride: tuple[int, ...]) -> Tensor:
    total = torch.zeros_like(weight)
    for part, over in chunks(x, above, per_image=per_image(x, weight)):
        components = bordered_components(part, stride, "circular")
        over = component_view(over, stride).flatten(0, len(stride))
        total = total + weight_gradient(over, components, weight)
    return total


def bordered_components(x: Tensor, stride: tuple[int, ...], mode: str) -> Tensor:
    """Split into components ``(B * P, C, h + 2, w + 2)`` with borders for a convolution."""
    dim = len(stride)
    widths = ((1, 1),) * dim
    components = component_view(x, stride)  # (B, s, s, C, h, w)
    if mode == "circular":
        return pad(components, widths, mode, last=dim > 1).flatten(0, dim)
    return pad(components.flatten(0, dim), widths, mode)


def _convolve(
    x: Tensor, weight: Tensor, stride: tuple[int, ...], bias: Tensor | None = None
) -> Tensor:
    return CONV_FUNCTIONS[len(stride)](bordered(x, stride), weight, bias, dilation=stride)


def bordered(x: Tensor, stride: tuple[int, ...], mode: str = "circular") -> Tensor:
    """Give every component a border of one pixel: the map one of a stride."""
    return pad(x, tuple((step, step) for step in stride), mode)


def per_image(x: Tensor, weight: Tensor) -> int:
    """Return how many values the larger of a convolution's maps has per image."""
    return max(weight.shape[:2]) * math.prod(x.shape[2:])
