"""Down- and up-sampling by polyphase components, and the paper's names for them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trueshift._validate import (
    Mode,
    Stride,
    axis_modes,
    check_divisible,
    check_input,
    check_mode,
    check_module,
    check_output_size,
    check_phase,
    check_stride,
    stride_per_axis,
)
from trueshift.functional import keep_phase, place_phase
from trueshift.layers.filters import build_filter
from trueshift.layers.selectors import ConvSelector, FixedSelector, NormSelector, Selector
from trueshift.ties import TieBreaker
from trueshift.windows import Phase, Slices, pad


class PolyphaseDown(nn.Module):
    """Filter a map, choose a polyphase component, keep it (paper section 4.1).

    With a selector that permutes with shifts, the result is equivariant to circular shifts if every
    operation before it is: the kept component of a shifted map is that of the map, shifted on the
    coarse grid or not at all.

    Args:
        selector: :class:`ConvSelector` (LPS), :class:`NormSelector` (APS), :class:`FixedSelector`
            (plain stride), or ``None`` for a branch that follows the phase of another one.
        stride: Sampling factor of all axes, or one per axis.
        antialias: Filter to apply before sampling, or ``None``.
        score_filtered: Whether the selector scores the filtered components (as in the paper) or
            those of the map before the filter.
        padding_mode: Border, for all axes or one per axis. Along a ``"circular"`` axis, a size that
            the stride does not divide is an error. Along others the map is extended in this mode at
            its end, so that sizes follow torch's rule for strides.

    Shape:
        ``(B, C, *spatial)`` to ``(B, C, *spatial // stride)``; with ``return_phase=True`` also the
        phase, int64 ``(B,)`` if hard, floating ``(B, P)`` if soft.
    """

    def __init__(
        self,
        selector: nn.Module | None,
        stride: Stride = 2,
        antialias: nn.Module | None = None,
        *,
        score_filtered: bool = True,
        padding_mode: Mode = "circular",
    ) -> None:
        super().__init__()
        check_stride("PolyphaseDown", stride)
        check_module("PolyphaseDown", "antialias", antialias)
        check_module("PolyphaseDown", "selector", selector)
        self.padding_mode = check_mode("PolyphaseDown", padding_mode, None)
        self.stride: int | tuple[int, ...] = _as_tuple(stride)
        self.selector, self.antialias = selector, antialias
        self.score_filtered = score_filtered

    def forward(
        self,
        x: Tensor,
        phase: Tensor | None = None,
        return_phase: bool = False,
        tie_breaker: TieBreaker | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        wraps = self.padding_mode == "circular"
        strides = check_input("PolyphaseDown", x, self.stride, divisible=wraps)
        x = x if wraps else self._extended(x, strides)
        fixed = self.selector if isinstance(self.selector, FixedSelector) else None
        draws = isinstance(self.selector, Selector) and self.selector.draws
        known: Phase | None = phase
        if phase is not None:
            check_phase("PolyphaseDown", phase, x, math.prod(strides))
        elif fixed is not None:
            phase, known = fixed.choose(x, strides), fixed.index
        elif self.antialias is None or not self.score_filtered or draws:
            phase = known = self._choose(x, strides, tie_breaker)
        if known is not None and hasattr(self.antialias, "down"):
            y = self.antialias.down(x, known, strides)  # type: ignore[union-attr, operator]
        else:
            x = x if self.antialias is None else self.antialias(x)
            if known is None:
                phase = known = self._choose(x, strides, tie_breaker)
            y = keep_phase(x, known, strides)
        return (y, phase) if return_phase else y  # type: ignore[return-value]

    def choose(self, x: Tensor, tie_breaker: TieBreaker | None = None) -> Tensor:
        """Return the phase that the selector chooses for ``x``, a map of any channels it takes.

        Args:
            x: The map that the selector reads.
            tie_breaker: The map that will be sampled, if that is another one, or a function that
                returns it; it then breaks ties.
        """
        if isinstance(tie_breaker, Tensor):
            tie_breaker = self.extend(tie_breaker)
        x = self.extend(x)
        return self._choose(x, check_input("PolyphaseDown", x, self.stride), tie_breaker)

    def extend(self, x: Tensor) -> Tensor:
        """Check that the stride divides the size of ``x``, or extend it where borders allow."""
        wraps = self.padding_mode == "circular"
        strides = check_input("PolyphaseDown", x, self.stride, divisible=wraps)
        return x if wraps else self._extended(x, strides)

    def _extended(self, x: Tensor, strides: tuple[int, ...]) -> Tensor:
        dim = len(strides)
        modes = axis_modes(check_mode("PolyphaseDown", self.padding_mode, dim), dim)
        # Not -n % s: a compiler cannot reason about remainders of negative sizes.
        widths = tuple(
            (0, 0 if mode == "circular" else (s - n % s) % s)
            for n, s, mode in zip(x.shape[2:], strides, modes, strict=True)
        )
        x = pad(x, widths, self.padding_mode)
        check_divisible("PolyphaseDown", x, strides)
        return x

    def _choose(
        self, x: Tensor, strides: tuple[int, ...], tie_breaker: TieBreaker | None = None
    ) -> Tensor:
        if self.selector is None:
            raise ValueError(
                "PolyphaseDown: built with selector=None, so it follows another branch. Pass"
                " phase=..., the second result of the other branch's layer with return_phase=True."
            )
        if not isinstance(self.padding_mode, str):  # a map that repeats across an end does not
            tie_breaker = functools.partial(self._placed, x if tie_breaker is None else tie_breaker)
        further = () if tie_breaker is None else (tie_breaker,)
        phase: Tensor = self.selector.choose(x, strides, *further)  # type: ignore[operator]
        return phase

    def _placed(self, tie_breaker: TieBreaker) -> Tensor:
        """Return a tie-breaker with the coordinates of the axes that do not wrap as channels."""
        x = tie_breaker if isinstance(tie_breaker, Tensor) else tie_breaker()
        first = x.ndim - len(self.padding_mode)  # images may have further axes before these
        parts = [x]
        for axis, mode in enumerate(self.padding_mode, start=first):
            if mode != "circular":
                place = torch.arange(x.shape[axis], device=x.device, dtype=x.dtype)
                place = place.view(-1, *[1] * (x.ndim - 1 - axis))
                parts.append(place.expand(x.shape[0], 1, *x.shape[2:]))
        return torch.cat(parts, 1)

    def extra_repr(self) -> str:
        """Show the arguments."""
        filtered = f"score_filtered={self.score_filtered}"
        return f"stride={self.stride}, {filtered}, padding_mode={self.padding_mode}"


class PolyphaseUp(nn.Module):
    """Put a map back onto the grid that it was down-sampled from (paper section 4.3).

    Args:
        stride: Sampling factor of all axes, or one per axis.
        antialias: Low-pass filter to apply to the placed values, scaled by the stride of every axis
            so that it keeps the mean; or ``None``.

    Shape:
        ``(B, C, *spatial)`` and the phase of the matching :class:`PolyphaseDown` to
        ``(B, C, *spatial * stride)``, cropped to ``output_size`` if that is given (needed where the
        size before down-sampling was not a multiple of the stride).
    """

    def __init__(self, stride: Stride = 2, antialias: nn.Module | None = None) -> None:
        super().__init__()
        check_stride("PolyphaseUp", stride)
        check_module("PolyphaseUp", "antialias", antialias)
        self.stride: int | tuple[int, ...] = _as_tuple(stride)
        self.antialias = antialias

    def forward(self, y: Tensor, phase: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        strides = check_input("PolyphaseUp", y, self.stride, name="y", divisible=False)
        check_phase("PolyphaseUp", phase, y, math.prod(strides))
        whole = tuple(size * step for size, step in zip(y.shape[2:], strides, strict=True))
        size = whole
        if output_size is not None:
            size = check_output_size("PolyphaseUp", output_size, whole, strides)
        if size == whole and hasattr(self.antialias, "up"):
            up: Tensor = self.antialias.up(y, phase, strides)  # type: ignore[union-attr, operator]
            return up
        u = place_phase(y, phase, strides)
        if size != whole:
            kept: Slices = (..., *(slice(0, n) for n in size))
            u = u[kept]
        if self.antialias is None:
            return u
        filtered: Tensor = self.antialias(u)
        return filtered * math.prod(strides)

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"stride={self.stride}"


class LPD(PolyphaseDown):
    """Learnable polyphase down-sampling (paper section 4).

    Args:
        channels: Channels of the feature map.
        hidden_channels: Width of the selector; ``None`` means ``channels``.
        stride: Sampling factor of all axes, or one per axis.
        antialias: ``None``, ``"rect2"``, ``"tri3"``, ``"bin4"`` to ``"bin7"``, ``"adapt3"``,
            ``"adapt5"``.
        padding_mode: Border of the selector and of the filter, for all axes or one per axis. See
            also :class:`PolyphaseDown`.
        dim: Number of spatial axes.
        groups: Groups of an adaptive filter.
        score_filtered: See :class:`PolyphaseDown`.
        tau: See :class:`ConvSelector`.
        train_rule: See :class:`ConvSelector`.
        test_rule: See :class:`ConvSelector`.

    Examples:
        >>> import torch
        >>> down = LPD(4).eval()
        >>> y, phase = down(torch.randn(2, 4, 8, 8), return_phase=True)
        >>> y.shape, phase.shape
        (torch.Size([2, 4, 4, 4]), torch.Size([2]))
    """

    def __init__(
        self,
        channels: int,
        hidden_channels: int | None = None,
        stride: Stride = 2,
        antialias: str | None = None,
        padding_mode: Mode = "circular",
        *,
        dim: int = 2,
        groups: int = 8,
        score_filtered: bool = True,
        tau: float = 1.0,
        train_rule: str = "gumbel",
        test_rule: str = "argmax",
    ) -> None:
        stride_per_axis("LPD", stride, dim)
        selector = ConvSelector(
            channels,
            hidden_channels,
            padding_mode,
            dim=dim,
            tau=tau,
            train_rule=train_rule,
            test_rule=test_rule,
        )
        blur = build_filter(antialias, channels, padding_mode, dim=dim, groups=groups)
        super().__init__(
            selector, stride, blur, score_filtered=score_filtered, padding_mode=padding_mode
        )


class APS(PolyphaseDown):
    """Adaptive polyphase down-sampling: the component of the largest norm.

    Args:
        channels: Channels of the feature map.
        p: Which norm: 1, 2 or ``inf``.
        stride: Sampling factor of all axes, or one per axis.
        antialias: Name of a filter, as for :class:`LPD`.
        padding_mode: Border of the filter, for all axes or one per axis. See also
            :class:`PolyphaseDown`.
        dim: Number of spatial axes.
        groups: Groups of an adaptive filter.
        score_filtered: See :class:`PolyphaseDown`.
        train_rule: See :class:`NormSelector`.

    Examples:
        >>> import torch
        >>> APS(1, dim=1)(torch.tensor([[[1.0, 5.0, 2.0, 4.0]]]))
        tensor([[[5., 4.]]])
    """

    def __init__(
        self,
        channels: int,
        p: float = 2,
        stride: Stride = 2,
        antialias: str | None = None,
        padding_mode: Mode = "circular",
        *,
        dim: int = 2,
        groups: int = 8,
        score_filtered: bool = True,
        train_rule: str = "argmax",
    ) -> None:
        stride_per_axis("APS", stride, dim)
        blur = build_filter(antialias, channels, padding_mode, dim=dim, groups=groups)
        super().__init__(
            NormSelector(p, train_rule),
            stride,
            blur,
            score_filtered=score_filtered,
            padding_mode=padding_mode,
        )


class LPU(PolyphaseUp):
    """Polyphase up-sampling (paper section 4.3), called with the map and the phase.

    Args:
        channels: Channels of the feature map.
        stride: Sampling factor of all axes, or one per axis.
        antialias: Name of the low-pass filter, as for :class:`LPD`; the paper uses one.
        padding_mode: Border of the filter, for all axes or one per axis.
        dim: Number of spatial axes.
        groups: Groups of an adaptive filter.

    Examples:
        >>> import torch
        >>> up = LPU(1, antialias="tri3", dim=1)
        >>> up(torch.tensor([[[1.0, 3.0]]]), torch.tensor([0]))
        tensor([[[1., 2., 3., 2.]]])
    """

    def __init__(
        self,
        channels: int,
        stride: Stride = 2,
        antialias: str | None = None,
        padding_mode: Mode = "circular",
        *,
        dim: int = 2,
        groups: int = 8,
    ) -> None:
        stride_per_axis("LPU", stride, dim)
        blur = build_filter(antialias, channels, padding_mode, dim=dim, groups=groups)
        super().__init__(stride, blur)


def _as_tuple(stride: Stride) -> int | tuple[int, ...]:
    return tuple(stride) if isinstance(stride, Sequence) else stride
