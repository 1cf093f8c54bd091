"""Borders of feature maps, under torch's names, for any number of axes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from trueshift._adjoint import CircularPad, Widths, channels_innermost, last_format, wrap


def pad(x: Tensor, widths: Widths, mode: str, *, last: bool | None = None) -> Tensor:
    """Extend a feature map at its borders.

    Unlike ``torch.nn.functional.pad``, a circular border may be wider than the map (it wraps as
    often as needed), and keeps the channels-last layout.

    Args:
        x: Feature map ``(..., C, *spatial)``.
        widths: For each spatial axis, how much to add before and after.
        mode: ``"circular"``, ``"zeros"``, ``"reflect"`` or ``"replicate"``.
        last: Ask for a channels-last (or default) result; ``None`` keeps the layout of ``x``.

    Returns:
        The extended map.

    Examples:
        >>> pad(torch.tensor([[[1, 2, 3]]]), ((2, 1),), "circular")
        tensor([[[2, 3, 1, 2, 3, 1]]])
    """
    if not any(before or after for before, after in widths):
        return x
    if mode != "circular":
        flat = [width for pair in reversed(widths) for width in pair]
        return F.pad(x, flat, mode="constant" if mode == "zeros" else mode)
    sizes = x.shape[-len(widths) :]
    if torch.compiler.is_compiling():
        return _wrap(x, widths)
    last = channels_innermost(x) if last is None else last
    if any(max(pair) > size for pair, size in zip(widths, sizes, strict=True)):
        wrapped = _wrap(x, widths)
        return wrapped.contiguous(memory_format=last_format(x.ndim)) if last else wrapped
    padded: Tensor = CircularPad.apply(x, widths, last)
    return padded


def _wrap(x: Tensor, widths: Widths) -> Tensor:
    """Circular padding as one concatenation per axis."""
    for axis, (before, after) in zip(range(-len(widths), 0), widths, strict=True):
        size = x.shape[axis]
        if max(before, after) <= size:
            x = torch.cat(
                [x.narrow(axis, size - before, before), x, x.narrow(axis, 0, after)], axis
            )
        else:
            place = torch.arange(-before, size + after, device=x.device)
            x = x.index_select(axis, wrap(place, size))
    return x
