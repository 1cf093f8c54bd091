"""Up-sampling with circular borders, and what else replaces an operation without a window."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from trueshift.convert.parts.windows import Axes, per_axis
from trueshift.exact import order_free_mean
from trueshift.windows import Widths, pad

_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


class Grow(nn.Module):
    """Interpolation to a size ``factors`` times as large, with circular borders.

    ``align_corners=True`` has no circular version: corners are neighbours on a circle. Its limit
    for large maps is used, in which every ``factor``-th value is one of the input's.

    Args:
        factors: Up-sampling factor of each axis.
        resizing: ``mode``, ``align_corners`` and so on of ``torch.nn.functional.interpolate``.
        own_padding: Along which axes, or all, borders remain the original's.
    """

    def __init__(
        self, factors: tuple[int, ...], resizing: dict[str, Any], own_padding: Axes = False
    ) -> None:
        super().__init__()
        self.factors, self.resizing = factors, resizing
        pairs = zip(factors, per_axis(own_padding, len(factors)), strict=True)
        self.wrapped = tuple(f > 1 and not kept for f, kept in pairs)

    def forward(self, x: Tensor) -> Tensor:
        sizes = x.shape[2:]
        if self.resizing["mode"].startswith("nearest"):
            grown = [size * f for size, f in zip(sizes, self.factors, strict=True)]
            return F.interpolate(x, size=grown, **self.resizing)
        aligned = bool(self.resizing.get("align_corners"))
        reach = 2 if self.resizing["mode"] == "bicubic" else 1
        edge = reach - aligned  # before; the first value is one of the input's if aligned
        widths = tuple((edge, reach) if wraps else (0, 0) for wraps in self.wrapped)
        padded = pad(x, widths, "circular")
        less = 1 if aligned else 0
        grown = [
            (size - less) * f + less if wraps else size * f
            for size, f, wraps in zip(padded.shape[2:], self.factors, self.wrapped, strict=True)
        ]
        y = F.interpolate(padded, size=grown, **self.resizing)
        for axis, (size, f) in enumerate(zip(sizes, self.factors, strict=True)):
            if self.wrapped[axis]:
                y = y.narrow(2 + axis, edge * f, size * f)
        return y

    def extra_repr(self) -> str:
        """Show the factors."""
        return f"factors={self.factors}, {self.resizing}"


class Transposed(nn.Module):
    """Transposed convolution with circular borders and the weight and bias of the original.

    Args:
        stride: Up-sampling factor of each axis.
        padding: The original padding: how much of the start was cut off.
        dilation: Distance of the taps.
        reach: Length of the dilated kernel less one.
        groups: Groups of channels.
        output_padding: What the original adds at the end.
        own_padding: Along which axes, or all, borders remain the original's.
    """

    def __init__(
        self,
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        reach: tuple[int, ...],
        groups: int,
        output_padding: tuple[int, ...] | None = None,
        own_padding: Axes = False,
    ) -> None:
        super().__init__()
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.reach, self.groups = reach, groups
        self.kept = per_axis(own_padding, len(stride))
        beyond = output_padding or (0,) * len(stride)
        ends = zip(padding, beyond, self.kept, strict=True)
        self.ends = tuple((p, more) if kept else (0, 0) for p, more, kept in ends)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        before = [math.ceil(reach / s) for reach, s in zip(self.reach, self.stride, strict=True)]
        after = [math.ceil(p / s) + 1 for p, s in zip(self.padding, self.stride, strict=True)]
        pairs = zip(zip(before, after, strict=True), self.kept, strict=True)
        widths: Widths = tuple((0, 0) if kept else pair for pair, kept in pairs)
        cut, more = zip(*self.ends, strict=True)
        function = _TRANSPOSED[len(self.stride)]
        y = function(
            pad(x, widths, "circular"),
            weight,
            bias,
            self.stride,
            padding=cut,
            output_padding=more,
            groups=self.groups,
            dilation=self.dilation,
        )
        for axis, step in enumerate(self.stride):
            if not self.kept[axis]:
                start = before[axis] * step + self.padding[axis]
                y = y.narrow(2 + axis, start, x.shape[2 + axis] * step)
        return y

    def extra_repr(self) -> str:
        """Show the geometry."""
        return f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}"


class Reduce(nn.Module):
    """Mean, sum, 2-norm or maximum over space; at test time its bits do not depend on a shift.

    Args:
        kind: ``"mean"``, ``"sum"``, ``"norm"`` or ``"max"``.
        dims: Axes to reduce.
        keepdim: Whether to keep them as axes of size 1.
    """

    def __init__(self, kind: str, dims: tuple[int, ...], keepdim: bool) -> None:
        super().__init__()
        self.kind, self.dims, self.keepdim = kind, dims, keepdim

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "max":
            return x.amax(self.dims, self.keepdim)
        terms = x.square() if self.kind == "norm" else x
        mean = terms.mean(self.dims) if self.training else order_free_mean(terms, self.dims)
        if self.kind != "mean":
            mean = mean * math.prod([x.shape[dim] for dim in self.dims])
        y = (mean.sqrt() if self.kind == "norm" else mean).to(x.dtype)
        if self.keepdim:
            for dim in sorted(dim % x.ndim for dim in self.dims):
                y = y.unsqueeze(dim)
        return y

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"{self.kind}, dims={self.dims}, keepdim={self.keepdim}"


class Repeat(nn.Module):
    """Repeat one value over a map: any interpolation of it, without the rounding of weights.

    Shape:
        ``(B, C, 1, ...)``, nothing, and the size as one argument or one per axis, to
        ``(B, C, *size)``.
    """

    def forward(self, x: Tensor, _: None, *size: Any) -> Tensor:
        return F.interpolate(x, size=size[0] if len(size) == 1 else size)


class Roll(nn.Module):
    """Shift a map: what padding, or a crop, comes to on a circle.

    Args:
        shifts: By how much to shift.
        dims: The axes.
    """

    def __init__(self, shifts: tuple[int, ...], dims: tuple[int, ...]) -> None:
        super().__init__()
        self.shifts, self.dims = shifts, dims

    def forward(self, x: Tensor) -> Tensor:
        return x.roll(self.shifts, self.dims)

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"shifts={self.shifts}, dims={self.dims}"


class PadAndRoll(nn.Module):
    """Pad a map as the original did along some axes, and shift it along those that wrap.

    Args:
        shifts: By how much to shift.
        dims: The axes that wrap.
        widths: What ``torch.nn.functional.pad`` takes; nothing along the axes that wrap.
        mode: Its mode.
        value: Its value.
    """

    def __init__(
        self,
        shifts: tuple[int, ...],
        dims: tuple[int, ...],
        widths: list[int],
        mode: str,
        value: float | None,
    ) -> None:
        super().__init__()
        self.shifts, self.dims = shifts, dims
        self.widths, self.mode, self.value = widths, mode, value

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x.roll(self.shifts, self.dims), self.widths, self.mode, self.value)

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"shifts={self.shifts}, dims={self.dims}, widths={self.widths}, mode={self.mode}"


class FunctionalDropout(nn.Module):
    """``torch.nn.functional.dropout`` of a model's code, active while training."""

    def __init__(self, function: Any, p: float) -> None:
        super().__init__()
        self.function, self.p = function, p

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.function(x, self.p, self.training)
        return y
