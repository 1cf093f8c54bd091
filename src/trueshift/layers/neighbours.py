"""Weighted sums of neighbourhoods, for filters that differ from pixel to pixel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trueshift._adjoint import channels_last
from trueshift._eager import only_result


def sums_rows(x: Tensor, weights: Tensor, groups: int) -> bool:
    """Whether :func:`sum_neighbours` may be used, and is quicker than one product per tap."""
    last = channels_last(x) and channels_last(weights)
    kind = x.device.type == "cpu" and x.dtype == weights.dtype == torch.float32
    rows = x.shape[1] > groups and 0 < x.numel() < 2**31  # of several values, counted in int32
    return last and kind and rows and only_result()


def sum_neighbours(
    x: Tensor, weights: Tensor, groups: int, size: int, stride: tuple[int, ...]
) -> Tensor:
    """Sum the neighbourhood of every kept position with its weights.

    The channels of a group lie side by side, as a row of an embedding does. What is wanted is so a
    weighted sum of rows, for which torch has a kernel.

    Args:
        x: ``(B, C, *spatial)`` with its border, channels-last.
        weights: ``(B, groups * size ** dim, *sizes)``, channels-last.
        groups: Groups of channels that share weights.
        size: Taps per axis.
        stride: Distance of the kept positions.

    Returns:
        ``(B, C, *sizes)``, channels-last.
    """
    sizes = weights.shape[2:]
    places = _places(x, sizes, groups, size, stride)  # (*sizes, groups, *taps)
    taps = size ** len(stride)
    starts = torch.arange(0, places.numel(), taps, dtype=torch.int32, device=x.device)
    width = x.shape[1] // groups
    sums = [
        F.embedding_bag(
            places.view(-1),
            image.reshape(-1, width),
            starts,
            mode="sum",
            per_sample_weights=weight.reshape(-1),
        )
        for image, weight in zip(x.movedim(1, -1), weights.movedim(1, -1), strict=True)
    ]
    return torch.stack(sums).view(x.shape[0], *sizes, x.shape[1]).movedim(-1, 1)


def _places(
    x: Tensor, sizes: Sequence[int], groups: int, size: int, stride: tuple[int, ...]
) -> Tensor:
    """Return the row of an image that every tap of every kept position and group reads."""
    dim = len(stride)

    def count_up(end: int, step: int = 1) -> Tensor:
        return torch.arange(0, end, step, dtype=torch.int32, device=x.device)

    place = count_up(1).view([1] * (2 * dim + 1))
    for axis, (length, count, step) in enumerate(zip(x.shape[2:], sizes, stride, strict=True)):
        shape = [1] * (2 * dim + 1)
        shape[axis], shape[dim + 1 + axis] = count, size
        reads = count_up(count * step, step)[:, None] + count_up(size)
        place = place * length + reads.view(shape)
    return place * groups + count_up(groups).view(*[1] * dim, -1, *[1] * dim)
