"""Low-pass filters around sampling: ``Blur`` (LPF) and ``AdaptiveBlur`` (DDAC).

Both filter the whole map when called, and have a method ``at(x, phase, stride)`` that computes the
filtered values only where a known phase keeps them.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from trueshift._adjoint import Slices, Widths, channels_last, phase_offsets
from trueshift._chunks import by_chunks_twice
from trueshift._validate import (
    PADDING_MODES,
    Stride,
    check_channels,
    check_choice,
    check_dim,
    check_divisible,
    check_map,
    check_phase,
    check_positive,
    check_range,
    stride_per_axis,
)
from trueshift.functional import keep_phase
from trueshift.layers.neighbours import sum_neighbours, sums_rows
from trueshift.layers.steady import CONVS, channel_sum, convolve
from trueshift.layers.window import phase_window
from trueshift.padding import pad

ANTIALIAS = (None, "rect2", "tri3", "bin4", "bin5", "bin6", "bin7", "adapt3", "adapt5")
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}

# Mixing windows before a filter is quicker than filtering all of them for images of this size.
_LARGE = 2**18


class Blur(nn.Module):
    """Binomial low-pass filter: the LPF of the paper (Rect-2, Tri-3, Bin-5 are sizes 2, 3, 5).

    Args:
        channels: Channels of the feature map.
        size: Taps per axis, 1 to 7. Even sizes reach one pixel further to the right than to the
            left.
        padding_mode: Border, under torch's name.
        dim: Number of spatial axes.

    Shape:
        ``(B, C, *spatial)`` in and out.
    """

    kernel: Tensor

    def __init__(
        self, channels: int, size: int = 3, padding_mode: str = "circular", *, dim: int = 2
    ) -> None:
        super().__init__()
        check_positive("Blur", channels=channels, size=size)
        if size > 7:
            raise ValueError(f"Blur: size must be 1 to 7, got {size}.")
        check_dim("Blur", dim)
        check_choice("Blur", "padding_mode", padding_mode, PADDING_MODES)
        self.channels, self.size, self.padding_mode, self.dim = channels, size, padding_mode, dim
        row = torch.tensor([math.comb(size - 1, tap) for tap in range(size)], dtype=torch.float64)
        kernel = row / row.sum()
        for _ in range(dim - 1):
            kernel = kernel[..., None] * row / row.sum()
        kernel = kernel.float().expand(channels, 1, *[size] * dim).contiguous()
        self.register_buffer("kernel", kernel, persistent=False)  # a formula, not a weight

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        return self.without_border(pad(x, self.widths, self.padding_mode))

    def at(self, x: Tensor, phase: int | Tensor, stride: Stride) -> Tensor:
        """Return the filtered map where ``phase`` keeps it: one strided convolution."""
        self._check(x)
        steps = _steps("Blur", x, phase, stride)
        zeros = self.padding_mode == "zeros" and min(steps) > 1
        if zeros and isinstance(phase, int) and phase == 0:  # no copy for a border
            return self._convolve(x, steps, padding=(self.size - 1) // 2)
        window = phase_window(x, phase, steps, self.widths, self.padding_mode)
        return self.without_border(window, steps)

    def without_border(self, x: Tensor, stride: int | tuple[int, ...] = 1) -> Tensor:
        """Filter a map that brings its border of :attr:`widths` along."""
        return self._convolve(x, stride)

    def _convolve(self, x: Tensor, stride: int | tuple[int, ...], padding: int = 0) -> Tensor:
        kernel, groups = self.kernel.to(x.dtype), self.channels
        return convolve(x, kernel, None, stride, padding, groups)

    def _check(self, x: Tensor) -> None:
        check_map("Blur", x, self.dim)
        check_channels("Blur", x, self.channels)

    @property
    def widths(self) -> Widths:
        """How far the filter reaches before and after a pixel, per axis."""
        return ((((self.size - 1) // 2), self.size // 2),) * self.dim

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"{self.channels}, size={self.size}, padding_mode={self.padding_mode}"


class AdaptiveBlur(nn.Module):
    """Content-adaptive low-pass filter: the DDAC of the paper (Adapt-3 is size 3).

    A convolution, batch norm and softmax predict, for every pixel and group of channels, the
    weights of its neighbourhood. As in DDAC, one softmax runs over all groups and taps together, so
    the weights of one group sum to less than 1.

    Args:
        channels: Channels of the feature map, divisible by ``groups``.
        size: Taps per axis, odd.
        groups: Groups of channels that share a filter.
        padding_mode: Border, under torch's name.
        dim: Number of spatial axes.

    Shape:
        ``(B, C, *spatial)`` in and out.
    """

    def __init__(
        self,
        channels: int,
        size: int = 3,
        groups: int = 8,
        padding_mode: str = "circular",
        *,
        dim: int = 2,
    ) -> None:
        super().__init__()
        check_positive("AdaptiveBlur", channels=channels, size=size, groups=groups)
        if size % 2 == 0:
            raise ValueError(f"AdaptiveBlur: size must be odd, got {size}.")
        if channels % groups:
            raise ValueError(
                f"AdaptiveBlur: channels must be divisible by groups, got channels={channels} and"
                f" groups={groups}. Try groups={math.gcd(channels, groups)}."
            )
        check_dim("AdaptiveBlur", dim)
        check_choice("AdaptiveBlur", "padding_mode", padding_mode, PADDING_MODES)
        self.channels, self.size, self.groups = channels, size, groups
        self.padding_mode, self.dim = padding_mode, dim
        self.conv = CONVS[dim](channels, groups * size**dim, size, bias=False)
        self.bn = NORMS[dim](groups * size**dim)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        padded = pad(x, self._widths, self.padding_mode)
        return self._mix(padded, self._weights(padded))

    def at(self, x: Tensor, phase: int | Tensor, stride: Stride) -> Tensor:
        """Return the filtered map at the positions that ``phase`` keeps, and compute only those.

        While training, the batch norm still sees every position, as it does when the map is
        filtered whole.
        """
        self._check(x)
        steps = _steps("AdaptiveBlur", x, phase, stride)
        if not self.training:
            window = phase_window(x, phase, steps, self._widths, self.padding_mode)
            return self._mix(window, self._weights(window, steps), steps)
        padded = pad(x, self._widths, self.padding_mode)
        weights = self._weights(padded)
        if isinstance(phase, Tensor):
            return keep_phase(self._mix(padded, weights), phase, steps)
        weights = keep_phase(weights, phase, steps)
        return self._mix(padded, weights, steps, phase_offsets(phase, steps))

    def _check(self, x: Tensor) -> None:
        check_map("AdaptiveBlur", x, self.dim)
        check_channels("AdaptiveBlur", x, self.channels)

    @property
    def _widths(self) -> Widths:
        return ((self.size // 2, self.size // 2),) * self.dim

    def _weights(self, padded: Tensor, stride: int | tuple[int, ...] = 1) -> Tensor:
        """Predict the filters: ``(B, groups * taps, h, w)``."""
        scores = self.bn(convolve(padded, self.conv.weight, stride=stride))
        if self.training:
            return scores.softmax(1)
        weights = (scores - scores.amax(1, keepdim=True)).exp_()
        total = channel_sum(weights)
        return weights / total if weights.requires_grad else weights.div_(total)

    def _mix(
        self,
        x: Tensor,
        weights: Tensor,
        stride: tuple[int, ...] | None = None,
        start: tuple[int, ...] | None = None,
    ) -> Tensor:
        """Sum the neighbourhood of every kept position with its weights."""
        if start is None and sums_rows(x, weights, self.groups):
            steps = stride or (1,) * self.dim
            return sum_neighbours(x, weights, self.groups, self.size, steps)
        weights = weights.unflatten(1, (self.groups, 1, -1))  # (B, G, 1, taps, h, w)
        x = x.unflatten(1, (self.groups, -1))  # (B, G, C / G, H, W)
        steps, start = stride or (1,) * self.dim, start or (0,) * self.dim
        corners = itertools.product(*(range(i, i + self.size) for i in start))
        ends = [(size - 1) * step + 1 for size, step in zip(weights.shape[4:], steps, strict=True)]
        reads: list[Slices] = [
            (..., *(slice(i, i + end, s) for i, end, s in zip(corner, ends, steps, strict=True)))
            for corner in corners
        ]
        first, *others = zip(reads, weights.unbind(3), strict=True)
        out = x[first[0]] * first[1]
        for read, weight in others:
            out.addcmul_(x[read], weight)
        return out.flatten(1, 2)

    def extra_repr(self) -> str:
        """Show the arguments."""
        return (
            f"{self.channels}, size={self.size}, groups={self.groups},"
            f" padding_mode={self.padding_mode}"
        )


def filter_and_keep(
    antialias: nn.Module | None, x: Tensor, phase: int | Tensor, stride: tuple[int, ...]
) -> Tensor:
    """Filter a map and keep a known phase; where that is quicker, compute only what is kept."""
    if antialias is None:
        return keep_phase(x, phase, stride)
    if not _only_kept(antialias, x, phase):
        return keep_phase(antialias(x), phase, stride)

    def kept(x: Tensor, phase: int | Tensor = phase) -> Tensor:
        y: Tensor = antialias.at(x, phase, stride)  # type: ignore[operator]
        return y

    if isinstance(phase, Tensor) and phase.dtype.is_floating_point and x.shape[0] > 1:
        return by_chunks_twice(kept, x, phase)  # a single image may be a part already
    return kept(x)


def _only_kept(antialias: nn.Module, x: Tensor, phase: int | Tensor) -> bool:
    if not isinstance(antialias, Blur | AdaptiveBlur):
        return False
    if isinstance(phase, int):
        return True
    if torch.compiler.is_compiling():
        return False
    if phase.dtype.is_floating_point:  # a fixed filter sees mixed windows as it sees any map
        large = math.prod(x.shape[1:]) >= _LARGE and not channels_last(x)
        return isinstance(antialias, Blur) and large
    if isinstance(antialias, Blur):  # going back through windows of single images is slow
        return not (torch.is_grad_enabled() and x.requires_grad)
    return not antialias.training


def _steps(who: str, x: Tensor, phase: int | Tensor, stride: Stride) -> tuple[int, ...]:
    """Return the stride of each axis of ``x``, if it and the phase fit."""
    steps = stride_per_axis(who, stride, x.ndim - 2)
    check_divisible(who, x, steps)
    if isinstance(phase, int):
        check_range(who, phase, phase, math.prod(steps))
    else:
        check_phase(who, phase, x, math.prod(steps))
    return steps


def build_antialias(
    name: str | None, channels: int, padding_mode: str, *, dim: int = 2, groups: int = 8
) -> Blur | AdaptiveBlur | None:
    """Build the filter that a name of the paper's tables stands for."""
    check_choice("antialias", "filter", name, ANTIALIAS)
    if name is None:
        return None
    size = int(name[-1])
    if name.startswith("adapt"):
        return AdaptiveBlur(channels, size, groups, padding_mode, dim=dim)
    return Blur(channels, size, padding_mode, dim=dim)
