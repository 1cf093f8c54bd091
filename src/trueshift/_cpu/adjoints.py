"""Linear maps next to their adjoints, each the backward pass of the other.

No full-size temporary, no slow scatter, and higher derivatives for free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.grad import conv2d_weight

from trueshift._cpu.conditions import chunks, differentiates, empty_map, image_size
from trueshift.windows import Slices, component_slices


def linear(
    there: Callable[..., Tensor], back: Callable[..., Tensor], x: Tensor, *rest: Any
) -> Tensor:
    """Return ``there(x, *rest)``, which is linear in ``x`` and has the adjoint ``back``."""
    if not differentiates(x):
        return there(x, *rest)
    y: Tensor = _Linear.apply(x, there, back, rest)
    return y


class _Linear(Function):
    @staticmethod
    def forward(x: Tensor, there: Any, back: Any, rest: tuple[Any, ...]) -> Tensor:
        result: Tensor = there(x, *rest)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.there, ctx.back, ctx.rest = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return linear(ctx.back, ctx.there, grad, *ctx.rest), None, None, None


class Ways(NamedTuple):
    """How to mix reads of a map with weights ``(B, P)``, and what its derivatives need.

    Attributes:
        mix: ``(map, weights, *rest)`` to the mixture.
        spread: Its adjoint, ``(mixture, weights, *rest)`` to a map.
        product: ``(map, mixture, *rest)`` to the inner products of every read with the mixture.
    """

    mix: Callable[..., Tensor]
    spread: Callable[..., Tensor]
    product: Callable[..., Tensor]


class _Weighted(Function):
    """Mix or spread; each is the derivative of the other, in ``x``."""

    @staticmethod
    def forward(x: Tensor, weights: Tensor, ways: Ways, mixes: bool, rest: Any) -> Tensor:
        return (ways.mix if mixes else ways.spread)(x, weights, *rest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weights, ctx.ways, ctx.mixes, ctx.rest = inputs
        ctx.save_for_backward(x, weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weights = ctx.saved_tensors
        need_x, need_weights, *_ = ctx.needs_input_grad
        of_x = of_weights = None
        if need_x:
            of_x = _Weighted.apply(grad, weights, ctx.ways, not ctx.mixes, ctx.rest)
        if need_weights:
            pair = (x, grad) if ctx.mixes else (grad, x)
            of_weights = ctx.ways.product(*pair, *ctx.rest)
        return of_x, of_weights, None, None, None


def mix(x: Tensor, weights: Tensor, reads: Sequence[Slices]) -> Tensor:
    """Sum several reads of a map, one per phase, with weights ``(B, P)``."""
    y: Tensor = _Weighted.apply(x, weights, _BY_SLICE, True, (reads, x.shape[2:]))
    return y


def spread(y: Tensor, weights: Tensor, reads: Sequence[Slices], sizes: Sequence[int]) -> Tensor:
    """Add a map to every read of zeros, with weights ``(B, P)``: the adjoint of :func:`mix`."""
    x: Tensor = _Weighted.apply(y, weights, _BY_SLICE, False, (reads, sizes))
    return x


def weigh(x: Tensor, weights: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Sum the components of contiguous 2-D maps with weights ``(B, P)``, by one convolution.

    A depthwise one, of all images as one, with a kernel for each image.
    """
    y: Tensor = _Weighted.apply(x, weights, _BY_CONVOLUTION, True, (stride,))
    return y


def share(y: Tensor, weights: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Give every component its share of a contiguous 2-D map: the adjoint of :func:`weigh`."""
    x: Tensor = _Weighted.apply(y, weights, _BY_CONVOLUTION, False, (stride,))
    return x


def _mix(x: Tensor, weights: Tensor, reads: Sequence[Slices], sizes: Sequence[int]) -> Tensor:
    y = torch.empty_like(x[reads[0]])
    for x_part, weights_part, y_part in _parts(x, weights, y):
        (read, weight), *more = _used(reads, weights_part, x.ndim)
        torch.mul(x_part[read], weight, out=y_part)
        for read, weight in more:
            y_part.addcmul_(x_part[read], weight)
    return y


def _spread(y: Tensor, weights: Tensor, reads: Sequence[Slices], sizes: Sequence[int]) -> Tensor:
    x = empty_map(y, sizes)
    for x_part, weights_part, y_part in _parts(x, weights, y):
        x_part.zero_()
        for read, weight in _used(reads, weights_part, y.ndim):
            x_part[read].addcmul_(y_part, weight)
    return x


def _parts(*maps: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield a few images at a time: a part that stays in the cache is read several times."""
    return chunks(*maps, per_image=image_size(maps[0]))


def _used(reads: Sequence[Slices], weights: Tensor, ndim: int) -> list[tuple[Slices, Tensor]]:
    """Pair each read that any image uses with its weights, shaped ``(B, 1, ..., 1)``.

    Straight-through phases use one read an image; the others are not looked at.
    """
    each = weights.t().reshape(*reversed(weights.shape), *[1] * (ndim - 1))
    pairs = zip(reads, each, weights.any(0).tolist(), strict=True)
    return [(read, weight) for read, weight, used in pairs if used] or [(reads[0], each[0])]


def _inner_products(x: Tensor, y: Tensor, reads: Sequence[Slices], sizes: Sequence[int]) -> Tensor:
    """Inner product of every read of ``x`` with ``y``: ``(B, P)``."""
    parts = [
        torch.stack([(x_part[read] * y_part).flatten(1).sum(1) for read in reads], dim=1)
        for x_part, y_part in _parts(x, y)
    ]
    return torch.cat(parts)


def _weigh(x: Tensor, weights: Tensor, stride: tuple[int, ...]) -> Tensor:
    return _depthwise(x, weights, stride, transposed=False)


def _share(y: Tensor, weights: Tensor, stride: tuple[int, ...]) -> Tensor:
    x = empty_map(y, [size * step for size, step in zip(y.shape[2:], stride, strict=True)])
    for x_part, weights_part, y_part in _parts(x, weights, y):
        # In bfloat16, transposed depthwise convolutions take ten times as long.
        shares = _depthwise(y_part.float(), weights_part.float(), stride, transposed=True)
        x_part.copy_(shares)
    return x


def component_products(x: Tensor, y: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Inner product of every component of ``x`` with ``y``: ``(B, P)``."""
    if x.ndim != 4:
        return _inner_products(x, y, component_slices(stride), x.shape[2:])
    (batch, channels), groups = x.shape[:2], x.shape[0] * x.shape[1]
    shape = (groups, 1, *stride)
    each = conv2d_weight(_as_one(x), shape, _as_one(y), stride, groups=groups)
    return each.view(batch, channels, -1).sum(1)


def _depthwise(x: Tensor, weights: Tensor, stride: tuple[int, ...], transposed: bool) -> Tensor:
    batch, channels = x.shape[:2]
    kernels = weights.view(batch, 1, *stride).repeat_interleave(channels, 0)  # (B * C, 1, s, s)
    geometry: tuple[Any, ...] = (stride, (0, 0), (1, 1), transposed, (0, 0), batch * channels)
    with torch.autocast("cpu", enabled=False):
        y = torch.convolution(_as_one(x), kernels, None, *geometry)
    return y.view(batch, channels, *y.shape[2:])


def _as_one(x: Tensor) -> Tensor:
    """View a batch as the channels of one image."""
    return x.reshape(1, -1, *x.shape[2:])


_BY_SLICE = Ways(_mix, _spread, _inner_products)
_BY_CONVOLUTION = Ways(_weigh, _share, component_products)
