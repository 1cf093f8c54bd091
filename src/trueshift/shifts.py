"""Shifts of images and feature maps; the one place with a sign convention.

Content moves by a positive amount towards higher indices. The paper's ``T_N`` is a shift by -1:
``(T x)[n] = x[n + 1]`` (paper section 3).
"""

from __future__ import annotations

import torch
from torch import Tensor


def circular_shift(x: Tensor, *offsets: int) -> Tensor:
    """Move the content of ``x`` by one offset per spatial axis; what leaves re-enters opposite.

    Args:
        x: Tensor whose last ``len(offsets)`` axes are spatial.
        *offsets: Shift of each of these axes; in 2-D ``dy, dx``.

    Returns:
        The shifted tensor, of the same shape.

    Example:
        >>> circular_shift(torch.tensor([1, 2, 3]), 1)
        tensor([3, 1, 2])
    """
    if not 1 <= len(offsets) <= x.ndim:
        raise ValueError(
            f"circular_shift: pass one offset per spatial axis, got {len(offsets)} offsets for"
            f" a tensor of shape {tuple(x.shape)}."
        )
    return torch.roll(x, offsets, tuple(range(-len(offsets), 0)))
