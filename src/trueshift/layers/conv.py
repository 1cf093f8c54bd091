"""Convolutions that give each pixel the same bits wherever it stands."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from trueshift._adjoint import Widths
from trueshift._eager import only_result, traced
from trueshift._validate import (
    PADDING_MODES,
    Stride,
    check_choice,
    check_dim,
    check_divisible,
    check_phase,
    stride_per_axis,
)
from trueshift.layers.images import ImageConv, reads_images
from trueshift.layers.steady import convolve
from trueshift.layers.window import phase_window
from trueshift.padding import pad


class _Same:
    """What the convolutions of all dimensions share; they keep torch's parameters and names."""

    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    kernel_size: tuple[int, ...]
    groups: int
    padding_mode: Any

    def forward(self, x: Tensor) -> Tensor:
        dilation = self._dilation(x)
        widths = self._widths(dilation)
        before, after = zip(*widths, strict=True)
        inside = self.padding_mode == "zeros" and before == after  # torch pads by itself
        x = x if inside else pad(x, widths, self.padding_mode)
        return convolve(
            x,
            self.weight,
            self.bias,
            self.stride,
            before if inside else 0,
            self.groups,
            dilation,
        )

    def with_border(self, x: Tensor, border: Widths) -> Tensor:
        """Return the convolution with a border of its own, before and after each axis.

        It is computed, not copied: right for circular padding and without a stride.
        """
        dilation = self._dilation(x)
        pairs = zip(self._widths(dilation), border, strict=True)
        widths = tuple((b + more, a + further) for (b, a), (more, further) in pairs)
        wide = pad(x, widths, self.padding_mode)
        return convolve(wide, self.weight, self.bias, groups=self.groups, dilation=dilation)

    def at(self, x: Tensor, phase: Tensor, stride: Stride) -> Tensor:
        """Return the convolution at the positions that ``phase`` keeps, computing only those.

        A soft phase gives the weighted sum of what it keeps. A convolution is linear, so that sum
        may be taken of its input, and one strided convolution is enough.

        Args:
            x: ``(B, C, *spatial)``, sizes divisible by the stride.
            phase: Hard ``(B,)`` or soft ``(B, P)``.
            stride: Sampling factor of all axes, or one per axis.
        """
        steps = stride_per_axis("SameConv", stride, x.ndim - 2)
        check_divisible("SameConv", x, steps)
        check_phase("SameConv", phase, x, math.prod(steps))
        hard = not phase.dtype.is_floating_point
        if hard and not only_result():
            phase = F.one_hot(phase, math.prod(steps)).to(x.dtype)
        if reads_images(x, self.weight, phase, self.dilation):
            padded = pad(x, self.widths, self.padding_mode)
            y: Tensor = ImageConv.apply(padded, self.weight, phase, steps, self.groups)
            return y if self.bias is None else y + self.bias.view(-1, *[1] * len(steps))
        window = phase_window(x, phase, steps, self.widths, self.padding_mode)
        return convolve(window, self.weight, self.bias, steps, 0, self.groups, self.dilation)

    @property
    def widths(self) -> Widths:
        """Border of each axis that keeps the size, before and after."""
        return self._widths(self.dilation)

    def _widths(self, dilation: tuple[int, ...]) -> Widths:
        reaches = [d * (k - 1) for k, d in zip(self.kernel_size, dilation, strict=True)]
        return tuple((reach // 2, reach - reach // 2) for reach in reaches)

    def _dilation(self, x: Tensor) -> tuple[int, ...]:
        """Distance of the taps, without the whole turns that they make around a circular map."""
        centred = all(k % 2 == 1 for k in self.kernel_size)  # else whole turns move the centre
        if self.padding_mode != "circular" or not centred or traced() or x.numel() == 0:
            return self.dilation
        sizes = x.shape[-len(self.dilation) :]
        return tuple((d - 1) % n + 1 for d, n in zip(self.dilation, sizes, strict=True))


class SameConv1d(_Same, nn.Conv1d):
    """1-D convolution at the size of its input divided by the stride; see :func:`same_conv`."""


class SameConv2d(_Same, nn.Conv2d):
    """2-D convolution at the size of its input divided by the stride; see :func:`same_conv`."""


class SameConv3d(_Same, nn.Conv3d):
    """3-D convolution at the size of its input divided by the stride; see :func:`same_conv`."""


SameConv = SameConv1d | SameConv2d | SameConv3d
_CLASSES: dict[int, Any] = {1: SameConv1d, 2: SameConv2d, 3: SameConv3d}


def computes_borders(conv: nn.Module) -> bool:
    """Whether :meth:`SameConv2d.with_border` gives what the convolution would, around its map."""
    ours = type(conv) in _CLASSES.values() and "forward" not in vars(conv)
    return ours and conv.padding_mode == "circular" and max(conv.stride) == 1  # type: ignore[arg-type]


def same_conv(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    padding_mode: str,
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
        padding_mode: Border, under torch's name.
        dim: Number of spatial axes.
        bias: Whether to add a bias.
        options: ``stride``, ``dilation`` and ``groups`` of torch's convolution.
    """
    check_dim("same_conv", dim)
    check_choice("same_conv", "padding_mode", padding_mode, PADDING_MODES)
    options |= {"bias": bias, "padding_mode": padding_mode}
    conv: SameConv = _CLASSES[dim](in_channels, out_channels, kernel_size, **options)
    return conv
