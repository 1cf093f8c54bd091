"""Operations that read a window around each position: they pad circularly, sample at a phase.

A window operation gives ``y[j] = f(x[s j + o - left], ..., x[s j + o - left + reach])`` at offset
``o``. Along axes of ``own_padding`` it pads as the original did.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trueshift.convert.parts.phases import cut, fit
from trueshift.exact import convolve
from trueshift.functional import MAX_POOLS, Conv, conv_down, convolution, keep_phase, max_filter
from trueshift.layers.resample import PolyphaseDown
from trueshift.optimize import fold_into
from trueshift.windows import Slices, Widths, pad, phase_window

Axes = bool | tuple[bool, ...]  # of all axes, or one per axis
_MEAN = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_POWER: dict[int, Any] = {1: F.lp_pool1d, 2: F.lp_pool2d, 3: F.lp_pool3d}


class Window(nn.Module):
    """A window operation.

    Args:
        stride: Sampling factor of each axis.
        left: How far before a position the window begins, per axis; may be negative.
        reach: Length of the window less one, per axis.
        own_padding: Along which axes to pad as the original did: by ``border`` in ``mode``.
        border: The original padding of each axis.
        mode: The original padding mode.
        ceil: Whether the last window may reach beyond the padded map.
        dense: Run at every position; the result is sampled later.

    Attributes:
        down: Filters and samples, where a filter comes before sampling.

    Shape:
        ``(B, C, *spatial)``, a phase or ``None``, and weights, to ``(B, C', *spatial // stride)``.
    """

    linear = True  # commutes with a filter
    has_dense = True  # makes sense at stride 1
    mixes = False  # linear in the map, so that soft phases may mix what it reads
    fill = 0.0

    def __init__(
        self,
        stride: tuple[int, ...],
        left: tuple[int, ...],
        reach: tuple[int, ...],
        *,
        own_padding: Axes = False,
        border: Widths | None = None,
        mode: str = "zeros",
        ceil: bool = False,
        dense: bool = False,
    ) -> None:
        super().__init__()
        self.stride, self.left, self.reach = stride, left, reach
        self.own_padding, self.border, self.mode, self.ceil = own_padding, border, mode, ceil
        self.kept = per_axis(own_padding, len(stride))
        pairs = zip(border or ((0, 0),) * len(stride), self.kept, strict=True)
        self.widths: Widths = tuple(pair if kept else (0, 0) for pair, kept in pairs)
        self.dense = dense
        self.down: PolyphaseDown | None = None

    def apply_to(self, window: Tensor, stride: tuple[int, ...], tensors: tuple[Any, ...]) -> Tensor:
        """Run the operation, without padding, on a window."""
        raise NotImplementedError

    def forward(self, x: Tensor, phase: Tensor | None = None, *tensors: Any) -> Tensor:
        ones = (1,) * len(self.stride)
        if self.dense:
            return self._at(x, 0, ones, tensors)
        if self.down is not None:
            if not self.linear:
                filtered: Tensor = self.down(self._at(x, 0, ones, tensors), phase)
                return filtered
            if not any(self.reach) and not any(self.left):
                return self._at(self.down(x, phase), 0, ones, tensors)
            x = self.down.antialias(x)  # type: ignore[misc]
        if phase is None or not phase.dtype.is_floating_point or self.mixes:
            return self._at(x, 0 if phase is None else phase, self.stride, tensors)
        if self.has_dense:
            dense = fit(self._at(x, 0, ones, tensors), self.stride)
            return keep_phase(dense, phase, self.stride)
        axes = tuple(range(2, x.ndim))
        mixed: Tensor | None = None
        for k, offset in enumerate(itertools.product(*map(range, self.stride))):
            if any(self.kept):
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
        self, x: Tensor, phase: int | Tensor, stride: tuple[int, ...], tensors: tuple[Any, ...]
    ) -> Tensor:
        if all(self.kept):
            return self._with_own_padding(x, phase, stride, tensors)
        sizes = [
            None if kept else size // step
            for size, step, kept in zip(x.shape[2:], stride, self.kept, strict=True)
        ]
        ahead = [0 if kept else min(n, 0) for n, kept in zip(self.left, self.kept, strict=True)]
        if any(ahead):
            x = torch.roll(x, ahead, tuple(range(2, x.ndim)))
        befores = [max(left, 0) for left in self.left]
        widths = tuple(
            (before, max(reach - left, 0) if left > 0 else reach)
            for before, left, reach in zip(befores, self.left, self.reach, strict=True)
        )
        if any(self.kept):
            x = self._wrapped(x, widths, stride, phase)
            return crop(self._with_own_padding(x, phase, stride, tensors), sizes)
        if isinstance(phase, int):
            window = phase_window(x, phase, stride, widths, "circular")
        else:
            window = cut(x, phase, stride, widths)
        return crop(self.apply_to(window, stride, tensors), sizes)

    def _wrapped(
        self, x: Tensor, widths: Widths, stride: tuple[int, ...], phase: int | Tensor
    ) -> Tensor:
        """Pad the axes that wrap, far enough for every phase."""
        more = 0 if isinstance(phase, int) else 1
        own = tuple(
            (0, 0) if kept else (before, after + more * (step - 1))
            for (before, after), step, kept in zip(widths, stride, self.kept, strict=True)
        )
        return pad(x, own, "circular")

    def _with_own_padding(
        self, x: Tensor, phase: int | Tensor, stride: tuple[int, ...], tensors: tuple[Any, ...]
    ) -> Tensor:
        """Run with the original padding; the end is filled so that every phase has a window."""
        for axis, (left, kept) in enumerate(zip(self.left, self.kept, strict=True), start=2):
            if kept and left < 0:  # a slice that begins later
                x = x.narrow(axis, -left, x.shape[axis] + left)
        extra = [self._beyond(size, axis) for axis, size in enumerate(x.shape[2:])]
        border = self.widths
        if self.fill == 0.0 and self.mode != "zeros":
            x = pad(x, border, self.mode)
            border = ((0, 0),) * len(stride)
        more = [0 if isinstance(phase, int) or not kept else 1 for kept in self.kept]
        widths = [
            (before, after + add + n * (step - 1))
            for (before, after), add, step, n in zip(border, extra, stride, more, strict=True)
        ]
        flat = [width for pair in reversed(widths) for width in pair]
        x = F.pad(x, flat, value=self.fill) if any(flat) else x
        if not isinstance(phase, int):
            x = phase_window(x, phase, stride, ((0, 0),) * len(stride), "zeros")
        return self.apply_to(x, stride, tensors)

    def _beyond(self, size: int, axis: int) -> int:
        """How far the last window of ``ceil_mode`` reaches beyond the padded map."""
        if not self.ceil or not self.kept[axis]:
            return 0
        before, after = self.widths[axis]
        step, length = self.stride[axis], size + before + after
        count = math.ceil((length - self.reach[axis] - 1) / step) + 1
        if (count - 1) * step >= size + before:
            count -= 1
        return max((count - 1) * step + self.reach[axis] + 1 - length, 0)

    def extra_repr(self) -> str:
        """Show the geometry."""
        how = "dense, " if self.dense else ""
        return f"{how}stride={self.stride}, left={self.left}, reach={self.reach}"


def per_axis(own_padding: Axes, dim: int) -> tuple[bool, ...]:
    """Return for each axis whether the original padding stays."""
    return (own_padding,) * dim if isinstance(own_padding, bool) else own_padding


def crop(x: Tensor, sizes: Sequence[int | None]) -> Tensor:
    """Drop what lies beyond ``sizes``; ``None`` takes all."""
    for axis, size in enumerate(sizes, start=2):
        if size is not None and x.shape[axis] != size:
            x = x.narrow(axis, 0, size)
    return x


class Convolution(Window):
    """Convolution with the weight and bias of the original."""

    mixes = True

    def __init__(self, *, dilation: tuple[int, ...], groups: int, **options: Any) -> None:
        super().__init__(**options)
        self.dilation, self.groups = dilation, groups
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None

    def forward(self, x: Tensor, phase: Tensor | None = None, *tensors: Any) -> Tensor:
        return super().forward(
            x, phase, *(tensors if self.weight is None else (self.weight, self.bias))
        )

    def fold_norm(self, scale: Tensor, shift: Tensor, inputs: tuple[Any, ...]) -> None:
        """Take a weight and bias of its own, with which it also does the work of a norm."""
        *_, weight, bias = inputs
        fold_into(self, weight, bias, scale, shift)

    def apply_to(self, window: Tensor, stride: tuple[int, ...], tensors: tuple[Any, ...]) -> Tensor:
        weight, bias = tensors
        exact = not self.training
        return convolve(window, weight, bias, stride, 0, self.dilation, self.groups, exact=exact)

    def _at(
        self, x: Tensor, phase: int | Tensor, stride: tuple[int, ...], tensors: tuple[Any, ...]
    ) -> Tensor:
        centred = all(left == reach // 2 for left, reach in zip(self.left, self.reach, strict=True))
        if any(self.kept) or not centred:
            return super()._at(x, phase, stride, tensors)
        (weight, bias), exact = tensors, not self.training
        conv = Conv(weight, bias, self.dilation, self.groups)
        if isinstance(phase, int):
            return convolution(x, conv, stride, "circular", exact=exact)
        return conv_down(x, conv, phase, stride, "circular", exact=exact)

    def _with_own_padding(
        self, x: Tensor, phase: int | Tensor, stride: tuple[int, ...], tensors: tuple[Any, ...]
    ) -> Tensor:
        even = all(before == after for before, after in self.widths)
        if not isinstance(phase, int) or not even or self.mode != "zeros" or not all(self.kept):
            return super()._with_own_padding(x, phase, stride, tensors)
        weight, bias = tensors  # torch's own padding makes no copy
        widths = tuple(before for before, _ in self.widths)
        exact = not self.training
        return convolve(x, weight, bias, stride, widths, self.dilation, self.groups, exact=exact)


class MaxPool(Window):
    """Largest value of each window."""

    linear = False
    fill = -math.inf

    def __init__(self, *, kernel: tuple[int, ...], dilation: Any, **options: Any) -> None:
        super().__init__(**options)
        self.kernel, self.dilation = kernel, dilation

    def apply_to(self, window: Tensor, stride: tuple[int, ...], tensors: tuple[Any, ...]) -> Tensor:
        if max(stride) == 1 and max(self.dilation) == 1:
            return max_filter(window, self.kernel)
        return MAX_POOLS[len(stride)](window, self.kernel, stride, dilation=self.dilation)


class MeanPool(Window):
    """Mean of each window."""

    def __init__(
        self,
        *,
        kernel: tuple[int, ...],
        divisor: int | None,
        counts_border: bool,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.kernel, self.divisor, self.counts_border = kernel, divisor, counts_border

    def apply_to(self, window: Tensor, stride: tuple[int, ...], tensors: tuple[Any, ...]) -> Tensor:
        y = _MEAN[len(stride)](window, self.kernel, stride)
        return y if self.divisor is None else y * (math.prod(self.kernel) / self.divisor)

    def _with_own_padding(
        self, x: Tensor, phase: int | Tensor, stride: tuple[int, ...], tensors: tuple[Any, ...]
    ) -> Tensor:
        y = super()._with_own_padding(x, phase, stride, tensors)
        if (self.counts_border and not self.ceil) or self.divisor is not None:
            return y
        inside = super()._with_own_padding(torch.ones_like(x), phase, stride, tensors)
        return y / inside


class PowerPool(Window):
    """Power mean of each window."""

    linear = False

    def __init__(self, *, kernel: tuple[int, ...], p: float, **options: Any) -> None:
        super().__init__(**options)
        self.kernel, self.p = kernel, p

    def apply_to(self, window: Tensor, stride: tuple[int, ...], tensors: tuple[Any, ...]) -> Tensor:
        return _POWER[len(stride)](window, self.p, self.kernel, stride)


class Every(Window):
    """Every ``stride``-th position: ``x[..., left::stride]``."""

    def apply_to(self, window: Tensor, stride: tuple[int, ...], tensors: tuple[Any, ...]) -> Tensor:
        kept: Slices = (..., *(slice(None, None, step) for step in stride))
        return window[kept]


class Unshuffle(Window):
    """Blocks of pixels to channels."""

    has_dense = False

    def apply_to(self, window: Tensor, stride: tuple[int, ...], tensors: tuple[Any, ...]) -> Tensor:
        whole = [size // step * step for size, step in zip(window.shape[2:], stride, strict=True)]
        return F.pixel_unshuffle(crop(window, whole), stride[0])


class Shrink(Window):
    """Interpolation to a smaller size."""

    has_dense = False
    margin = 3  # positions of the result that its kernels may reach

    def __init__(
        self, stride: tuple[int, ...], *, resizing: dict[str, Any], own_padding: Axes
    ) -> None:
        kept = per_axis(own_padding, len(stride))
        edge = tuple(0 if k else self.margin * s for k, s in zip(kept, stride, strict=True))
        reach = tuple(0 if k else 2 * e + s - 1 for k, e, s in zip(kept, edge, stride, strict=True))
        super().__init__(stride, edge, reach, own_padding=own_padding)
        self.resizing = resizing

    def apply_to(self, window: Tensor, stride: tuple[int, ...], tensors: tuple[Any, ...]) -> Tensor:
        sizes = [size // step for size, step in zip(window.shape[2:], stride, strict=True)]
        whole = [size * step for size, step in zip(sizes, stride, strict=True)]
        y = F.interpolate(crop(window, whole), size=sizes, **self.resizing)
        edge = [
            0 if step == 1 or kept else self.margin
            for step, kept in zip(stride, self.kept, strict=True)
        ]
        inner: Slices = (..., *(slice(e, n - e) for e, n in zip(edge, sizes, strict=True)))
        return y[inner]
