"""The convolution that reads images, at a soft phase: nobody asks for a gradient of the images."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from trueshift._adjoint import window_slices
from trueshift._eager import by_hand
from trueshift.layers.steady import CONV_FUNCTIONS, weight_gradient
from trueshift.layers.window import mix_windows

# Channels: gradients of wide weights, image by image, cost more than that of the input.
_FEW = 4


class ImageConv(Function):
    """Mix the windows of padded images and convolve with a stride.

    The gradient of the phases could be had from that of the mixed images, a transposed convolution
    to few channels, which is slow. It is also in the gradient of the weight: that of a kernel wider
    by the stride, taken image by image, holds the gradient at every phase as a window.
    """

    @staticmethod
    def forward(
        padded: Tensor, weight: Tensor, phase: Tensor, stride: tuple[int, ...], groups: int
    ) -> Tensor:
        conv = CONV_FUNCTIONS[len(stride)]
        return conv(mix_windows(padded, phase, stride), weight, None, stride, groups=groups)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        padded, weight, phase, ctx.stride, ctx.groups = inputs
        ctx.save_for_backward(padded, weight, phase)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        padded, weight, phase = ctx.saved_tensors
        sizes = [k + s - 1 for k, s in zip(weight.shape[2:], ctx.stride, strict=True)]
        wide = weight.new_empty(*weight.shape[:2], *sizes)  # its values are not read
        windows = list(window_slices(sizes, ctx.stride))
        of_weight, of_phase = torch.zeros_like(weight), []
        with torch.autocast("cpu", enabled=False):
            for image, above, weights in zip(padded.split(1), grad.split(1), phase, strict=True):
                whole = weight_gradient(above, image, wide, ctx.stride, ctx.groups)
                parts = torch.stack([whole[window] for window in windows])  # (P, O, C, *kernel)
                of_weight = of_weight + torch.tensordot(weights, parts, 1)
                of_phase.append((parts * weight).flatten(1).sum(1))
        return None, of_weight, torch.stack(of_phase), None, None


def reads_images(x: Tensor, weight: Tensor, phase: Tensor, dilation: tuple[int, ...]) -> bool:
    """Whether :class:`ImageConv` does what is wanted, and quicker."""
    if x.requires_grad or x.shape[1] > _FEW or math.prod(dilation) != 1:
        return False
    if not by_hand(x, weight, phase):
        return False
    return weight.requires_grad and phase.requires_grad
