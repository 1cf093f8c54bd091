"""Low-pass filters and convolutions where less than the formula says need be computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trueshift._cpu.adjoints import linear
from trueshift._cpu.conditions import differentiates, empty_map, full_precision
from trueshift._dispatch import definition, fast
from trueshift._validate import Mode, axis_modes
from trueshift.exact import CONVOLUTIONS, channels_last, convolve
from trueshift.functional import (
    Adaptive,
    Conv,
    adaptive_blur_down,
    binomial_kernel,
    blur,
    blur_down,
    convolution,
    keep_phase,
    mix_neighbours,
    predict_filters,
)
from trueshift.windows import Phase, Slices, is_soft, kernel_reach, pad, phase_offsets, phase_window


def is_binomial(kernel: Tensor) -> bool:
    """Whether a kernel is that of :class:`trueshift.Blur`."""
    usual = binomial_kernel(kernel.shape[-1], kernel.ndim - 2).to(kernel.dtype)
    return torch.equal(kernel, usual.expand_as(kernel))


def filter_adjoint(x: Tensor, kernel: Tensor, mode: Mode) -> Tensor:
    """Adjoint of :func:`blur` for symmetric kernels; even sizes reach further to the left."""
    dim, channels, size = x.ndim - 2, x.shape[1], kernel.shape[-1]
    wide = pad(x, ((size // 2, (size - 1) // 2),) * dim, mode)
    weight = kernel.to(x.dtype).expand(channels, 1, *kernel.shape[2:])
    return CONVOLUTIONS[dim](wide, weight, groups=channels)


def _is_fixed(x: Tensor, kernel: Tensor, mode: Mode) -> bool:
    trains = differentiates(x) and not kernel.requires_grad and full_precision(x)
    borders = set(axis_modes(mode, x.ndim - 2)) <= {"circular", "zeros"}
    return trains and borders and is_binomial(kernel)


@fast(blur, when=_is_fixed)
def blur_keeping_nothing(x: Tensor, kernel: Tensor, mode: Mode) -> Tensor:
    """Filter by a fixed kernel: a convolution would keep its padded input for the backward pass."""
    return linear(definition(blur), filter_adjoint, x, kernel, mode)


def _pads_inside(x: Tensor, kernel: Tensor, phase: Phase, stride: Any, mode: Mode) -> bool:
    return mode == "zeros" and isinstance(phase, int) and phase == 0


@fast(blur_down, when=_pads_inside)
def blur_down_padded(
    x: Tensor, kernel: Tensor, phase: Phase, stride: tuple[int, ...], mode: Mode
) -> Tensor:
    """Let the convolution pad by zeros itself: no copy for a border."""
    before = tuple(before for before, _ in kernel_reach(kernel))
    if min(stride) == 1 and kernel.shape[-1] % 2 == 0:  # one pixel too few at the end
        return keep_phase(blur(x, kernel, mode), phase, stride)
    return convolve(x, kernel.to(x.dtype), None, stride, before, groups=x.shape[1])


def _trains_in_half(
    x: Tensor, kernel: Tensor, phase: Phase, stride: tuple[int, ...], mode: Mode
) -> bool:
    trains = differentiates(x) and not kernel.requires_grad and x.dtype != torch.float64
    return trains and max(stride) > 1 and not full_precision(x)


@fast(blur_down, when=_trains_in_half)
def blur_down_in_half(
    x: Tensor, kernel: Tensor, phase: Phase, stride: tuple[int, ...], mode: Mode
) -> Tensor:
    """Filter with a backward pass of its own: torch's takes thirty times as long as the forward."""
    window = phase_window(x, phase, stride, kernel_reach(kernel), mode)
    if torch.is_autocast_enabled("cpu"):
        window = window.to(torch.get_autocast_dtype("cpu"))
    kernel = kernel.to(window.dtype)
    return linear(_filter_kept, _filter_placed, window, kernel, stride, window.shape[2:])


def _filter_kept(
    window: Tensor, kernel: Tensor, stride: tuple[int, ...], sizes: Sequence[int]
) -> Tensor:
    return convolve(window, kernel, stride=stride, groups=window.shape[1])


def _filter_placed(
    y: Tensor, kernel: Tensor, stride: tuple[int, ...], sizes: Sequence[int]
) -> Tensor:
    """Adjoint of :func:`_filter_kept`: a dense convolution of the values among zeros."""
    reach = [taps - 1 for taps in kernel.shape[2:]]
    placed = empty_map(y, [n + r for n, r in zip(sizes, reach, strict=True)]).zero_()
    ends = [r + n * step for r, n, step in zip(reach, y.shape[2:], stride, strict=True)]
    kept: Slices = (..., *(slice(*axis) for axis in zip(reach, ends, stride, strict=True)))
    placed[kept] = y
    mirrored = kernel.flip(tuple(range(2, kernel.ndim)))
    return convolve(placed, mirrored, groups=y.shape[1])


def _computes_kept_only(
    x: Tensor, ddac: Adaptive, phase: Phase, *_: Any, exact: bool = False
) -> bool:
    return isinstance(phase, int) or (exact and not is_soft(phase))


@fast(adaptive_blur_down, when=_computes_kept_only)
def adaptive_blur_kept(
    x: Tensor,
    ddac: Adaptive,
    phase: Phase,
    stride: tuple[int, ...],
    mode: Mode,
    *,
    exact: bool = False,
) -> Tensor:
    """Filter only the positions that are kept; at test time, predict only their filters."""
    size, reach = ddac.weight.shape[-1], kernel_reach(ddac.weight)
    if exact or not isinstance(phase, int):
        window = phase_window(x, phase, stride, reach, mode)
        filters = predict_filters(window, ddac, stride, exact=exact)
        return mix_neighbours(window, filters, ddac.groups, size, stride)
    padded = pad(x, reach, mode)
    filters = keep_phase(predict_filters(padded, ddac, exact=exact), phase, stride)
    start: Slices = (..., *(slice(o, None) for o in phase_offsets(stride)[phase]))
    return mix_neighbours(padded[start], filters, ddac.groups, size, stride)


def _sums_rows(padded: Tensor, filters: Tensor, groups: int, *_: Any) -> bool:
    last = channels_last(padded) and channels_last(filters)
    kind = padded.dtype == filters.dtype == torch.float32 and not torch.is_grad_enabled()
    return last and kind and groups < padded.shape[1] and padded.numel() < 2**31


@fast(mix_neighbours, when=_sums_rows)
def sum_rows(
    padded: Tensor, filters: Tensor, groups: int, size: int, stride: tuple[int, ...]
) -> Tensor:
    """Sum rows of an embedding: channels-last, the channels of a group lie side by side."""
    sizes = filters.shape[2:]
    places = _places(padded, sizes, groups, size, stride)  # (*sizes, groups, *taps)
    starts = torch.arange(0, places.numel(), size ** len(stride), dtype=torch.int32)
    width = padded.shape[1] // groups
    sums = [
        F.embedding_bag(
            places.view(-1),
            image.reshape(-1, width),
            starts,
            mode="sum",
            per_sample_weights=weight.reshape(-1),
        )
        for image, weight in zip(padded.movedim(1, -1), filters.movedim(1, -1), strict=True)
    ]
    return torch.stack(sums).view(padded.shape[0], *sizes, padded.shape[1]).movedim(-1, 1)


def _places(
    padded: Tensor, sizes: Sequence[int], groups: int, size: int, stride: tuple[int, ...]
) -> Tensor:
    """Return the row of an image that every tap of every kept position and group reads."""
    dim = len(stride)

    def count_up(end: int, step: int = 1) -> Tensor:
        return torch.arange(0, end, step, dtype=torch.int32)

    place = count_up(1).view([1] * (2 * dim + 1))
    for axis, (length, count, step) in enumerate(zip(padded.shape[2:], sizes, stride, strict=True)):
        shape = [1] * (2 * dim + 1)
        shape[axis], shape[dim + 1 + axis] = count, size
        reads = count_up(count * step, step)[:, None] + count_up(size)
        place = place * length + reads.view(shape)
    return place * groups + count_up(groups).view(*[1] * dim, -1, *[1] * dim)


def _reaches_round(x: Tensor, conv: Conv, stride: Any, mode: Mode, *, exact: bool = False) -> bool:
    if mode != "circular":
        return False
    centred = all(n % 2 == 1 for n in conv.weight.shape[2:])  # else wraps move the centre
    return centred and any(2 * d > n for d, n in zip(conv.dilation, x.shape[2:], strict=True))


@fast(convolution, when=_reaches_round)
def convolve_the_short_way(
    x: Tensor, conv: Conv, stride: tuple[int, ...], mode: Mode, *, exact: bool = False
) -> Tensor:
    """On a circle of n pixels, a tap at distance d is also at d mod n, and behind at -d mod n."""
    weight, bias, dilation, groups = conv
    ahead = [(d - 1) % n + 1 for d, n in zip(dilation, x.shape[2:], strict=True)]
    behind = [n - d if d < n else n for d, n in zip(ahead, x.shape[2:], strict=True)]
    turned = [axis for axis, (d, b) in enumerate(zip(ahead, behind, strict=True), 2) if b < d]
    nearer = tuple(map(min, ahead, behind))
    padded = pad(x, kernel_reach(weight, nearer), mode)
    return convolve(padded, weight.flip(turned), bias, stride, 0, nearer, groups, exact=exact)
