"""Up-sampling with a fixed filter without placing values among zeros first.

At test time what lies between two values is their mean; in training, phases and filter together are
one transposed convolution.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from trueshift._adjoint import channels_last, image_by_image, inner_products, phase_slices
from trueshift._chunks import chunks
from trueshift._eager import by_hand, hooked, in_full_precision, only_result
from trueshift.functional import polyphase_down
from trueshift.layers.antialias import Blur
from trueshift.layers.between import fill_between
from trueshift.layers.steady import CONV_FUNCTIONS
from trueshift.padding import pad

# From this size of an image on, filling it value by value is quicker than a filter for the batch.
_FILL_ELEMENTS = 2**13


def filtered_up(blur: Blur, y: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor | None:
    """Up-sample and filter, scaled to keep the mean; ``None`` where there is no quicker way.

    Args:
        blur: The filter. While it is in training mode, bits may go by place.
        y: ``(B, C, *spatial)``.
        phase: Hard ``(B,)`` or soft ``(B, P)``.
        stride: Sampling factor of each axis.
    """
    same = (blur.channels, blur.dim) == (y.shape[1], len(stride))
    if not same or hooked(blur) or blur.padding_mode not in ("circular", "zeros"):
        return None
    hard = not phase.dtype.is_floating_point
    if hard and _lies_between(blur, y, stride):
        return fill_between(y, phase, blur.padding_mode)
    if not _learns(blur, y, phase, stride):
        return None
    weights = F.one_hot(phase, math.prod(stride)).to(y.dtype) if hard else phase
    taps = blur.kernel[:1].to(y.dtype) * math.prod(stride)
    filtered: Tensor = FilteredUp.apply(y, weights, taps, stride, blur.padding_mode)
    return filtered


def _lies_between(blur: Blur, y: Tensor, stride: tuple[int, ...]) -> bool:
    """Whether only means of neighbours are wanted, of images that are large enough."""
    means = set(stride) == {2} and blur.size == 3
    return means and only_result() and in_full_precision(y) and image_by_image(y, _FILL_ELEMENTS)


def _learns(blur: Blur, y: Tensor, phase: Tensor, stride: tuple[int, ...]) -> bool:
    """Whether :class:`FilteredUp` takes a map and its phases."""
    cuts = blur.size % 2 == 1 or min(stride) > 1  # else it cannot cut what is too much
    types = y.dtype == torch.float32 and phase.dtype in (torch.int64, torch.float32)
    return cuts and types and blur.training and by_hand(y) and not channels_last(y)


class FilteredUp(Function):
    """Place a map at soft phases and filter it symmetrically; borders are circular or zeros.

    Forward, the phases of an image and the filter make one kernel, so that the placed map need not
    exist. Backward, the gradient is filtered, and its components give the gradients of the map and
    of the phases. No map is kept but the one that is given, and that for the phases only.
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
        kernels = CONV_FUNCTIONS[dim](phase.reshape(batch, 1, *stride), taps, padding=size - 1)
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
            for part, weights, *given in chunks(*maps, per_image=2 * math.prod(grad.shape[1:])):
                filtered = _filter(part, taps, ctx.mode)
                if ctx.needs_input_grad[0]:
                    of_y.append(polyphase_down(filtered, weights, ctx.stride))
                for image in given:
                    of_phase.append(inner_products(filtered, image, phase_slices(ctx.stride)))
        grads = (torch.cat(parts) if parts else None for parts in (of_y, of_phase))
        return (*grads, None, None, None)


def _filter(x: Tensor, taps: Tensor, mode: str) -> Tensor:
    """Filter all channels of a map alike; even sizes reach further to the left."""
    dim, channels, size = x.ndim - 2, x.shape[1], taps.shape[-1]
    wide = pad(x, ((size // 2, (size - 1) // 2),) * dim, mode)
    weight = taps.expand(channels, 1, *taps.shape[2:])
    return CONV_FUNCTIONS[dim](wide, weight, groups=channels)
