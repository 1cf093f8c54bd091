"""Arithmetic whose rounding does not depend on the position of a value.

Circular padding makes a network shift-equivariant in exact arithmetic. In floating point two more
things are needed for equality to the bit:

* *Sums over space* must not depend on the order of their terms, which a shift changes
  (:func:`order_free_mean`).
* *Everything else* must round a pixel in the same way wherever it lies in the map. Elementwise
  arithmetic does, and so do the convolutions of oneDNN. Sums and softmax over channels and matrix
  products do not: they treat the last few pixels of a row, or of a thread's share, differently.
  Neither do activations like SiLU: the end of a thread's share, if it is not a whole number of
  vectors, takes another code path. And a convolution rounds differently in another memory format.

These functions are used at test time; training does not need them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trueshift._dispatch import formula, traced

CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}

_MATRIX_PRODUCT = 20480  # up to this size torch sends a single image to a matrix product
_GRAIN = 32768  # torch gives a thread at least this many values of a map
_WHOLE = 64  # values: a multiple of what any of its vectorised loops takes at once


@formula
def order_free_mean(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Mean whose bits do not depend on the order of the terms.

    Every term is first rounded to a common step, derived from the largest term and their number so
    that no partial sum in float64 can round (reproducible summation, Demmel & Nguyen 2013). The
    step is at least ``2 ** 51 / n`` times finer than the largest of ``n`` terms. The gradient is
    that of the plain mean.

    Args:
        x: Any floating tensor.
        dim: Axes to average over.

    Returns:
        The mean in float64 (float32 where the device has no float64).

    Examples:
        >>> x = torch.tensor([1e8, 1.0, -1e8, 0.5])
        >>> order_free_mean(x, 0) == order_free_mean(x.flip(0), 0)
        tensor(True)
    """
    axes = (dim,) if isinstance(dim, int) else dim
    terms = x.to(sum_dtype(x))
    count = math.prod([x.shape[axis] for axis in axes])
    exact = 0.5 / torch.finfo(terms.dtype).eps  # integers up to twice this are exact
    largest = terms.detach().abs().amax(axes, keepdim=True)
    largest = torch.where(largest > 0, largest, 1.0)
    scaled = terms / largest * (exact / count)
    rounded = scaled + (scaled.round() - scaled).detach()
    return (rounded.sum(axes, keepdim=True) * (largest / exact)).squeeze(axes)


def sum_dtype(x: Tensor) -> torch.dtype:
    """Return the widest floating type of a tensor's device."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    *,
    exact: bool = True,
) -> Tensor:
    """Convolve in 1-D, 2-D or 3-D; if ``exact``, no matrix product replaces the convolution."""
    conv = CONVOLUTIONS[x.ndim - 2]
    if not exact or x.device.type != "cpu" or torch.compiler.is_compiling():
        return conv(x, weight, bias, stride, padding, dilation, groups)
    if x.shape[0] < 16 and math.prod(weight.shape[2:]) == 1 and torch.get_num_threads() == 1:
        dilation = 2  # does not matter for one tap, but such convolutions stay convolutions
    if x.shape[0] != 1 or x.numel() > _MATRIX_PRODUCT:
        return conv(x, weight, bias, stride, padding, dilation, groups)
    twice = torch.cat([x, x])  # keeps the memory format, which an expanded view would not
    return conv(twice, weight, bias, stride, padding, dilation, groups)[:1]


def group_norm(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Group norm of ``(B, C, *spatial)``; each channel a group: instance norm."""
    parts = x.unflatten(1, (groups, -1))
    axes = tuple(range(2, parts.ndim))
    mean = order_free_mean(parts, axes)
    spread = order_free_mean((parts - mean.view(*mean.shape, *[1] * len(axes))).square(), axes)
    scale = (spread + eps).rsqrt()[..., None].expand(parts.shape[:3])
    shift = -mean[..., None] * scale
    if weight is not None:
        own = weight.view(groups, -1)
        scale, shift = scale * own, shift * own
    if bias is not None:
        shift = shift + bias.view(groups, -1)
    shape = (*x.shape[:2], *[1] * (x.ndim - 2))
    wide = x if x.dtype == torch.float64 else x.float()
    scaled = wide * scale.reshape(shape).to(wide.dtype)
    return (scaled + shift.reshape(shape).to(wide.dtype)).to(x.dtype)


def channel_sum(x: Tensor) -> Tensor:
    """Sum ``(B, C, *spatial)`` over channels to ``(B, 1, *spatial)``, by adding halves."""
    while x.shape[1] > 1:
        half, odd = divmod(x.shape[1], 2)
        total = x[:, :half] + x[:, half : 2 * half]
        if odd:
            total = torch.cat([total[:, :-1], total[:, -1:] + x[:, -1:]], dim=1)
        x = total
    return x


def channel_softmax(x: Tensor) -> Tensor:
    """Softmax over channels."""
    weights = (x - x.amax(1, keepdim=True)).exp()
    return weights / channel_sum(weights)


def elementwise(
    function: Callable[[Tensor], Tensor], x: Tensor, *, inplace: bool = False
) -> Tensor:
    """Apply an elementwise function so that every value takes the vectorised code path.

    Args:
        function: Elementwise.
        x: Any tensor.
        inplace: Whether it overwrites its argument.
    """
    if x.device.type != "cpu" or traced():
        return function(x)
    last = channels_last(x)
    dense = x if last else x.contiguous()
    y = function(dense) if _is_whole(x.numel()) else _in_whole_parts(function, dense, last)
    return x.copy_(y) if inplace and y is not x else y


def _in_whole_parts(function: Callable[[Tensor], Tensor], x: Tensor, last: bool) -> Tensor:
    dense = x.movedim(1, -1) if last else x
    flat = dense.reshape(-1)
    shared = _whole_part(flat.numel())
    parts = [flat[:shared], *flat[shared:].split(_GRAIN)]
    results = [function(F.pad(part, (0, -part.numel() % _WHOLE)))[: part.numel()] for part in parts]
    y = torch.cat(results).view(dense.shape)
    return y.movedim(-1, 1) if last else y


def _is_whole(count: int) -> bool:
    """Whether torch cuts this many values into shares that are whole numbers of vectors."""
    shares = min(torch.get_num_threads(), -(-count // _GRAIN))
    return shares == 0 or count % (_WHOLE * shares) == 0


def _whole_part(count: int) -> int:
    """Return up to how many of ``count`` values torch can cut into such shares."""
    threads = torch.get_num_threads()
    step = _WHOLE * threads if count >= _GRAIN * threads else _GRAIN
    return count // step * step


def channels_last(x: Tensor) -> bool:
    """Whether ``x`` is stored channels-last (and not also in the default format)."""
    if x.ndim not in (4, 5) or x.is_contiguous():
        return False
    return x.is_contiguous(memory_format=last_format(x.ndim))


def last_format(ndim: int) -> torch.memory_format:
    """Return the channels-last format for tensors of ``ndim`` axes (the default one in 1-D)."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return formats.get(ndim, torch.contiguous_format)


def fixed_layout(network: nn.Module, x: Tensor) -> Tensor:
    """Return images in the memory format of a network's weights, whatever theirs is.

    The format decides how convolutions round, and shifting images with ``torch.roll`` may already
    change theirs. So at test time on a CPU it is the network's: channels-last after
    ``network.to(memory_format=torch.channels_last)``, the default one before.
    """
    if network.training or x.device.type != "cpu" or traced():
        return x
    for weight in network.parameters():
        if weight.ndim == x.ndim and weight.shape[1] > 1 and math.prod(weight.shape[2:]) > 1:
            return in_layout(x, last=channels_last(weight))
    return in_layout(x, last=False)


def layout_of(x: Tensor, y: Tensor) -> Tensor:
    """Return ``y`` in the memory format of ``x``, if it has as many axes."""
    if x.ndim != y.ndim or y.device.type != "cpu" or traced():
        return y
    return in_layout(y, last=channels_last(x))


def follow_layout(x: Tensor, y: Tensor) -> Tensor:
    """Return ``y`` channels-last if ``x`` is, as torch's convolutions do; else leave it."""
    return y if traced() or not channels_last(x) else layout_of(x, y)


def in_layout(x: Tensor, *, last: bool) -> Tensor:
    """Return ``x`` channels-last, or in the default format."""
    layout = last_format(x.ndim) if last else torch.contiguous_format
    y = x.contiguous(memory_format=layout)
    strides = torch.empty(y.shape, device="meta", memory_format=layout).stride()
    # A map of one channel counts as both, but torch reads its strides.
    return y if y.stride() == strides else y.as_strided(y.shape, strides)
