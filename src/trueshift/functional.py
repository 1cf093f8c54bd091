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

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trueshift._dispatch import formula
from trueshift._validate import (
    Mode,
    Stride,
    check_components,
    check_input,
    check_phase,
)
from trueshift.exact import channel_softmax, convolve, order_free_mean
from trueshift.ties import TieBreaker, argmax_phase
from trueshift.windows import (
    Phase,
    component_slices,
    component_view,
    is_soft,
    kernel_reach,
    pad,
    phase_window,
    tap_slices,
    unravel,
)

__all__ = [
    "order_free_mean",
    "polyphase_down",
    "polyphase_merge",
    "polyphase_split",
    "polyphase_up",
]

Theta = tuple[Tensor, Tensor, Tensor, Tensor]


class Adaptive(NamedTuple):
    """What predicts the filters of DDAC.

    Attributes:
        weight: Its convolution, ``(groups * taps, C, size, ...)``, odd size.
        norm: Batch norm of its output.
        groups: Groups of channels that share a filter.
    """

    weight: Tensor
    norm: Callable[[Tensor], Tensor]
    groups: int


class Conv(NamedTuple):
    """A convolution.

    Attributes:
        weight: ``(O, C / groups, *kernel)``.
        bias: ``(O,)`` or ``None``.
        dilation: Distance of the taps along each axis.
        groups: Groups of channels.
    """

    weight: Tensor
    bias: Tensor | None
    dilation: tuple[int, ...]
    groups: int = 1


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


@formula
def norm_choice(
    x: Tensor, p: float, stride: tuple[int, ...], tie_breaker: TieBreaker, *, exact: bool = True
) -> Tensor:
    """k* of APS: the component of the largest norm, ``(B,)``."""
    return argmax_phase(norm_logits(x, p, stride, exact=exact), tie_breaker, stride)


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
    x: Tensor, theta: Theta, stride: tuple[int, ...], mode: Mode, *, exact: bool = False
) -> Tensor:
    """f_theta of every component (paper section 4.2, appendix table A3), ``(B, P)``.

    Convolution, ReLU, convolution, then the mean over channels and space.

    Args:
        x: ``(B, C, *spatial)``, sizes divisible by the stride.
        theta: Weight and bias of the first convolution, ``(C_hid, C, 3, ...)`` and ``(C_hid,)``,
            and of the second, ``(C_hid, C_hid, 3, ...)`` and ``(C_hid,)``.
        stride: Sampling factor of each axis.
        mode: Border of both convolutions.
        exact: Sum in float64 and independently of the order, so that the bits of the logits permute
            with circular shifts of ``x``.
    """
    weight1, bias1, weight2, bias2 = theta
    dim, border = len(stride), ((1, 1),) * len(stride)
    components = component_view(x, stride).flatten(0, dim)  # (B * P, C, h, w)
    hidden = convolve(pad(components, border, mode), weight1, bias1, exact=exact).relu()
    scores = convolve(pad(hidden, border, mode), weight2, bias2, exact=exact)
    scores = _at_least_float32(scores).unflatten(0, (x.shape[0], math.prod(stride))).flatten(2)
    return order_free_mean(scores, 2) if exact else scores.mean(2)


@formula
def conv_choice(
    x: Tensor, theta: Theta, stride: tuple[int, ...], mode: Mode, tie_breaker: TieBreaker
) -> Tensor:
    """k* of LPD at test time (section 4.1): the component of the largest logit, ``(B,)``."""
    return argmax_phase(conv_logits(x, theta, stride, mode, exact=True), tie_breaker, stride)


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
def adaptive_blur(x: Tensor, ddac: Adaptive, mode: Mode, *, exact: bool = False) -> Tensor:
    """Filter every pixel with weights predicted from its neighbourhood (DDAC).

    Args:
        x: ``(B, C, *spatial)``.
        ddac: What predicts the filters.
        mode: Border.
        exact: Round independently of the position, so that bits move with shifts of ``x``; the
            norm must then treat every position by itself, as at test time.
    """
    padded = pad(x, kernel_reach(ddac.weight), mode)
    filters = predict_filters(padded, ddac, exact=exact)
    size, stride = ddac.weight.shape[-1], (1,) * (x.ndim - 2)
    return mix_neighbours(padded, filters, ddac.groups, size, stride)


@formula
def adaptive_blur_down(
    x: Tensor,
    ddac: Adaptive,
    phase: Phase,
    stride: tuple[int, ...],
    mode: Mode,
    *,
    exact: bool = False,
) -> Tensor:
    """``polyphase_down(adaptive_blur(x), phase)``; in training, the norm sees every position."""
    return keep_phase(adaptive_blur(x, ddac, mode, exact=exact), phase, stride)


def predict_filters(
    padded: Tensor, ddac: Adaptive, stride: int | tuple[int, ...] = 1, *, exact: bool
) -> Tensor:
    """Predict the filters of DDAC, ``(B, groups * taps, h, w)``: one softmax over all of them."""
    scores = ddac.norm(convolve(padded, ddac.weight, stride=stride, exact=exact))
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
    weights = filters.unflatten(1, (groups, 1, -1)).unbind(3)  # each (B, G, 1, h, w)
    x = padded.unflatten(1, (groups, -1))  # (B, G, C / G, H, W)
    first, *reads = tap_slices(filters.shape[2:], size, stride)
    total = x[first] * weights[0]
    for read, weight in zip(reads, weights[1:], strict=True):
        total = torch.addcmul(total, x[read], weight)
    return total.flatten(1, 2)


@formula
def convolution(
    x: Tensor, conv: Conv, stride: tuple[int, ...], mode: Mode, *, exact: bool = False
) -> Tensor:
    """Convolve with borders that keep the size of the map, divided by the stride.

    Args:
        x: ``(B, C, *spatial)``.
        conv: The convolution.
        stride: Sampling factor of each axis.
        mode: Border.
        exact: Round independently of the position, so that bits move with shifts of ``x``.
    """
    weight, bias, dilation, groups = conv
    before, after = zip(*kernel_reach(weight, dilation), strict=True)
    if mode == "zeros" and before == after:  # torch pads by itself, without a copy
        return convolve(x, weight, bias, stride, before, dilation, groups, exact=exact)
    padded = pad(x, tuple(zip(before, after, strict=True)), mode)
    return convolve(padded, weight, bias, stride, 0, dilation, groups, exact=exact)


@formula
def conv_down(
    x: Tensor,
    conv: Conv,
    phase: Phase,
    stride: tuple[int, ...],
    mode: Mode,
    *,
    exact: bool = False,
) -> Tensor:
    """``polyphase_down(convolution(x), phase)`` as one strided convolution.

    A soft phase mixes what the convolution reads, which is the same, as a convolution is linear.
    """
    weight, bias, dilation, groups = conv
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
def max_blur(x: Tensor, kernel: Tensor, mode: Mode) -> Tensor:
    """Maximum of two pixels per axis, then a low-pass filter, at every position."""
    dim = x.ndim - 2
    return blur(max_filter(pad(x, ((0, 1),) * dim, mode), (2,) * dim), kernel, mode)


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


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
