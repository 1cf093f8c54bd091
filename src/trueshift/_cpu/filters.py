"""Low-pass filters and strided convolutions at a phase."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from trueshift._cpu.chunks import by_chunks_twice
from trueshift._cpu.conditions import (
    LIMITS,
    differentiates,
    full_precision,
    image_size,
)
from trueshift._cpu.sampling import mix_windows
from trueshift._cpu.scores import weight_gradient
from trueshift._dispatch import definition, fast
from trueshift._validate import Mode
from trueshift.exact import CONVOLUTIONS, channels_last, convolve
from trueshift.functional import (
    adaptive_blur_down,
    blur,
    blur_down,
    conv_down,
    convolution,
    keep_phase,
    mix_neighbours,
    predict_filters,
)
from trueshift.windows import (
    Phase,
    Slices,
    is_soft,
    kernel_reach,
    pad,
    phase_offsets,
    phase_window,
    tap_slices,
    window_slices,
)


def _mixes_large_windows(x: Tensor, kernel: Tensor, phase: Phase, *_: Any) -> bool:
    large = image_size(x) >= LIMITS.mix_windows and not channels_last(x)
    return is_soft(phase) and large


@fast(blur_down, when=_mixes_large_windows)
def blur_down_twice(
    x: Tensor, kernel: Tensor, phase: Phase, stride: tuple[int, ...], mode: Mode
) -> Tensor:
    """Mix the windows of large images and filter once, a few images at a time."""

    def kept(part: Tensor, phase: Tensor) -> Tensor:
        return definition(blur_down)(part, kernel, phase, stride, mode)

    if x.shape[0] == 1:  # may be a chunk already
        return kept(x, phase)  # type: ignore[arg-type]
    return by_chunks_twice(kept, x, phase, per_image=image_size(x))  # type: ignore[arg-type]


def _is_slow_at_a_phase(x: Tensor, kernel: Tensor, phase: Phase, *_: Any) -> bool:
    return isinstance(phase, Tensor) and (is_soft(phase) or differentiates(x))


@fast(blur_down, when=_is_slow_at_a_phase)
def blur_then_down(
    x: Tensor, kernel: Tensor, phase: Phase, stride: tuple[int, ...], mode: Mode
) -> Tensor:
    """Filter the whole map: the backward pass through windows of single images is slow."""
    return keep_phase(blur(x, kernel, mode), phase, stride)


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


def _computes_kept_only(
    x: Tensor, weight: Tensor, norm: Any, groups: int, phase: Phase, *_: Any, exact: bool = False
) -> bool:
    return isinstance(phase, int) or (exact and not is_soft(phase))


@fast(adaptive_blur_down, when=_computes_kept_only)
def adaptive_blur_kept(
    x: Tensor,
    weight: Tensor,
    norm: Callable[[Tensor], Tensor],
    groups: int,
    phase: Phase,
    stride: tuple[int, ...],
    mode: Mode,
    *,
    exact: bool = False,
) -> Tensor:
    """Filter only the positions that are kept; at test time, predict only their filters."""
    size, reach = weight.shape[-1], kernel_reach(weight)
    if exact or not isinstance(phase, int):
        window = phase_window(x, phase, stride, reach, mode)
        filters = predict_filters(window, weight, norm, stride, exact=exact)
        return mix_neighbours(window, filters, groups, size, stride)
    padded = pad(x, reach, mode)
    filters = predict_filters(padded, weight, norm, exact=exact)
    offsets = phase_offsets(stride)[phase]
    start: Slices = (..., *(slice(o, None) for o in offsets))
    window = padded[start]
    return mix_neighbours(window, keep_phase(filters, phase, stride), groups, size, stride)


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


def _accumulates(padded: Tensor, filters: Tensor, *_: Any) -> bool:
    return not differentiates(padded, filters)


@fast(mix_neighbours, when=_accumulates)
def add_taps_in_place(
    padded: Tensor, filters: Tensor, groups: int, size: int, stride: tuple[int, ...]
) -> Tensor:
    """Add one tap after the other into the same map."""
    weights = filters.unflatten(1, (groups, 1, -1)).unbind(3)  # each (B, G, 1, h, w)
    x = padded.unflatten(1, (groups, -1))  # (B, G, C / G, H, W)
    first, *reads = tap_slices(filters.shape[2:], size, stride)
    total = x[first] * weights[0]
    for read, weight in zip(reads, weights[1:], strict=True):
        total.addcmul_(x[read], weight)
    return total.flatten(1, 2)


def _reaches_round(
    x: Tensor,
    weight: Tensor,
    bias: Any,
    mode: Mode,
    stride: Any,
    dilation: tuple[int, ...],
    *_: Any,
    **__: Any,
) -> bool:
    if mode != "circular":
        return False
    centred = all(n % 2 == 1 for n in weight.shape[2:])  # else wraps move the centre
    return centred and any(2 * d > n for d, n in zip(dilation, x.shape[2:], strict=True))


@fast(convolution, when=_reaches_round)
def convolve_the_short_way(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mode: Mode,
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int = 1,
    *,
    exact: bool = False,
) -> Tensor:
    """A tap at distance d on a circle of n pixels is one at d modulo n, or n less that behind."""
    ahead = [(d - 1) % n + 1 for d, n in zip(dilation, x.shape[2:], strict=True)]
    behind = [n - d if d < n else n for d, n in zip(ahead, x.shape[2:], strict=True)]
    turned = [axis for axis, (d, b) in enumerate(zip(ahead, behind, strict=True), 2) if b < d]
    nearer = tuple(map(min, ahead, behind))
    padded = pad(x, kernel_reach(weight, nearer), mode)
    return convolve(padded, weight.flip(turned), bias, stride, 0, nearer, groups, exact=exact)


def _reads_images(
    x: Tensor,
    weight: Tensor,
    bias: Any,
    phase: Phase,
    stride: Any,
    mode: Any,
    dilation: tuple[int, ...],
    *_: Any,
    **__: Any,
) -> bool:
    if x.requires_grad or x.shape[1] > LIMITS.stem_channels or math.prod(dilation) != 1:
        return False
    if not is_soft(phase) or not differentiates(phase) or not differentiates(weight):
        return False
    same = x.dtype == weight.dtype == phase.dtype  # type: ignore[union-attr]
    return same and full_precision(x)


@fast(conv_down, when=_reads_images)
def convolve_images(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    phase: Phase,
    stride: tuple[int, ...],
    mode: Mode,
    dilation: tuple[int, ...],
    groups: int = 1,
    *,
    exact: bool = False,
) -> Tensor:
    """Convolve images, whose gradient is not needed."""
    padded = pad(x, kernel_reach(weight, dilation), mode)
    y: Tensor = ImageConv.apply(padded, weight, phase, stride, groups)
    return y if bias is None else y + bias.view(-1, *[1] * len(stride))


class ImageConv(Function):
    """Mix the windows of padded images and convolve with a stride.

    The gradient of the phases could be computed from that of the mixed images, a transposed
    convolution to few channels, which is slow. It is also in the gradient of the weight: that of a
    kernel wider by the stride, image by image, holds the gradient at every phase as a window.
    """

    @staticmethod
    def forward(
        padded: Tensor, weight: Tensor, phase: Tensor, stride: tuple[int, ...], groups: int
    ) -> Tensor:
        conv = CONVOLUTIONS[len(stride)]
        return conv(mix_windows(padded, phase, stride), weight, None, stride, groups=groups)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        padded, weight, phase, ctx.stride, ctx.groups = inputs
        ctx.save_for_backward(padded, weight, phase)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        padded, weight, phase = ctx.saved_tensors
        sizes = [k + s - 1 for k, s in zip(weight.shape[2:], ctx.stride, strict=True)]
        wide = weight.new_empty(*weight.shape[:2], *sizes)  # its values are not read
        windows = window_slices(sizes, ctx.stride)
        of_weight, of_phase = torch.zeros_like(weight), []
        with torch.autocast("cpu", enabled=False):
            for image, above, weights in zip(padded.split(1), grad.split(1), phase, strict=True):
                whole = weight_gradient(above, image, wide, ctx.stride, ctx.groups)
                parts = torch.stack([whole[window] for window in windows])  # (P, O, C, *kernel)
                of_weight = of_weight + torch.tensordot(weights, parts, 1)
                of_phase.append((parts * weight).flatten(1).sum(1))
        return None, of_weight, torch.stack(of_phase), None, None
