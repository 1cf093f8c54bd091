"""Down- and up-sampling by polyphase components, and the short names of the paper for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trueshift._adjoint import Slices
from trueshift._chunks import by_chunks, by_chunks_twice
from trueshift._eager import needs_whole_batch, only_result, traced, watched
from trueshift._validate import (
    PADDING_MODES,
    Stride,
    check_choice,
    check_divisible,
    check_map,
    check_module,
    check_output_size,
    check_phase,
    check_stride,
    stride_per_axis,
)
from trueshift.functional import polyphase_down, polyphase_up
from trueshift.layers.antialias import Blur, build_antialias, filter_and_keep
from trueshift.layers.placing import filtered_up
from trueshift.layers.selectors import ConvSelector, FixedSelector, NormSelector
from trueshift.padding import pad

SELECT_ON = ("filtered", "unfiltered")


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
        select_on: Choose among the ``"filtered"`` components (as the paper does) or the
            ``"unfiltered"`` ones.
        padding_mode: With ``"circular"``, a size that the stride does not divide is an error.
            Otherwise the map is extended in this mode at its end, so that sizes follow torch's rule
            for strides.

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
        select_on: str = "filtered",
        padding_mode: str = "circular",
    ) -> None:
        super().__init__()
        check_stride("PolyphaseDown", stride)
        check_choice("PolyphaseDown", "select_on", select_on, SELECT_ON)
        check_choice("PolyphaseDown", "padding_mode", padding_mode, PADDING_MODES)
        check_module("PolyphaseDown", "antialias", antialias)
        check_module("PolyphaseDown", "selector", selector)
        self.stride: int | tuple[int, ...] = _plain(stride)
        self.selector, self.antialias = selector, antialias
        self.select_on, self.padding_mode = select_on, padding_mode

    def forward(
        self, x: Tensor, phase: Tensor | None = None, return_phase: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        check_map("PolyphaseDown", x)
        steps = stride_per_axis("PolyphaseDown", self.stride, x.ndim - 2)
        x = self.fit(x)
        if phase is not None:
            check_phase("PolyphaseDown", phase, x, math.prod(steps))
            y = filter_and_keep(self.antialias, x, phase, steps)
        elif self._selects_on_filtered:
            filtered = self.antialias(x)  # type: ignore[misc]
            phase = self.selector.choose(filtered, steps)  # type: ignore[union-attr, operator]
            y = polyphase_down(filtered, phase, steps)
        else:
            phase = self._choose(x, steps)
            known = self.selector.index if isinstance(self.selector, FixedSelector) else phase
            y = filter_and_keep(self.antialias, x, known, steps)
        return (y, phase) if return_phase else y

    def choose(self, x: Tensor, witness: Tensor | None = None) -> Tensor:
        """Return the phase that the selector chooses for ``x``, a map of any channels it takes.

        Args:
            x: The map that the selector looks at.
            witness: The map that will be sampled, if that is another one; it then breaks the ties
                of a learned selector.
        """
        check_map("PolyphaseDown", x)
        steps = stride_per_axis("PolyphaseDown", self.stride, x.ndim - 2)
        return self._choose(self.fit(x), steps, None if witness is None else self.fit(witness))

    def fit(self, x: Tensor) -> Tensor:
        """Check that the stride divides the size of ``x``, or extend it where borders allow."""
        steps = stride_per_axis("PolyphaseDown", self.stride, x.ndim - 2)
        if self.padding_mode == "circular":
            check_divisible("PolyphaseDown", x, steps)
            return x
        widths = tuple((0, -size % step) for size, step in zip(x.shape[2:], steps, strict=True))
        return pad(x, widths, self.padding_mode)

    @property
    def _selects_on_filtered(self) -> bool:
        if self.selector is None or self.antialias is None or self.select_on == "unfiltered":
            return False
        return not isinstance(self.selector, FixedSelector)

    def _choose(self, x: Tensor, steps: tuple[int, ...], witness: Tensor | None = None) -> Tensor:
        if self.selector is None:
            raise ValueError(
                "PolyphaseDown: built with selector=None, so it follows another branch. Pass"
                " phase=..., the second result of the other branch's layer with return_phase=True."
            )
        further = () if witness is None else (witness,)
        phase: Tensor = self.selector.choose(x, steps, *further)  # type: ignore[operator]
        return phase

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"stride={self.stride}, select_on={self.select_on}, padding_mode={self.padding_mode}"


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
        self.stride: int | tuple[int, ...] = _plain(stride)
        self.antialias = antialias

    def forward(self, y: Tensor, phase: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        check_map("PolyphaseUp", y, name="y")
        steps = stride_per_axis("PolyphaseUp", self.stride, y.ndim - 2)
        check_phase("PolyphaseUp", phase, y, math.prod(steps))
        whole = tuple(size * step for size, step in zip(y.shape[2:], steps, strict=True))
        size = None
        if output_size is not None:
            size = check_output_size("PolyphaseUp", output_size, whole, steps)
        if isinstance(self.antialias, Blur) and not traced() and size in (None, whole):
            filtered = filtered_up(self.antialias, y, phase, steps)
            if filtered is not None:
                return filtered

        def up(y: Tensor, phase: Tensor) -> Tensor:
            return self._up(y, phase, steps, size)

        maps = 1 if self.antialias is None else 3  # placed, with a border, filtered
        per_image = maps * math.prod([*y.shape[1:], *steps])
        if not needs_whole_batch(self):
            return by_chunks(up, y, phase, per_image=per_image)
        fixed = isinstance(self.antialias, Blur) and not watched(self)
        if torch.is_grad_enabled() and fixed:
            return by_chunks_twice(up, y, phase, per_image=per_image)
        return up(y, phase)

    def _up(
        self, y: Tensor, phase: Tensor, steps: tuple[int, ...], size: tuple[int, ...] | None
    ) -> Tensor:
        u = polyphase_up(y, phase, steps)
        if size is not None:
            kept: Slices = (..., *(slice(0, wanted) for wanted in size))
            u = u[kept]
        if self.antialias is None:
            return u
        filtered: Tensor = self.antialias(u)
        scale = float(math.prod(steps))
        return filtered.mul_(scale) if only_result() else filtered * scale

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"stride={self.stride}"


def LPD(
    channels: int,
    hidden_channels: int | None = None,
    stride: Stride = 2,
    antialias: str | None = None,
    padding_mode: str = "circular",
    *,
    dim: int = 2,
    groups: int = 8,
    select_on: str = "filtered",
    tau: float = 1.0,
    train_rule: str = "gumbel",
    test_rule: str = "argmax",
) -> PolyphaseDown:
    """Build a learnable polyphase down-sampling layer (paper section 4).

    Args:
        channels: Channels of the feature map.
        hidden_channels: Width of the selector; ``None`` means ``channels``.
        stride: Sampling factor of all axes, or one per axis.
        antialias: ``None``, ``"rect2"``, ``"tri3"``, ``"bin4"`` to ``"bin7"``, ``"adapt3"``,
            ``"adapt5"``.
        padding_mode: Border of the selector, of the filter and of sizes that the stride does not
            divide.
        dim: Number of spatial axes.
        groups: Groups of an adaptive filter.
        select_on: See :class:`PolyphaseDown`.
        tau: See :class:`ConvSelector`.
        train_rule: See :class:`ConvSelector`.
        test_rule: See :class:`ConvSelector`.

    Returns:
        A :class:`PolyphaseDown` with a :class:`ConvSelector`.

    Examples:
        >>> import torch
        >>> down = LPD(4).eval()
        >>> y, phase = down(torch.randn(2, 4, 8, 8), return_phase=True)
        >>> y.shape, phase.shape
        (torch.Size([2, 4, 4, 4]), torch.Size([2]))
    """
    selector = ConvSelector(
        channels,
        hidden_channels,
        padding_mode,
        dim=dim,
        tau=tau,
        train_rule=train_rule,
        test_rule=test_rule,
    )
    blur = build_antialias(antialias, channels, padding_mode, dim=dim, groups=groups)
    return PolyphaseDown(selector, stride, blur, select_on=select_on, padding_mode=padding_mode)


def APS(
    channels: int,
    p: float = 2,
    stride: Stride = 2,
    antialias: str | None = None,
    padding_mode: str = "circular",
    *,
    dim: int = 2,
    groups: int = 8,
    select_on: str = "filtered",
) -> PolyphaseDown:
    """Build an adaptive polyphase down-sampling layer: the component of the largest norm.

    Args:
        channels: Channels of the feature map.
        p: Which norm: 1, 2 or ``inf``.
        stride: Sampling factor of all axes, or one per axis.
        antialias: Name of a filter, as for :func:`LPD`.
        padding_mode: Border of the filter and of sizes that the stride does not divide.
        dim: Number of spatial axes.
        groups: Groups of an adaptive filter.
        select_on: See :class:`PolyphaseDown`.

    Returns:
        A :class:`PolyphaseDown` with a :class:`NormSelector`.

    Examples:
        >>> import torch
        >>> APS(1, dim=1)(torch.tensor([[[1.0, 5.0, 2.0, 4.0]]]))
        tensor([[[5., 4.]]])
    """
    blur = build_antialias(antialias, channels, padding_mode, dim=dim, groups=groups)
    selector = NormSelector(p)
    return PolyphaseDown(selector, stride, blur, select_on=select_on, padding_mode=padding_mode)


def LPU(
    channels: int,
    stride: Stride = 2,
    antialias: str | None = None,
    padding_mode: str = "circular",
    *,
    dim: int = 2,
    groups: int = 8,
) -> PolyphaseUp:
    """Build a polyphase up-sampling layer (paper section 4.3).

    Args:
        channels: Channels of the feature map.
        stride: Sampling factor of all axes, or one per axis.
        antialias: Name of the low-pass filter, as for :func:`LPD`; the paper uses one.
        padding_mode: Border of the filter.
        dim: Number of spatial axes.
        groups: Groups of an adaptive filter.

    Returns:
        A :class:`PolyphaseUp`, called with the map and the phase.

    Examples:
        >>> import torch
        >>> up = LPU(1, antialias="tri3", dim=1)
        >>> up(torch.tensor([[[1.0, 3.0]]]), torch.tensor([0]))
        tensor([[[1., 2., 3., 2.]]])
    """
    blur = build_antialias(antialias, channels, padding_mode, dim=dim, groups=groups)
    return PolyphaseUp(stride, blur)


def _plain(stride: Stride) -> int | tuple[int, ...]:
    return tuple(stride) if isinstance(stride, Sequence) else stride
