"""Keeping, placing and cutting at hard and soft phases."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trueshift._cpu.adjoints import (
    HardDown,
    HardUp,
    SoftDown,
    SoftUp,
    SoftWindow,
    read_components,
)
from trueshift._cpu.borders import copies_images, filled_windows
from trueshift._cpu.chunks import chunks
from trueshift._cpu.conditions import LIMITS, differentiates, image_size
from trueshift._dispatch import fast
from trueshift._validate import Mode
from trueshift.exact import channels_last, last_format
from trueshift.functional import keep_phase, place_phase
from trueshift.windows import Phase, Widths, is_soft, pad, phase_window


def _takes_tensor(x: Tensor, phase: Phase, stride: tuple[int, ...]) -> bool:
    return isinstance(phase, Tensor)


@fast(keep_phase, when=_takes_tensor)
def keep_by_slices(x: Tensor, phase: Phase, stride: tuple[int, ...]) -> Tensor:
    """Read only what is kept; mix soft phases by a convolution or slice by slice."""
    if phase.dtype == torch.int64:  # type: ignore[union-attr]
        keep: Any = HardDown.apply if differentiates(x) else read_components
        kept: Tensor = keep(x, phase, stride)
        return kept
    phase = phase.to(x.dtype)  # type: ignore[union-attr]
    if _mixes_by_convolution(x):
        return mix_by_convolution(x, phase, stride, stride)
    mixed: Tensor = SoftDown.apply(x, phase, stride)
    return mixed


@fast(place_phase, when=_takes_tensor)
def place_by_slices(y: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Write every value once."""
    if is_soft(phase):
        placed: Tensor = SoftUp.apply(y, phase.to(y.dtype), stride)
    else:
        placed = HardUp.apply(y, phase, stride)
    return placed


def _copies_windows(
    x: Tensor, phase: Phase, stride: tuple[int, ...], widths: Widths, mode: Mode
) -> bool:
    if not isinstance(phase, Tensor):
        return False
    filled = mode == "zeros" and copies_images(x)
    return is_soft(phase) or differentiates(x) or filled


@fast(phase_window, when=_copies_windows)
def window_by_slices(
    x: Tensor, phase: Phase, stride: tuple[int, ...], widths: Widths, mode: Mode
) -> Tensor:
    """Mix soft windows as :func:`keep_by_slices` does; copy hard ones and their zeros once.

    Hard ones are mixed too where a backward pass follows: that of a gather is slow.
    """
    if not isinstance(phase, Tensor):
        raise TypeError("window_by_slices: phase must be a tensor.")
    if not is_soft(phase) and not differentiates(x):
        return filled_windows(x, phase, stride, widths)
    weights = phase if is_soft(phase) else F.one_hot(phase, math.prod(stride))
    return mix_windows(pad(x, widths, mode), weights.to(x.dtype), stride)


def mix_windows(x: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Sum the windows of ``x`` that begin at every offset of ``stride``, weighted ``(B, P)``."""
    if _mixes_by_convolution(x):
        return mix_by_convolution(x, phase, stride, (1,) * len(stride))
    mixed: Tensor = SoftWindow.apply(x, phase, stride)
    return mixed


def _mixes_by_convolution(x: Tensor) -> bool:
    if x.dtype != torch.float32:
        return False
    return not channels_last(x) or image_size(x) >= LIMITS.mix_last


def mix_by_convolution(
    x: Tensor, phase: Tensor, stride: tuple[int, ...], step: tuple[int, ...]
) -> Tensor:
    """Sum ``x`` at every offset of ``stride``, weighted ``(B, P)``, at every ``step``.

    One depthwise convolution does it: the weights of an image's phases are its filter.
    """
    if channels_last(x):
        images = zip(x.split(1), phase.split(1), strict=True)
        mixed = torch.cat([_mix(*image, stride, step) for image in images])
        return mixed.contiguous(memory_format=last_format(x.ndim))
    parts = chunks(x, phase, per_image=image_size(x))
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
