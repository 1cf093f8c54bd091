"""What a strided operation reads at the positions of a phase."""

from __future__ import annotations

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
    mix_by_convolution,
    mixes_by_convolution,
    phase_offsets,
    pick,
    window_slices,
)
from trueshift.padding import pad


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
        return mix_windows(padded, phase.to(x.dtype), stride)
    for axis, step in enumerate(stride, start=2):
        windows = windows.unfold(axis, padded.shape[axis] - step + 1, 1)
    return pick(windows, phase, stride, last=channels_last(padded))  # windows: (B, C, s, s, ...)


def mix_windows(x: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Sum the windows of ``x`` that begin at every offset of ``stride``, weighted ``(B, P)``."""
    if mixes_by_convolution(x):
        return mix_by_convolution(x, phase, stride, (1,) * len(stride))
    if not torch.compiler.is_compiling():
        mixed: Tensor = SoftWindow.apply(x, phase, stride)
        return mixed
    weights = phase.t().reshape(*reversed(phase.shape), *[1] * (x.ndim - 1))  # (P, B, 1, ...)
    windows = window_slices(x.shape[2:], stride)
    parts = [x[window] * weight for window, weight in zip(windows, weights, strict=False)]
    return torch.stack(parts).sum(0)
