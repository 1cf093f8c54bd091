"""Convolutions that keep the size of a map; at test time, rounding ignores the position."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from trueshift import functional
from trueshift._validate import Mode, Stride, check_dim, check_input, check_mode, check_phase


class _Same:
    """What the convolutions of all dimensions share; they keep torch's parameters and names.

    Called with a phase and the stride to sample ``down`` by, they compute only what it keeps.
    """

    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    padding_mode: Any
    training: bool

    def forward(self, x: Tensor, phase: Tensor | None = None, down: Stride | None = None) -> Tensor:
        conv = functional.Conv(self.weight, self.bias, self.dilation, self.groups)
        mode, exact = self.padding_mode, not self.training
        if phase is None or down is None:
            return functional.convolution(x, conv, self.stride, mode, exact=exact)
        strides = check_input("SameConv", x, down)
        check_phase("SameConv", phase, x, math.prod(strides))
        return functional.conv_down(x, conv, phase, strides, mode, exact=exact)


class SameConv1d(_Same, nn.Conv1d):
    """1-D convolution at the size of its input divided by the stride; see :func:`same_conv`."""


class SameConv2d(_Same, nn.Conv2d):
    """2-D convolution at the size of its input divided by the stride; see :func:`same_conv`."""


class SameConv3d(_Same, nn.Conv3d):
    """3-D convolution at the size of its input divided by the stride; see :func:`same_conv`."""


SameConv = SameConv1d | SameConv2d | SameConv3d
_CLASSES: dict[int, Any] = {1: SameConv1d, 2: SameConv2d, 3: SameConv3d}


def same_conv(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    padding_mode: Mode,
    *,
    dim: int = 2,
    bias: bool = False,
    **options: Any,
) -> SameConv:
    """Build a convolution that keeps the size of the map (divided by its stride, if it has one).

    A circular border may be wider than the map.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Taps per axis.
        padding_mode: Border, in torch's words, for all axes or one per axis.
        dim: Number of spatial axes.
        bias: Whether to add a bias.
        options: ``stride``, ``dilation`` and ``groups`` of torch's convolution.
    """
    check_dim("same_conv", dim)
    conv: SameConv = _CLASSES[dim](in_channels, out_channels, kernel_size, bias=bias, **options)
    conv.padding_mode = check_mode("same_conv", padding_mode, dim)
    return conv
