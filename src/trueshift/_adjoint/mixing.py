"""Mixing the phases of every image by one depthwise convolution: their weights are its filter."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trueshift._chunks import chunks
from trueshift._layout import channels_last, last_format

# Images of this size are mixed one by one where their channels are last: a layout they then keep.
_LARGE = 2**17


def mixes_by_convolution(x: Tensor) -> bool:
    """Whether :func:`mix_by_convolution` takes ``x`` and is quicker than a sum of slices."""
    if torch.compiler.is_compiling() or x.device.type != "cpu" or x.dtype != torch.float32:
        return False
    return x.numel() > 0 and (not channels_last(x) or math.prod(x.shape[1:]) >= _LARGE)


def mix_by_convolution(
    x: Tensor, phase: Tensor, stride: tuple[int, ...], step: tuple[int, ...]
) -> Tensor:
    """Sum what ``x`` holds at every offset of ``stride``, weighted ``(B, P)``, every ``step``."""
    if channels_last(x):
        images = zip(x.split(1), phase.split(1), strict=True)
        mixed = torch.cat([_mix(*image, stride, step) for image in images])
        return mixed.contiguous(memory_format=last_format(x.ndim))
    parts = chunks(x, phase, per_image=math.prod(x.shape[1:]))
    sums = [_mix(part, weights, stride, step) for part, weights in parts]
    return sums[0] if len(sums) == 1 else torch.cat(sums)


def _mix(x: Tensor, phase: Tensor, stride: tuple[int, ...], step: tuple[int, ...]) -> Tensor:
    batch, channels = x.shape[:2]
    dim = len(stride)
    kernels = phase.reshape(batch, 1, 1, *stride).expand(-1, channels, *[-1] * (1 + dim))
    images = x if batch == 1 else x.reshape(1, batch * channels, *x.shape[2:])
    none, one = [0] * dim, [1] * dim
    with torch.autocast("cpu", enabled=False):
        filters, groups = kernels.flatten(0, 1), batch * channels
        mixed = torch.convolution(images, filters, None, step, none, one, False, none, groups)
    return mixed.view(batch, channels, *mixed.shape[2:])
