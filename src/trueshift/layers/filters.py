"""Low-pass filters for sampling: ``Blur`` (LPF) and ``AdaptiveBlur`` (DDAC).

A filter is any module that keeps the size of a map. One that has a method ``down(x, phase,
stride)`` computes only what a known phase keeps, one that has ``up(y, phase, stride)`` need not see
the zeros of an up-sampled map. A new one is a class and an entry of :data:`FILTERS`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from torch import Tensor, nn

from trueshift import functional
from trueshift._validate import (
    Mode,
    check_choice,
    check_dim,
    check_input,
    check_mode,
    check_positive,
)
from trueshift.functional import binomial_kernel
from trueshift.layers.selectors import CONVS
from trueshift.windows import Phase

NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


class Blur(nn.Module):
    """Binomial low-pass filter: the LPF of the paper (Rect-2, Tri-3, Bin-5 are sizes 2, 3, 5).

    Args:
        channels: Channels of the feature map.
        size: Taps per axis, 1 to 7. Even sizes reach one pixel further to the right than to the
            left.
        padding_mode: Border, in torch's words, for all axes or one per axis.
        dim: Number of spatial axes.

    Shape:
        ``(B, C, *spatial)`` in and out.
    """

    kernel: Tensor

    def __init__(
        self, channels: int, size: int = 3, padding_mode: Mode = "circular", *, dim: int = 2
    ) -> None:
        super().__init__()
        check_positive("Blur", channels=channels, size=size)
        if size > 7:
            raise ValueError(f"Blur: size must be 1 to 7, got {size}.")
        check_dim("Blur", dim)
        self.padding_mode = check_mode("Blur", padding_mode, dim)
        self.channels, self.size, self.dim = channels, size, dim
        kernel = binomial_kernel(size, dim).repeat(channels, *[1] * (1 + dim))
        self.register_buffer("kernel", kernel, persistent=False)  # a formula, not a weight

    @property
    def name(self) -> str:
        """The filter's name in the paper's tables and in :data:`FILTERS`."""
        return {2: "rect2", 3: "tri3"}.get(self.size, f"bin{self.size}")

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        return functional.blur(x, self.kernel, self.padding_mode)

    def down(self, x: Tensor, phase: Phase, stride: tuple[int, ...]) -> Tensor:
        """Return the filtered map where ``phase`` keeps it: one strided convolution."""
        self._check(x)
        return functional.blur_down(x, self.kernel, phase, stride, self.padding_mode)

    def up(self, y: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
        """Place a map at its phase and filter it, scaled by the stride."""
        self._check(y)
        return functional.blur_up(y, self.kernel, phase, stride, self.padding_mode)

    def _check(self, x: Tensor) -> None:
        check_input("Blur", x, 2, dim=self.dim, channels=self.channels, divisible=False)

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
        padding_mode: Border, in torch's words, for all axes or one per axis.
        dim: Number of spatial axes.

    Shape:
        ``(B, C, *spatial)`` in and out.
    """

    def __init__(
        self,
        channels: int,
        size: int = 3,
        groups: int = 8,
        padding_mode: Mode = "circular",
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
        self.padding_mode = check_mode("AdaptiveBlur", padding_mode, dim)
        self.channels, self.size, self.groups, self.dim = channels, size, groups, dim
        self.conv = CONVS[dim](channels, groups * size**dim, size, bias=False)
        self.bn = NORMS[dim](groups * size**dim)

    @property
    def name(self) -> str:
        """The filter's name in the paper's tables and in :data:`FILTERS`."""
        return f"adapt{self.size}"

    def forward(self, x: Tensor) -> Tensor:
        ddac, exact = self._checked(x)
        return functional.adaptive_blur(x, ddac, self.padding_mode, exact=exact)

    def down(self, x: Tensor, phase: Phase, stride: tuple[int, ...]) -> Tensor:
        """Return the filtered map at the positions that ``phase`` keeps.

        While training, the batch norm still sees every position, as it does when the map is
        filtered whole.
        """
        ddac, exact = self._checked(x)
        return functional.adaptive_blur_down(x, ddac, phase, stride, self.padding_mode, exact=exact)

    def _checked(self, x: Tensor) -> tuple[functional.Adaptive, bool]:
        check_input("AdaptiveBlur", x, 2, dim=self.dim, channels=self.channels, divisible=False)
        exact = not (self.training or self.bn.training)  # batch statistics need every position
        return functional.Adaptive(self.conv.weight, self.bn, self.groups), exact

    def extra_repr(self) -> str:
        """Show the arguments."""
        return (
            f"{self.channels}, size={self.size}, groups={self.groups},"
            f" padding_mode={self.padding_mode}"
        )


def _fixed(channels: int, mode: Mode, dim: int, groups: int, *, size: int) -> Blur:
    return Blur(channels, size, mode, dim=dim)


def _adaptive(channels: int, mode: Mode, dim: int, groups: int, *, size: int) -> AdaptiveBlur:
    return AdaptiveBlur(channels, size, groups, mode, dim=dim)


FILTERS: dict[str, Callable[[int, Mode, int, int], nn.Module]] = {
    "rect2": functools.partial(_fixed, size=2),
    "tri3": functools.partial(_fixed, size=3),
    "bin4": functools.partial(_fixed, size=4),
    "bin5": functools.partial(_fixed, size=5),
    "bin6": functools.partial(_fixed, size=6),
    "bin7": functools.partial(_fixed, size=7),
    "adapt3": functools.partial(_adaptive, size=3),
    "adapt5": functools.partial(_adaptive, size=5),
}


def build_filter(
    name: str | None, channels: int, padding_mode: Mode, *, dim: int = 2, groups: int = 8
) -> nn.Module | None:
    """Build the filter that a name of the paper's tables stands for; ``None`` is no filter."""
    check_choice("antialias", "filter", name, (None, *FILTERS))
    return None if name is None else FILTERS[name](channels, padding_mode, dim, groups)


def filter_name(blur: nn.Module | None) -> str | None:
    """Return the name of a filter in the paper's tables, or that of its class."""
    return None if blur is None else str(getattr(blur, "name", type(blur).__name__))
