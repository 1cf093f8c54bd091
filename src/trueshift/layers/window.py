"""What a strided operation reads at the positions of a phase."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trueshift._adjoint import (
    Slices,
    SoftWindow,
    Widths,
    channels_last,
    circular_windows,
    filled_windows,
    image_by_image,
    phase_offsets,
    pick,
    window_slices,
)
from trueshift.layers.steady import CONV_FUNCTIONS
from trueshift.padding import pad

# Images of this size are mixed one by one where their channels are last: a layout they then keep.
_LARGE = 2**17


def phase_window(
    x: Tensor, phase: int | Tensor, stride: tuple[int, ...], widths: Widths, mode: str
) -> Tensor:
    """Pad a map for a filter and cut what the filter reads at the positions of ``phase``.

    A strided operation without padding on the result gives one value per kept position.

    Args:
        x: ``(B, C, *spatial)`` with spatial sizes divisible by their strides.
        phase: One hard phase for all images, int64 ``(B,)``, or soft ``(B, P)``: then the windows
            of all phases are mixed, which is right for what is linear in its input.
        stride: Sampling factor of each axis.
        widths: How far the filter reaches before and after a position, per axis.
        mode: Border, under torch's name.
    """
    if isinstance(phase, int):
        starts = phase_offsets(phase, stride)
        reach = [
            (before - start, after - (step - 1 - start))
            for (before, after), start, step in zip(widths, starts, stride, strict=True)
        ]
        x = pad(x, tuple((max(before, 0), max(after, 0)) for before, after in reach), mode)
        needed: Slices = (..., *(slice(max(-before, 0), None) for before, _ in reach))
        return x[needed]
    soft = phase.dtype.is_floating_point
    if not soft and image_by_image(x):
        if mode == "circular":
            return circular_windows(x, phase, stride, widths)
        if mode == "zeros":
            return filled_windows(x, phase, stride, widths, 0.0)
    windows = padded = pad(x, widths, mode)
    if soft:
        return _mix_windows(padded, phase.to(x.dtype), stride)
    for axis, step in enumerate(stride, start=2):
        windows = windows.unfold(axis, padded.shape[axis] - step + 1, 1)
    return pick(windows, phase, stride, last=channels_last(padded))  # windows: (B, C, s, s, ...)


def _mix_by_convolution(x: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Mix windows in one pass: the weights of an image's phases are a filter for its channels."""
    batch, channels = x.shape[:2]
    kernels = phase.view(batch, 1, 1, *stride).expand(-1, channels, *[-1] * (1 + len(stride)))
    images = x if batch == 1 else x.reshape(1, batch * channels, *x.shape[2:])
    conv = CONV_FUNCTIONS[len(stride)]
    with torch.autocast("cpu", enabled=False):
        mixed = conv(images, kernels.flatten(0, 1), groups=batch * channels)
    return mixed.view(batch, channels, *mixed.shape[2:])


def _mix_windows(x: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
    if not torch.compiler.is_compiling():
        if x.device.type == "cpu" and x.dtype == torch.float32 and x.numel():
            if not channels_last(x):
                return _mix_by_convolution(x, phase, stride)
            if math.prod(x.shape[1:]) >= _LARGE:
                pairs = zip(x.split(1), phase.split(1), strict=True)
                return torch.cat([_mix_by_convolution(*pair, stride) for pair in pairs])
        mixed: Tensor = SoftWindow.apply(x, phase, stride)
        return mixed
    weights = phase.t().reshape(*reversed(phase.shape), *[1] * (x.ndim - 1))  # (P, B, 1, ...)
    windows = window_slices(x.shape[2:], stride)
    parts = [x[window] * weight for window, weight in zip(windows, weights, strict=False)]
    return torch.stack(parts).sum(0)
