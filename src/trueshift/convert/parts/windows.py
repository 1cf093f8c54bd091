"""Operations that read a window around each position: they pad circularly, sample at a phase.

A window operation gives ``y[j] = f(x[s j + o - left], ..., x[s j + o - left + reach])`` at offset
``o``. With ``keep=True`` it pads as the original did.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trueshift._adjoint import Slices, Widths, filled_windows, image_by_image
from trueshift.convert.parts.phases import cut, fit
from trueshift.functional import polyphase_down
from trueshift.layers.antialias import filter_and_keep
from trueshift.layers.maximum import MAX_POOLS, max_filter
from trueshift.layers.steady import convolve
from trueshift.layers.window import phase_window
from trueshift.padding import pad

_MEAN = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_POWER: dict[int, Any] = {1: F.lp_pool1d, 2: F.lp_pool2d, 3: F.lp_pool3d}


class Window(nn.Module):
    """A window operation.

    Args:
        stride: Sampling factor of each axis.
        left: How far before a position the window begins, per axis; may be negative.
        reach: Length of the window less one, per axis.
        keep: Pad as the original did, by ``border`` on both sides in ``mode``.
        border: The original padding of each axis.
        mode: The original padding mode.

    Shape:
        ``(B, C, *spatial)``, a phase or ``None``, and weights, to ``(B, C', *spatial // stride)``.
    """

    linear = True  # commutes with a filter
    has_dense = True  # makes sense at stride 1
    fill = 0.0

    def __init__(
        self,
        stride: tuple[int, ...],
        left: tuple[int, ...],
        reach: tuple[int, ...],
        *,
        keep: bool = False,
        border: Widths | None = None,
        mode: str = "zeros",
        ceil: bool = False,
    ) -> None:
        super().__init__()
        self.stride, self.left, self.reach = stride, left, reach
        self.keep, self.border, self.mode, self.ceil = keep, border, mode, ceil
        self.dense = False
        self.antialias: nn.Module | None = None

    def apply_to(self, window: Tensor, steps: tuple[int, ...], tensors: tuple[Any, ...]) -> Tensor:
        """Run the operation, without padding, on a window."""
        raise NotImplementedError

    def forward(self, x: Tensor, phase: Tensor | None = None, *tensors: Any) -> Tensor:
        ones = (1,) * len(self.stride)
        if self.dense:
            return self._at(x, 0, ones, tensors)
        at = 0 if phase is None else phase
        if self.antialias is not None:
            if not self.linear:
                dense = fit(self._at(x, 0, ones, tensors), self.stride)
                return filter_and_keep(self.antialias, dense, at, self.stride)
            if not any(self.reach) and not any(self.left):
                kept = filter_and_keep(self.antialias, fit(x, self.stride), at, self.stride)
                return self._at(kept, 0, ones, tensors)
            x = self.antialias(x)
        if phase is None or not phase.dtype.is_floating_point:
            return self._at(x, at, self.stride, tensors)
        if self.has_dense:
            dense = fit(self._at(x, 0, ones, tensors), self.stride)
            return polyphase_down(dense, phase, self.stride)
        axes = tuple(range(2, x.ndim))
        mixed: Tensor | None = None
        for k, offset in enumerate(itertools.product(*map(range, self.stride))):
            if self.keep:
                every = torch.full_like(phase[:, 0], k, dtype=torch.int64)
                part = self._at(x, every, self.stride, tensors)
            else:
                part = self._at(torch.roll(x, [-o for o in offset], axes), 0, self.stride, tensors)
            part = part * phase[:, k].view(-1, *[1] * (x.ndim - 1)).to(part.dtype)
            mixed = part if mixed is None else mixed + part
        if mixed is None:
            raise RuntimeError("Window: no phases.")
        return mixed

    def _at(
        self, x: Tensor, phase: int | Tensor, steps: tuple[int, ...], tensors: tuple[Any, ...]
    ) -> Tensor:
        if self.keep:
            return self._kept(x, phase, steps, tensors)
        sizes = [size // step for size, step in zip(x.shape[2:], steps, strict=True)]
        ahead = [min(left, 0) for left in self.left]
        if any(ahead):
            x = torch.roll(x, ahead, tuple(range(2, x.ndim)))
        befores = [max(left, 0) for left in self.left]
        widths = tuple(
            (before, max(reach - left, 0) if left > 0 else reach)
            for before, left, reach in zip(befores, self.left, self.reach, strict=True)
        )
        if isinstance(phase, int):
            window = phase_window(x, phase, steps, widths, "circular")
        else:
            window = cut(x, phase, steps, widths)
        return crop(self.apply_to(window, steps, tensors), sizes)

    def _kept(
        self, x: Tensor, phase: int | Tensor, steps: tuple[int, ...], tensors: tuple[Any, ...]
    ) -> Tensor:
        """Run with the original padding; the end is filled so that every phase has a window."""
        for axis, left in enumerate(self.left, start=2):
            if left < 0:  # a slice that begins later
                x = x.narrow(axis, -left, x.shape[axis] + left)
        extra = [self._beyond(size, axis) for axis, size in enumerate(x.shape[2:])]
        border = self.border or ((0, 0),) * len(steps)
        if self.fill == 0.0 and self.mode != "zeros":
            x = pad(x, border, self.mode)
            border = ((0, 0),) * len(steps)
        more = 0 if isinstance(phase, int) else 1
        widths = [
            (before, after + add + more * (step - 1))
            for (before, after), add, step in zip(border, extra, steps, strict=True)
        ]
        if not isinstance(phase, int) and image_by_image(x):
            x = filled_windows(x, phase, steps, tuple(widths), self.fill)
            return self.apply_to(x, steps, tensors)
        flat = [width for pair in reversed(widths) for width in pair]
        x = F.pad(x, flat, value=self.fill) if any(flat) else x
        if not isinstance(phase, int):
            x = phase_window(x, phase, steps, ((0, 0),) * len(steps), "zeros")
        return self.apply_to(x, steps, tensors)

    def _beyond(self, size: int, axis: int) -> int:
        """How far the last window of ``ceil_mode`` reaches beyond the padded map."""
        if not self.ceil:
            return 0
        before, after = self.border[axis] if self.border else (0, 0)
        step, length = self.stride[axis], size + before + after
        count = math.ceil((length - self.reach[axis] - 1) / step) + 1
        if (count - 1) * step >= size + before:
            count -= 1
        return max((count - 1) * step + self.reach[axis] + 1 - length, 0)

    def extra_repr(self) -> str:
        """Show the geometry."""
        how = "dense, " if self.dense else ""
        return f"{how}stride={self.stride}, left={self.left}, reach={self.reach}"


def crop(x: Tensor, sizes: list[int]) -> Tensor:
    """Drop what lies beyond ``sizes``."""
    for axis, size in enumerate(sizes, start=2):
        if x.shape[axis] != size:
            x = x.narrow(axis, 0, size)
    return x


class Convolution(Window):
    """Convolution with the weight and bias of the original."""

    def __init__(self, *args: Any, dilation: tuple[int, ...], groups: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self.dilation, self.groups = dilation, groups

    def apply_to(self, window: Tensor, steps: tuple[int, ...], tensors: tuple[Any, ...]) -> Tensor:
        weight, bias = tensors
        return convolve(window, weight, bias, steps, 0, self.groups, self.dilation)

    def _kept(
        self, x: Tensor, phase: int | Tensor, steps: tuple[int, ...], tensors: tuple[Any, ...]
    ) -> Tensor:
        border = self.border or ()
        even = all(before == after for before, after in border)
        if not isinstance(phase, int) or not even or self.mode != "zeros":
            return super()._kept(x, phase, steps, tensors)
        weight, bias = tensors  # torch's own padding makes no copy
        widths = tuple(before for before, _ in border) or 0
        return convolve(x, weight, bias, steps, widths, self.groups, self.dilation)


class MaxPool(Window):
    """Largest value of each window."""

    linear = False
    fill = -math.inf

    def __init__(self, *args: Any, kernel: tuple[int, ...], dilation: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.kernel, self.dilation = kernel, dilation

    def apply_to(self, window: Tensor, steps: tuple[int, ...], tensors: tuple[Any, ...]) -> Tensor:
        if max(steps) == 1 and max(self.dilation) == 1:
            return max_filter(window, self.kernel)
        return MAX_POOLS[len(steps)](window, self.kernel, steps, dilation=self.dilation)


class MeanPool(Window):
    """Mean of each window."""

    def __init__(
        self,
        *args: Any,
        kernel: tuple[int, ...],
        divisor: int | None,
        counts_border: bool,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.kernel, self.divisor, self.counts_border = kernel, divisor, counts_border

    def apply_to(self, window: Tensor, steps: tuple[int, ...], tensors: tuple[Any, ...]) -> Tensor:
        y = _MEAN[len(steps)](window, self.kernel, steps)
        return y if self.divisor is None else y * (math.prod(self.kernel) / self.divisor)

    def _kept(
        self, x: Tensor, phase: int | Tensor, steps: tuple[int, ...], tensors: tuple[Any, ...]
    ) -> Tensor:
        y = super()._kept(x, phase, steps, tensors)
        if (self.counts_border and not self.ceil) or self.divisor is not None:
            return y
        inside = super()._kept(torch.ones_like(x), phase, steps, tensors)
        return y / inside


class PowerPool(Window):
    """Power mean of each window."""

    linear = False

    def __init__(self, *args: Any, kernel: tuple[int, ...], p: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.kernel, self.p = kernel, p

    def apply_to(self, window: Tensor, steps: tuple[int, ...], tensors: tuple[Any, ...]) -> Tensor:
        return _POWER[len(steps)](window, self.p, self.kernel, steps)


class Every(Window):
    """Every ``stride``-th position: ``x[..., left::stride]``."""

    def apply_to(self, window: Tensor, steps: tuple[int, ...], tensors: tuple[Any, ...]) -> Tensor:
        kept: Slices = (..., *(slice(None, None, step) for step in steps))
        return window[kept]


class Unshuffle(Window):
    """Blocks of pixels to channels."""

    has_dense = False

    def apply_to(self, window: Tensor, steps: tuple[int, ...], tensors: tuple[Any, ...]) -> Tensor:
        whole = [size // step * step for size, step in zip(window.shape[2:], steps, strict=True)]
        return F.pixel_unshuffle(crop(window, whole), steps[0])


class Shrink(Window):
    """Interpolation to a smaller size."""

    has_dense = False
    margin = 3  # positions of the result that its kernels may reach

    def __init__(self, stride: tuple[int, ...], *, options: dict[str, Any], keep: bool) -> None:
        edge = tuple(0 if keep else self.margin * step for step in stride)
        reach = tuple(0 if keep else 2 * e + s - 1 for e, s in zip(edge, stride, strict=True))
        super().__init__(stride, edge, reach, keep=keep)
        self.options = options

    def apply_to(self, window: Tensor, steps: tuple[int, ...], tensors: tuple[Any, ...]) -> Tensor:
        sizes = [size // step for size, step in zip(window.shape[2:], steps, strict=True)]
        whole = [size * step for size, step in zip(sizes, steps, strict=True)]
        y = F.interpolate(crop(window, whole), size=sizes, **self.options)
        if self.keep:
            return y
        edge = [0 if step == 1 else self.margin for step in steps]
        inner: Slices = (..., *(slice(e, n - e) for e, n in zip(edge, sizes, strict=True)))
        return y[inner]
