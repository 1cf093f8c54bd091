"""What learned selectors compute while training, with a backward pass that keeps little."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from trueshift._adjoint import component_view, offset_blocks
from trueshift._chunks import chunks
from trueshift.layers.steady import CONV_FUNCTIONS, weight_gradient
from trueshift.padding import pad


class ComponentMeans(Function):
    """The mean over space of ``relu(conv(component))``, for every component; circular borders.

    Forward, all components are convolved at once, with taps a stride apart. Kept for the backward
    pass are the map itself and where the ReLU was positive; so the gradient of the map is one such
    convolution too, of what is constant but for zeros.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: tuple[int, ...]
    ) -> Tensor:
        means, positive = [], []
        axes = tuple(range(-len(stride), 0))
        for (part,) in chunks(x, per_image=_per_image(x, weight)):
            hidden = _convolve(part, weight, stride, bias)
            positive.append(hidden > 0)
            means.append(offset_blocks(hidden.relu_(), stride).mean(axes))
        ctx.save_for_backward(x, weight, torch.cat(positive))
        ctx.stride = stride
        return torch.cat(means)  # (B, hidden, *stride)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, positive = ctx.saved_tensors
        stride, axes = ctx.stride, tuple(range(2, x.ndim))
        counts = [size // step for size, step in zip(x.shape[2:], stride, strict=True)]
        above = (grad / math.prod(counts)).repeat(1, 1, *counts) * positive
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = _convolve(above, weight.flip(axes).transpose(0, 1), stride)
        of_weight = torch.zeros_like(weight)
        for part, over in chunks(x, above, per_image=_per_image(x, weight)):
            components = bordered_components(part, stride, "circular")
            over = component_view(over, stride).flatten(0, len(stride))
            of_weight = of_weight + weight_gradient(over, components, weight)
        return of_x, of_weight, above.sum((0, *axes)), None


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
    wide = pad(x, tuple((step, step) for step in stride), "circular")
    return CONV_FUNCTIONS[len(stride)](wide, weight, bias, dilation=stride)


def _per_image(x: Tensor, weight: Tensor) -> int:
    return max(weight.shape[:2]) * math.prod(x.shape[2:])
