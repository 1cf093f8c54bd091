"""Sections 3 to 5 of the paper as pure functions.

Every function here is the definition: it runs on any device, has derivatives and can be traced. On
a CPU, faster kernels with the same results may take its place; :func:`trueshift.plain` turns them
off.

Letters, used in every docstring and shape comment of the package:

* ``B`` batch, ``C`` channels, ``P`` number of phases (the product of the strides);
* ``H, W`` sizes before sampling, ``h, w`` sizes after it; ``*spatial`` stands for one to three
  axes;
* ``phase``: which polyphase component of each image. Hard: int64 ``(B,)``, or one integer for all
  images. Soft: floating ``(B, P)``, rows summing to 1. Components are counted row-major: ``k = i *
  stride + j`` in 2-D;
* ``mode``: how borders are padded, in torch's words, for all axes or one per axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from types import EllipsisType

import torch
from torch import Tensor
from torch.nn import functional as F

from trueshift._dispatch import formula
from trueshift._validate import (
    Mode,
    Stride,
    axis_modes,
    check_components,
    check_input,
    check_phase,
)
from trueshift.exact import channel_softmax, convolve, order_free_mean

__all__ = [
    "order_free_mean",
    "polyphase_down",
    "polyphase_merge",
    "polyphase_split",
    "polyphase_up",
]

Phase = int | Tensor
Slices = tuple[slice | EllipsisType, ...]
Widths = tuple[tuple[int, int], ...]  # for each spatial axis, how much before and after

MAX_POOLS: dict[int, Callable[..., Tensor]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


# Section 3: polyphase components


def polyphase_split(x: Tensor, stride: Stride) -> Tensor:
    """Split a feature map into its polyphase components (paper section 3, Poly(x)_k).

    Component ``k = i * stride + j`` holds rows ``i, i + stride, ...`` and columns ``j, j + stride,
    ...``.

    Args:
        x: Feature map ``(B, C, *spatial)``, every spatial size divisible by its stride.
        stride: Sampling factor of all axes, or one per axis.

    Returns:
        Components ``(B, P, C, *spatial // stride)``.

    Examples:
        >>> x = torch.arange(16.0).view(1, 1, 4, 4)
        >>> polyphase_split(x, stride=2)[0, 1, 0]  # even rows, odd columns
        tensor([[ 1.,  3.],
                [ 9., 11.]])
    """
    strides = check_input("polyphase_split", x, stride)
    return component_view(x, strides).flatten(1, len(strides))


def polyphase_merge(components: Tensor, stride: Stride) -> Tensor:
    """Interleave polyphase components; the inverse of :func:`polyphase_split`.

    Args:
        components: ``(B, P, C, *spatial)``.
        stride: Sampling factor of all axes, or one per axis; their product is ``P``.

    Returns:
        Feature map ``(B, C, *spatial * stride)``.

    Examples:
        >>> x = torch.arange(24.0).view(1, 2, 4, 3)
        >>> torch.equal(polyphase_merge(polyphase_split(x, (2, 3)), (2, 3)), x)
        True
    """
    strides = check_components("polyphase_merge", components, stride)
    dim, (batch, _, channels, *sizes) = len(strides), components.shape
    blocks = components.unflatten(1, strides)  # (B, s, s, C, h, w)
    pairs = [axis for d in range(dim) for axis in (2 + dim + d, 1 + d)]
    merged = [size * step for size, step in zip(sizes, strides, strict=True)]
    return blocks.permute(0, 1 + dim, *pairs).reshape(batch, channels, *merged)


@formula
def norm_logits(x: Tensor, p: float, stride: tuple[int, ...], *, exact: bool = False) -> Tensor:
    """The l_p norm of every component: the score of APS (paper section 3), ``(B, P)``.

    Args:
        x: ``(B, C, *spatial)``, sizes divisible by the stride.
        p: 1, 2 or ``inf``.
        stride: Sampling factor of each axis.
        exact: Sum in float64 and independently of the order, so that the bits of the norms permute
            with shifts of ``x``.
    """
    components = component_view(_at_least_float32(x), stride).flatten(1, len(stride)).flatten(2)
    if p == math.inf:
        return components.abs().amax(2)
    powers = components.abs() if p == 1 else components.square()
    sums = (order_free_mean(powers, 2) if exact else powers.mean(2)) * components.shape[2]
    return sums if p == 1 else sums.sqrt()


# Section 4.1: down-sampling (LPD)


def polyphase_down(x: Tensor, phase: Tensor, stride: Stride) -> Tensor:
    """Keep one polyphase component per image, or mix them (paper section 4.1, LPD).

    Args:
        x: Feature map ``(B, C, *spatial)``, every spatial size divisible by its stride.
        phase: Hard int64 ``(B,)``, or soft floating ``(B, P)`` whose rows weight the components.
        stride: Sampling factor of all axes, or one per axis.

    Returns:
        ``(B, C, *spatial // stride)``, in the memory format of ``x``.

    Examples:
        >>> x = torch.arange(8.0).view(2, 1, 4)
        >>> polyphase_down(x, torch.tensor([0, 1]), stride=2)
        tensor([[[0., 2.]],
        <BLANKLINE>
                [[5., 7.]]])
    """
    strides = check_input("polyphase_down", x, stride)
    check_phase("polyphase_down", phase, x, math.prod(strides))
    return keep_phase(x, phase, strides)


@formula
def keep_phase(x: Tensor, phase: Phase, stride: tuple[int, ...]) -> Tensor:
    """:func:`polyphase_down` without checks; one integer may stand for the phase of all images."""
    if isinstance(phase, int):
        return x[component_slices(stride)[phase]].clone()
    components = component_view(x, stride)  # (B, s, s, C, h, w)
    if is_soft(phase):
        weights = phase.to(x.dtype).unflatten(1, stride)[(..., *[None] * (x.ndim - 1))]
        return (components * weights).sum(tuple(range(1, 1 + len(stride))))
    return components[(torch.arange(x.shape[0], device=x.device), *unravel(phase, stride))]


# Section 4.2: the learned selector f_theta


@formula
def conv_logits(
    x: Tensor,
    weight1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    bias2: Tensor,
    stride: tuple[int, ...],
    mode: Mode,
    *,
    exact: bool = False,
) -> Tensor:
    """f_theta of every component (paper section 4.2, appendix table A3), ``(B, P)``.

    Convolution, ReLU, convolution, then the mean over channels and space.

    Args:
        x: ``(B, C, *spatial)``, sizes divisible by the stride.
        weight1: ``(C_hid, C, 3, ...)``.
        bias1: ``(C_hid,)``.
        weight2: ``(C_hid, C_hid, 3, ...)``.
        bias2: ``(C_hid,)``.
        stride: Sampling factor of each axis.
        mode: Border of both convolutions.
        exact: Sum in float64 and independently of the order, so that the bits of the logits permute
            with circular shifts of ``x``.
    """
    dim = len(stride)
    border = ((1, 1),) * dim
    components = component_view(x, stride).flatten(0, dim)  # (B * P, C, h, w)
    hidden = convolve(pad(components, border, mode), weight1, bias1, exact=exact).relu()
    scores = convolve(pad(hidden, border, mode), weight2, bias2, exact=exact)
    scores = _at_least_float32(scores).view(x.shape[0], math.prod(stride), -1)
    return order_free_mean(scores, 2) if exact else scores.mean(2)


@formula
def conv_ranking(
    x: Tensor,
    weight1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    bias2: Tensor,
    stride: tuple[int, ...],
    mode: Mode,
) -> Tensor:
    """Numbers whose largest is that of the exact logits, ``(B, P)``: enough for a hard choice."""
    return conv_logits(x, weight1, bias1, weight2, bias2, stride, mode, exact=True)


@formula
def norm_ranking(x: Tensor, p: float, stride: tuple[int, ...]) -> Tensor:
    """Numbers whose largest is that of the exact norms, ``(B, P)``: enough for a hard choice."""
    return norm_logits(x, p, stride, exact=True)


# Section 4.3: up-sampling (LPU)


def polyphase_up(y: Tensor, phase: Tensor, stride: Stride) -> Tensor:
    """Put values back where :func:`polyphase_down` took them from (paper section 4.3, LPU).

    Args:
        y: Feature map ``(B, C, *spatial)``.
        phase: The phase that ``y`` was down-sampled with, hard or soft.
        stride: Sampling factor of all axes, or one per axis.

    Returns:
        ``(B, C, *spatial * stride)``: ``y`` at a hard phase and zero elsewhere, or at every phase
        the share of ``y`` that a soft phase gives it.

    Examples:
        >>> polyphase_up(torch.ones(1, 1, 3), torch.tensor([1]), stride=2)
        tensor([[[0., 1., 0., 1., 0., 1.]]])
    """
    strides = check_input("polyphase_up", y, stride, name="y", divisible=False)
    check_phase("polyphase_up", phase, y, math.prod(strides))
    return place_phase(y, phase, strides)


@formula
def place_phase(y: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
    """:func:`polyphase_up` without checks."""
    count = math.prod(stride)
    weights = phase if is_soft(phase) else phase[:, None] == torch.arange(count, device=y.device)
    weights = weights.to(y.dtype)[(..., *[None] * (y.ndim - 1))]  # (B, P, 1, 1, 1)
    copies = y[:, None].expand(-1, count, *y.shape[1:])
    # A hard phase selects instead of multiplying: infinite values must not turn zeros into NaN.
    placed = copies * weights if is_soft(phase) else torch.where(weights > 0, copies, 0.0)
    return polyphase_merge(placed, stride)


# Section 5: low-pass filters (LPF, DDAC), and what they are combined with


def binomial_kernel(size: int, dim: int) -> Tensor:
    """The low-pass filter of LPF: Rect-2, Tri-3 and Bin-5 of the paper are sizes 2, 3 and 5.

    Returns:
        Float32 ``(1, 1, size, ...)``, exact in every floating type.
    """
    row = torch.tensor([math.comb(size - 1, tap) for tap in range(size)], dtype=torch.float64)
    row = row / row.sum()
    kernel = row
    for _ in range(dim - 1):
        kernel = kernel[..., None] * row
    return kernel.float()[None, None]


@formula
def blur(x: Tensor, kernel: Tensor, mode: Mode) -> Tensor:
    """Filter every channel with a fixed kernel (LPF).

    Args:
        x: ``(B, C, *spatial)``.
        kernel: ``(C, 1, size, ...)``; an even size reaches one pixel further to the right.
        mode: Border.
    """
    padded = pad(x, kernel_reach(kernel), mode)
    return convolve(padded, kernel.to(x.dtype), groups=x.shape[1])


@formula
def blur_down(
    x: Tensor, kernel: Tensor, phase: Phase, stride: tuple[int, ...], mode: Mode
) -> Tensor:
    """``polyphase_down(blur(x), phase)``, filtered only where the phase keeps the result."""
    window = phase_window(x, phase, stride, kernel_reach(kernel), mode)
    return convolve(window, kernel.to(x.dtype), stride=stride, groups=x.shape[1])


@formula
def blur_up(
    y: Tensor, kernel: Tensor, phase: Tensor, stride: tuple[int, ...], mode: Mode
) -> Tensor:
    """Place a map at its phase and filter it, scaled so that the mean is kept (section 4.3)."""
    return blur(place_phase(y, phase, stride), kernel, mode) * math.prod(stride)


@formula
def adaptive_blur(
    x: Tensor,
    weight: Tensor,
    norm: Callable[[Tensor], Tensor],
    groups: int,
    mode: Mode,
    *,
    exact: bool = False,
) -> Tensor:
    """Filter every pixel with weights predicted from its neighbourhood (DDAC).

    One softmax runs over all groups and taps together, as in DDAC.

    Args:
        x: ``(B, C, *spatial)``.
        weight: Convolution that predicts the filters, ``(groups * taps, C, size, ...)``, odd size.
        norm: Batch norm of its output.
        groups: Groups of channels that share a filter.
        mode: Border.
        exact: Round every pixel alike, so that the bits move with circular shifts of ``x``.
    """
    padded = pad(x, kernel_reach(weight), mode)
    filters = predict_filters(padded, weight, norm, exact=exact)
    return mix_neighbours(padded, filters, groups, weight.shape[-1], (1,) * (x.ndim - 2))


@formula
def adaptive_blur_down(
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
    """``polyphase_down(adaptive_blur(x), phase)``; in training, the norm sees every position."""
    return keep_phase(adaptive_blur(x, weight, norm, groups, mode, exact=exact), phase, stride)


def predict_filters(
    padded: Tensor,
    weight: Tensor,
    norm: Callable[[Tensor], Tensor],
    stride: int | tuple[int, ...] = 1,
    *,
    exact: bool,
) -> Tensor:
    """Predict the filters of :func:`adaptive_blur`: ``(B, groups * taps, h, w)``."""
    scores = norm(convolve(padded, weight, stride=stride, exact=exact))
    return channel_softmax(scores) if exact else scores.softmax(1)


@formula
def mix_neighbours(
    padded: Tensor, filters: Tensor, groups: int, size: int, stride: tuple[int, ...]
) -> Tensor:
    """Sum the neighbourhood of every ``stride``-th pixel with weights of its own.

    Args:
        padded: ``(B, C, *spatial)`` with the border that the filters read.
        filters: ``(B, groups * size ** dim, h, w)``.
        groups: Groups of channels that share a filter.
        size: Taps per axis.
        stride: Distance of the pixels.

    Returns:
        ``(B, C, h, w)``.
    """
    dim, sizes = len(stride), filters.shape[2:]
    weights = filters.unflatten(1, (groups, 1, -1)).unbind(3)  # each (B, G, 1, h, w)
    x = padded.unflatten(1, (groups, -1))  # (B, G, C / G, H, W)
    ends = [(n - 1) * step + 1 for n, step in zip(sizes, stride, strict=True)]
    total: Tensor | None = None
    for corner, tap in zip(itertools.product(range(size), repeat=dim), weights, strict=True):
        spans = zip(corner, ends, stride, strict=True)
        near: Slices = (..., *(slice(start, start + end, step) for start, end, step in spans))
        total = x[near] * tap if total is None else total + x[near] * tap
    if total is None:
        raise ValueError(f"mix_neighbours: size must be at least 1, got {size}.")
    return total.flatten(1, 2)


@formula
def convolution(
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
    """Convolve with borders that keep the size of the map, divided by the stride.

    Args:
        x: ``(B, C, *spatial)``.
        weight: ``(O, C / groups, *kernel)``.
        bias: ``(O,)`` or ``None``.
        mode: Border.
        stride: Sampling factor of each axis.
        dilation: Distance of the taps along each axis.
        groups: Groups of channels.
        exact: Round every pixel alike, so that the bits move with circular shifts of ``x``.
    """
    before, after = zip(*kernel_reach(weight, dilation), strict=True)
    if mode == "zeros" and before == after:  # torch pads by itself, without a copy
        return convolve(x, weight, bias, stride, before, dilation, groups, exact=exact)
    padded = pad(x, tuple(zip(before, after, strict=True)), mode)
    return convolve(padded, weight, bias, stride, 0, dilation, groups, exact=exact)


@formula
def conv_down(
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
    """``polyphase_down(convolution(x), phase)`` as one strided convolution.

    A soft phase mixes what the convolution reads, which is the same, as a convolution is linear.
    """
    window = phase_window(x, phase, stride, kernel_reach(weight, dilation), mode)
    return convolve(window, weight, bias, stride, 0, dilation, groups, exact=exact)


@formula
def max_filter(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """Take the maximum of every window of ``size`` pixels, without stride or border.

    Where several pixels of a window share the maximum, the gradient goes to the first one.

    Examples:
        >>> max_filter(torch.tensor([[[3.0, 1.0, 2.0]]]), (2,))
        tensor([[[3., 2.]]])
    """
    return MAX_POOLS[x.ndim - 2](x, size, 1)


@formula
def max_down(x: Tensor, kernel: Tensor | None, phase: Phase, mode: Mode) -> Tensor:
    """Maximum of two pixels per axis, low-pass filter if there is one, sampling by 2.

    This is the max pooling of the paper's networks (appendix B) at a phase known beforehand.
    """
    dim = x.ndim - 2
    peaks = max_filter(pad(x, ((0, 1),) * dim, mode), (2,) * dim)
    if kernel is None:
        return keep_phase(peaks, phase, (2,) * dim)
    return blur_down(peaks, kernel, phase, (2,) * dim, mode)


# Borders and windows


@formula
def pad(x: Tensor, widths: Widths, mode: Mode) -> Tensor:
    """Extend a feature map at its borders.

    Unlike ``torch.nn.functional.pad``, a circular border may be wider than the map (it wraps as
    often as needed), and every axis may have a mode of its own.

    Args:
        x: Feature map ``(..., C, *spatial)``.
        widths: For each spatial axis, how much to add before and after.
        mode: ``"circular"``, ``"zeros"``, ``"reflect"`` or ``"replicate"``, or one per axis.

    Examples:
        >>> pad(torch.tensor([[[1, 2, 3]]]), ((2, 1),), "circular")
        tensor([[[2, 3, 1, 2, 3, 1]]])
    """
    modes = axis_modes(mode, len(widths))
    for kind in dict.fromkeys(modes):
        own = tuple(
            pair if axis == kind else (0, 0) for pair, axis in zip(widths, modes, strict=True)
        )
        if not any(map(any, own)):
            continue
        if kind == "circular":
            x = _wrap(x, own)
        else:
            flat = [width for pair in reversed(own) for width in pair]
            x = F.pad(x, flat, mode="constant" if kind == "zeros" else kind)
    return x


def _wrap(x: Tensor, widths: Widths) -> Tensor:
    for axis, (before, after) in zip(range(-len(widths), 0), widths, strict=True):
        size = x.shape[axis]
        if max(before, after) > size:
            place = torch.arange(-before, size + after, device=x.device)
            x = x.index_select(axis, wrap(place, size))
        elif before or after:
            ends = x.narrow(axis, size - before, before), x.narrow(axis, 0, after)
            x = torch.cat([ends[0], x, ends[1]], axis)
    return x


@formula
def phase_window(
    x: Tensor, phase: Phase, stride: tuple[int, ...], widths: Widths, mode: Mode
) -> Tensor:
    """Pad a map and cut what a strided operation reads at the positions of a phase.

    A strided operation without padding on the result gives one value per kept position.

    Args:
        x: ``(B, C, *spatial)``, sizes divisible by the stride.
        phase: Hard, or soft: then the windows of all phases are mixed, which is right for what is
            linear in its input.
        stride: Sampling factor of each axis.
        widths: How far the operation reaches before and after a position, per axis.
        mode: Border.
    """
    if isinstance(phase, int):
        return _window_at(x, phase, stride, widths, mode)
    padded = pad(x, widths, mode)
    if is_soft(phase):
        weights = phase.to(x.dtype)[(..., *[None] * (x.ndim - 1))].unbind(1)  # (B, 1, 1, 1) each
        windows = [padded[window] for window in window_slices(padded.shape[2:], stride)]
        return torch.stack([w * part for w, part in zip(weights, windows, strict=True)]).sum(0)
    blocks = padded
    for axis, step in enumerate(stride, start=2):
        blocks = blocks.unfold(axis, padded.shape[axis] - step + 1, 1)
    blocks = blocks.movedim(1, 1 + len(stride))  # (B, s, s, C, h, w)
    return blocks[(torch.arange(x.shape[0], device=x.device), *unravel(phase, stride))]


def _window_at(
    x: Tensor, phase: int, stride: tuple[int, ...], widths: Widths, mode: Mode
) -> Tensor:
    starts = phase_offsets(stride)[phase]
    reach = [
        (before - start, after - (step - 1 - start))
        for (before, after), start, step in zip(widths, starts, stride, strict=True)
    ]
    x = pad(x, tuple((max(before, 0), max(after, 0)) for before, after in reach), mode)
    return x[(..., *(slice(max(-before, 0), None) for before, _ in reach))]


def kernel_reach(weight: Tensor, dilation: Sequence[int] | None = None) -> Widths:
    """How far a kernel reaches before and after a position, per axis."""
    sizes = weight.shape[2:]
    reaches = [d * (n - 1) for n, d in zip(sizes, dilation or (1,) * len(sizes), strict=True)]
    return tuple((reach // 2, reach - reach // 2) for reach in reaches)


# Where phases lie in a map: offsets, slices and views, without a copy


def is_soft(phase: Phase) -> bool:
    """Whether a phase is a weighted mixture, as while training."""
    return isinstance(phase, Tensor) and phase.dtype.is_floating_point


def phase_offsets(stride: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the offsets of every phase, row-major."""
    return list(itertools.product(*map(range, stride)))


def component_slices(stride: tuple[int, ...]) -> list[Slices]:
    """Return the slices of ``(..., *spatial)`` that every phase keeps."""
    return [
        (..., *(slice(o, None, step) for o, step in zip(offsets, stride, strict=True)))
        for offsets in phase_offsets(stride)
    ]


def window_slices(sizes: Sequence[int], stride: tuple[int, ...]) -> list[Slices]:
    """Return, for every phase, the slices of the largest window that fits at every offset."""
    ends = [size - step + 1 for size, step in zip(sizes, stride, strict=True)]
    return [
        (..., *(slice(o, o + end) for o, end in zip(offsets, ends, strict=True)))
        for offsets in phase_offsets(stride)
    ]


def unravel(phase: Tensor, stride: Sequence[int | Tensor]) -> list[Tensor]:
    """Split the row-major index ``phase`` into one offset per axis."""
    offsets: list[Tensor] = []
    for step in reversed(stride):
        offsets.insert(0, phase % step)
        phase = phase // step
    return offsets


def offset_blocks(x: Tensor, stride: tuple[int, ...]) -> Tensor:
    """View ``(B, C, *spatial)`` as ``(B, C, *stride, *spatial // stride)``."""
    sizes = [n for size, s in zip(x.shape[2:], stride, strict=True) for n in (size // s, s)]
    blocks = x.reshape(*x.shape[:2], *sizes)  # (B, C, h, s, w, s)
    inner = [3 + 2 * axis for axis in range(len(stride))]
    return blocks.permute(0, 1, *inner, *(axis - 1 for axis in inner))


def component_view(x: Tensor, stride: tuple[int, ...]) -> Tensor:
    """View ``(B, C, *spatial)`` as ``(B, *stride, C, *spatial // stride)``."""
    return offset_blocks(x, stride).movedim(1, 1 + len(stride))


def wrap(place: Tensor, size: int) -> Tensor:
    """Return ``place % size``, in exported graphs too, where a size is known only at run time."""
    return place % axis_length(size, place.device)


def axis_length(size: int, device: torch.device) -> Tensor:
    """Return a size as a tensor: a graph that holds it serves every size."""
    return torch.arange(size, device=device).amax(0) + 1


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
