"""Up-sampling with a fixed filter without placing values among zeros first.

At test time what lies between two values is their mean; in training, phases and filter together are
one transposed convolution.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from trueshift._cpu.adjoints import component_products
from trueshift._cpu.conditions import (
    LIMITS,
    by_chunks,
    chunks,
    empty_map,
    full_precision,
    image_size,
)
from trueshift._cpu.filters import filter_adjoint, is_binomial
from trueshift._dispatch import definition, fast
from trueshift._validate import Mode
from trueshift.exact import CONVOLUTIONS, channels_last
from trueshift.functional import blur_up, keep_phase
from trueshift.windows import component_view, is_soft, pad


def _lies_between(
    y: Tensor, kernel: Tensor, phase: Tensor, stride: tuple[int, ...], mode: Mode
) -> bool:
    means = set(stride) == {2} and kernel.shape[-1] == 3 and not is_soft(phase)
    large = not torch.is_grad_enabled() and full_precision(y) and image_size(y) >= LIMITS.fill
    return means and large and mode in ("circular", "zeros") and is_binomial(kernel)


@fast(blur_up, when=_lies_between)
def fill_between(
    y: Tensor, kernel: Tensor, phase: Tensor, stride: tuple[int, ...], mode: Mode
) -> Tensor:
    """Place a map at hard phases of stride 2 and fill the gaps with means of neighbours.

    No zero is placed and read again. Every value is a mean computed in the same way at every
    position.
    """
    dim, sizes = y.ndim - 2, y.shape[2:]
    halves = pad(y, ((1, 1),) * dim, mode) * 0.5
    out = empty_map(y, [2 * size for size in sizes])
    components = component_view(out, (2,) * dim)  # (B, 2, 2, C, h, w)
    places = list(itertools.product((0, 1), repeat=dim))
    for parts, image, half, place in zip(components, y, halves, phase.tolist(), strict=True):
        offsets = places[place]
        parts[offsets].copy_(image)
        for between in places[1:]:
            there = tuple(o ^ b for o, b in zip(offsets, between, strict=True))
            _mean(half, offsets, between, sizes, parts[there])
    return out


def _mean(
    half: Tensor,
    offsets: tuple[int, ...],
    between: tuple[int, ...],
    sizes: Sequence[int],
    out: Tensor,
) -> None:
    """Write the means of neighbours along the axes that ``between`` marks, given halved values."""
    for axis, (marked, size) in enumerate(zip(between, sizes, strict=True), start=1):
        half = half if marked else half.narrow(axis, 1, size)
    *others, last = [axis for axis, marked in enumerate(between, start=1) if marked]
    for axis in others:
        half = torch.add(*_neighbours(half, axis, offsets, sizes)).mul_(0.5)
    torch.add(*_neighbours(half, last, offsets, sizes), out=out)


def _neighbours(
    half: Tensor, axis: int, offsets: tuple[int, ...], sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return both neighbours of every value that lies between two along an axis of an image."""
    start, size = 1 - offsets[axis - 1], sizes[axis - 1]
    return half.narrow(axis, start, size), half.narrow(axis, start + 1, size)


def _learns(y: Tensor, kernel: Tensor, phase: Tensor, stride: tuple[int, ...], mode: Mode) -> bool:
    cuts = kernel.shape[-1] % 2 == 1 or min(stride) > 1  # else it cannot cut what is too much
    if not (cuts and y.dtype == phase.dtype == torch.float32 and mode in ("circular", "zeros")):
        return False
    usual = full_precision(y) and not channels_last(y) and not kernel.requires_grad
    return torch.is_grad_enabled() and usual and is_binomial(kernel)


@fast(blur_up, when=_learns)
def transposed_blur_up(
    y: Tensor, kernel: Tensor, phase: Tensor, stride: tuple[int, ...], mode: Mode
) -> Tensor:
    """One transposed convolution, whose kernel holds the phases of an image and the filter."""
    taps = kernel[:1].to(y.dtype) * math.prod(stride)
    up: Tensor = TransposedBlur.apply(y, phase, taps, stride, mode)
    return up


@fast(blur_up)
def blur_up_in_chunks(
    y: Tensor, kernel: Tensor, phase: Tensor, stride: tuple[int, ...], mode: Mode
) -> Tensor:
    """Place and filter a few images at a time; in training, again in the backward pass."""

    def up(y: Tensor, phase: Tensor) -> Tensor:
        return definition(blur_up)(y, kernel, phase, stride, mode)

    per_image = 3 * image_size(y) * math.prod(stride)  # placed, with a border, filtered
    return by_chunks(up, y, phase, per_image=per_image, twice=True)


class TransposedBlur(Function):
    """Place a map at soft phases and filter it symmetrically; borders are circular or zeros.

    Forward, the phases of an image and the filter make one kernel, so that the placed map need not
    exist. Backward, the gradient is filtered, and its components give the gradients of the map and
    of the phases. No map is kept but the input, and that for the phases only.
    """

    @staticmethod
    def forward(
        y: Tensor, phase: Tensor, taps: Tensor, stride: tuple[int, ...], mode: str
    ) -> Tensor:
        batch, channels, *sizes = y.shape
        dim, size = len(stride), taps.shape[-1]
        before, after = (size - 1) // 2, size // 2
        edges = [-(-after // step) for step in stride]
        wide = pad(y, tuple((edge, edge) for edge in edges), mode)
        # Every tap at every phase; as the taps are symmetric, their order does not matter.
        kernels = CONVOLUTIONS[dim](phase.reshape(batch, 1, *stride), taps, padding=size - 1)
        groups = batch * channels
        out = torch.convolution(
            wide.reshape(1, groups, *wide.shape[2:]),
            kernels.expand(-1, channels, *[-1] * dim).reshape(groups, 1, *kernels.shape[2:]),
            None,
            stride,
            [step * edge + after for step, edge in zip(stride, edges, strict=True)],  # cut off
            [1] * dim,
            True,
            [after - before] * dim,
            groups,
        )
        return out.view(batch, channels, *(n * s for n, s in zip(sizes, stride, strict=True)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        y, phase, taps, ctx.stride, ctx.mode = inputs
        ctx.save_for_backward(y if ctx.needs_input_grad[1] else None, phase, taps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, phase, taps = ctx.saved_tensors
        maps = (grad, phase) if y is None else (grad, phase, y)
        of_y, of_phase = [], []
        with torch.autocast("cpu", enabled=False):
            for part, weights, *given in chunks(*maps, per_image=2 * image_size(grad)):
                filtered = filter_adjoint(part, taps, ctx.mode)
                if ctx.needs_input_grad[0]:
                    of_y.append(keep_phase(filtered, weights, ctx.stride))
                for image in given:
                    of_phase.append(component_products(filtered, image, ctx.stride))
        grads = (torch.cat(parts) if parts else None for parts in (of_y, of_phase))
        return (*grads, None, None, None)
