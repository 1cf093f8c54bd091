"""Shifts of images and feature maps; the one place with a sign convention.

Content moves by a positive amount towards higher indices. The paper's ``T_N`` is a shift by -1:
``(T x)[n] = x[n + 1]`` (paper section 3).

A circular shift loses nothing and is undone by the opposite one. A standard shift moves the image
behind a fixed window: what leaves the window is lost, and two shifts are compared where both see
the same content.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trueshift._dispatch import traced


def circular_shift(x: Tensor, *offsets: int) -> Tensor:
    """Move the content of ``x`` by one offset per spatial axis, around the borders.

    Args:
        x: Tensor whose last ``len(offsets)`` axes are spatial.
        *offsets: Shift of each of these axes; in 2-D ``dy, dx``.

    Returns:
        The shifted tensor, of the same shape and memory format.

    Examples:
        >>> circular_shift(torch.tensor([1, 2, 3]), 1)
        tensor([3, 1, 2])
    """
    if not 1 <= len(offsets) <= x.ndim:
        raise ValueError(
            f"circular_shift: pass one offset per spatial axis, got {len(offsets)} offsets for"
            f" a tensor of shape {tuple(x.shape)}."
        )
    axes = tuple(range(-len(offsets), 0))
    if not traced():  # sizes are known
        # torch.roll by a full wrap forgets the memory format, on which rounding depends.
        turned = {a: n for a, n in zip(axes, offsets, strict=True) if n % max(1, x.shape[a]) != 0}
        axes, offsets = tuple(turned), tuple(turned.values())
    return torch.roll(x, offsets, axes) if axes else x.clone()


def wraps_of(network: object) -> tuple[bool, ...] | None:
    """Tell along which axes a network moves with shifts, if it says so and only some do.

    Networks of :mod:`trueshift.models` say so in ``spec``, converted ones in ``plan``.
    """
    for part in (getattr(network, "spec", None), getattr(network, "plan", None)):
        wraps = getattr(part, "wraps", None)
        if isinstance(wraps, tuple) and any(wraps) and not all(wraps):
            return wraps
    return None


def check_wraps(who: str, wraps: Sequence[bool] | None, dim: int = 2) -> tuple[bool, ...] | None:
    """Raise unless ``wraps`` says for each axis whether it wraps, and one does."""
    if wraps is None:
        return None
    known = isinstance(wraps, Sequence) and all(isinstance(axis, bool) for axis in wraps)
    if not known or len(wraps) != dim or not any(wraps):
        raise ValueError(
            f"{who}: wraps must say for each of {dim} spatial axes whether it wraps, and one must,"
            f" got {wraps!r}."
        )
    return tuple(wraps)


def standard_shift(x: Tensor, size: int | Sequence[int], *offsets: int) -> Tensor:
    """Move the content of ``x``, then crop the centre, as S-Cons. does (paper section 5.2).

    Nothing is padded: the window must stay inside the image. An image of 256 pixels seen through
    224 can move by -16..16 on each axis.

    Args:
        x: Tensor whose last ``len(offsets)`` axes are spatial.
        size: Sizes of the crop: one integer for all axes, or one per axis.
        *offsets: Shift of each of these axes; in 2-D ``dy, dx``.

    Returns:
        The window, a view of ``x`` of shape ``(..., *size)``.

    Examples:
        >>> standard_shift(torch.arange(7), 3, 0), standard_shift(torch.arange(7), 3, 1)
        (tensor([2, 3, 4]), tensor([1, 2, 3]))
    """
    if not 1 <= len(offsets) <= x.ndim:
        raise ValueError(
            f"standard_shift: pass one offset per spatial axis, got {len(offsets)} offsets for"
            f" a tensor of shape {tuple(x.shape)}."
        )
    windows = tuple(size) if isinstance(size, Sequence) else (size,) * len(offsets)
    full = tuple(x.shape[-len(offsets) :])
    if len(windows) != len(offsets) or min(windows) < 1:
        raise ValueError(
            f"standard_shift: size must be an integer >= 1, or one per axis, got {size!r} for"
            f" {len(offsets)} axes."
        )
    for axis, (have, want, offset) in enumerate(zip(full, windows, offsets, strict=True)):
        start = (have - want) // 2 - offset
        if not 0 <= start <= have - want:
            needed = max(want - 2 * offset - 1, want + 2 * offset, want)
            raise ValueError(
                f"standard_shift: a crop of {windows} moved by {offsets} leaves the image of size"
                f" {full}. Pass a smaller shift or crop, or an image of at least {needed} there."
            )
        x = x.narrow(axis - len(offsets), start, want)
    return x


def common_region(
    a: Tensor, b: Tensor, shift_a: Sequence[int], shift_b: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Undo two standard shifts: keep the part of both windows that shows the same content.

    Args:
        a: What was seen, or predicted, under ``shift_a``: the last ``len(shift_a)`` axes are
            spatial.
        b: The same under ``shift_b``, of the same spatial sizes.
        shift_a: Offsets of ``a``; in 2-D ``(dy, dx)``.
        shift_b: Offsets of ``b``.

    Returns:
        Views of ``a`` and ``b`` of equal spatial sizes, empty if the windows do not overlap.

    Examples:
        >>> x = torch.arange(7)
        >>> common_region(standard_shift(x, 3, 0), standard_shift(x, 3, 1), (0,), (1,))
        (tensor([2, 3]), tensor([2, 3]))
    """
    dim = len(shift_a)
    if (
        len(shift_b) != dim
        or not 1 <= dim <= min(a.ndim, b.ndim)
        or a.shape[-dim:] != b.shape[-dim:]
    ):
        raise ValueError(
            f"common_region: a and b must have the same spatial sizes and one offset per axis, got"
            f" shapes {tuple(a.shape)} and {tuple(b.shape)} with shifts {tuple(shift_a)} and"
            f" {tuple(shift_b)}."
        )
    for axis in range(dim):
        moved = int(shift_b[axis]) - int(shift_a[axis])
        length = max(a.shape[axis - dim] - abs(moved), 0)
        last = a.shape[axis - dim] - length
        a = a.narrow(axis - dim, min(max(-moved, 0), last), length)
        b = b.narrow(axis - dim, min(max(moved, 0), last), length)
    return a, b
