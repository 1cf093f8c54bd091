"""Down-sampling of maps that bring a circular border along, so that nobody copies them for one."""

from __future__ import annotations

from torch import Tensor

from trueshift._adjoint import Widths, inner_region
from trueshift._validate import stride_per_axis
from trueshift.functional import polyphase_down
from trueshift.layers.antialias import Blur
from trueshift.layers.resample import PolyphaseDown
from trueshift.layers.selectors import ConvSelector, NormSelector


def border_of(down: PolyphaseDown, dim: int) -> Widths | None:
    """Return how wide a border filter and selector of a layer read, per axis; ``None``: unknown.

    Args:
        down: In eval mode, without hooks.
        dim: Number of spatial axes.
    """
    if type(down) is not PolyphaseDown:
        return None
    blur, selector = down.antialias, down.selector
    if down.padding_mode != "circular" or type(selector) not in (ConvSelector, NormSelector):
        return None
    if blur is not None and (type(blur) is not Blur or blur.padding_mode != "circular"):
        return None
    if blur is not None and down.select_on != "filtered":
        return None
    rules = ("circular", "argmax")
    if isinstance(selector, ConvSelector) and (selector.padding_mode, selector.test_rule) != rules:
        return None
    filtered = ((0, 0),) * dim if blur is None else blur.widths
    return tuple(
        (before + reach, after + reach)
        for (before, after), reach in zip(filtered, _reach(down, dim), strict=True)
    )


def sample_bordered(down: PolyphaseDown, wide: Tensor) -> tuple[Tensor, Tensor]:
    """Do what ``down(x, return_phase=True)`` does.

    Args:
        down: A layer for which :func:`border_of` knows the border.
        wide: ``x`` with that border, circular.
    """
    dim = wide.ndim - 2
    steps = stride_per_axis("PolyphaseDown", down.stride, dim)
    if isinstance(down.antialias, Blur):
        wide = down.antialias.without_border(wide)
    widths = tuple((reach, reach) for reach in _reach(down, dim))
    sizes = [n - sum(pair) for n, pair in zip(wide.shape[2:], widths, strict=True)]
    x = wide[inner_region(widths, sizes)]
    if isinstance(down.selector, ConvSelector):
        phase = down.selector.choose(x, steps, wide=wide)
    else:
        phase = down.selector.choose(x, steps)  # type: ignore[union-attr, operator]
    return polyphase_down(x, phase, steps), phase


def _reach(down: PolyphaseDown, dim: int) -> tuple[int, ...]:
    """Return how far the selector reads; a learned one to the next pixel of its component."""
    steps = stride_per_axis("PolyphaseDown", down.stride, dim)
    return steps if isinstance(down.selector, ConvSelector) else (0,) * dim
