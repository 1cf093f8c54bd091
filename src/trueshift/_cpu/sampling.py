"""Keeping, placing and cutting at soft phases: sums of components or windows with weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from trueshift._cpu.adjoints import Mix, Spread
from trueshift._cpu.conditions import LIMITS, chunks, differentiates, image_size
from trueshift._dispatch import fast
from trueshift._validate import Mode
from trueshift.exact import channels_last, last_format
from trueshift.functional import keep_phase, place_phase
from trueshift.windows import (
    Phase,
    Widths,
    component_slices,
    is_soft,
    pad,
    phase_window,
    window_slices,
)


def _is_soft(x: Tensor, phase: Phase, stride: tuple[int, ...]) -> bool:
    return is_soft(phase)


@fast(keep_phase, when=_is_soft)
def mix_components(x: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Mix by a convolution, or slice by slice."""
    phase = phase.to(x.dtype)
    if _mixes_by_convolution(x):
        return _mix_by_convolution(x, phase, stride, stride)
    mixed: Tensor = Mix.apply(x, phase, component_slices(stride))
    return mixed


@fast(place_phase, when=_is_soft)
def spread_components(y: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Write slice by slice."""
    sizes = [size * step for size, step in zip(y.shape[2:], stride, strict=True)]
    placed: Tensor = Spread.apply(y, phase.to(y.dtype), component_slices(stride), sizes)
    return placed


def _mixes_windows(
    x: Tensor, phase: Phase, stride: tuple[int, ...], widths: Widths, mode: Mode
) -> bool:
    return is_soft(phase) or (isinstance(phase, Tensor) and differentiates(x))


@fast(phase_window, when=_mixes_windows)
def mix_phase_windows(
    x: Tensor, phase: Tensor, stride: tuple[int, ...], widths: Widths, mode: Mode
) -> Tensor:
    """Mix as :func:`mix_components` does; hard windows too, as the backward of a gather is slow."""
    weights = phase if is_soft(phase) else F.one_hot(phase, math.prod(stride))
    padded, weights = pad(x, widths, mode), weights.to(x.dtype)
    if _mixes_by_convolution(padded):
        return _mix_by_convolution(padded, weights, stride, (1,) * len(stride))
    mixed: Tensor = Mix.apply(padded, weights, window_slices(padded.shape[2:], stride))
    return mixed


def _mixes_by_convolution(x: Tensor) -> bool:
    if x.dtype != torch.float32:
        return False
    return not channels_last(x) or image_size(x) >= LIMITS.mix_last


def _mix_by_convolution(
    x: Tensor, phase: Tensor, stride: tuple[int, ...], step: tuple[int, ...]
) -> Tensor:
    """Sum ``x`` at every offset of ``stride``, weighted ``(B, P)``, at every ``step``.

    One depthwise convolution does it: the weights of an image's phases are its filter.
    """
    last = channels_last(x)
    parts = chunks(x, phase, per_image=LIMITS.chunk if last else image_size(x))
    mixed = torch.cat([_mix(part, weights, stride, step) for part, weights in parts])
    return mixed.contiguous(memory_format=last_format(x.ndim)) if last else mixed


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
