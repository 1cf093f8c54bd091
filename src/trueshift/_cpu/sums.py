"""Sums over space, and the hard choice."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from trueshift._cpu.chunks import by_chunks
from trueshift._cpu.conditions import image_size
from trueshift._dispatch import fast
from trueshift.exact import channels_last, order_free_mean, sum_dtype
from trueshift.ties import argmax_phase, break_ties


def _is_plain_mean(x: Tensor, dim: int | tuple[int, ...]) -> bool:
    return not x.requires_grad


@fast(order_free_mean, when=_is_plain_mean)
def order_free_mean_in_place(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Convert once, then work in place; a few images at a time."""
    axes = tuple(axis % x.ndim for axis in ((dim,) if isinstance(dim, int) else dim))
    if 0 in axes:
        return _mean(x, axes)
    return by_chunks(lambda part: _mean(part, axes), x, per_image=2 * image_size(x))


def _mean(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    wide = sum_dtype(x)
    exact = 0.5 / torch.finfo(wide).eps
    count = math.prod([x.shape[axis] for axis in axes])
    if channels_last(x) and axes == tuple(range(2, x.ndim)):
        terms = x.to(wide, copy=True)
    else:  # side by side in memory, the terms are summed several times faster
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        terms = x.permute(*kept, *axes)
        terms = terms.to(wide, copy=True, memory_format=torch.contiguous_format)
        terms, axes = terms.flatten(len(kept)), (-1,)
    largest = torch.maximum(terms.amax(axes, keepdim=True), -terms.amin(axes, keepdim=True))
    largest = torch.where(largest > 0, largest, 1.0)
    terms = terms.div_(largest).mul_(exact / count).round_()
    return (terms.sum(axes, keepdim=True) * (largest / exact)).squeeze(axes)


def spatial_means(x: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Return the mean over space of every component, ``(B, C, *stride)``, in rounded sums.

    One axis after the other, in the order of memory: several times faster than all at once.
    """
    last, count = channels_last(x), math.prod(x.shape[2:]) // math.prod(stride)
    sums = x.movedim(1, -1) if last else x
    for axis, step in enumerate(stride, start=1 if last else 2):
        sums = sums.unflatten(axis, (-1, step)).sum(axis)
    return (sums.movedim(-1, 1) if last else sums) / count


@fast(argmax_phase)
def argmax_where_tied(
    logits: Tensor, x: Tensor | Callable[[], Tensor], stride: tuple[int, ...]
) -> Tensor:
    """Read the map only if there is a tie to break."""
    tied = logits == logits.amax(1, keepdim=True)
    if not (tied.sum(1) > 1).any():
        return logits.argmax(1)
    return break_ties(logits, x if isinstance(x, Tensor) else x(), stride)
