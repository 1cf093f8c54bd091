"""Keeping, placing and cutting at soft phases: sums of components or windows with weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trueshift._cpu.adjoints import mix, share, spread, weigh
from trueshift._dispatch import fast
from trueshift._validate import Mode
from trueshift.functional import keep_phase, place_phase
from trueshift.windows import (
    Phase,
    Widths,
    component_slices,
    is_soft,
    mix_moves,
    move_slices,
    move_widths,
    pad,
    phase_window,
    window_slices,
)


def _is_soft(x: Tensor, phase: Phase, *_: Any, **__: Any) -> bool:
    return is_soft(phase)


def _is_plane(x: Tensor, phase: Phase, stride: tuple[int, ...]) -> bool:
    usual = x.dtype in (torch.float32, torch.bfloat16) and torch.backends.mkldnn.is_available()
    return is_soft(phase) and usual and x.ndim == 4 and x.is_contiguous()


@fast(keep_phase, when=_is_plane)
def weigh_components(x: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Convolve: in contiguous maps, the pixels of a component are not neighbours."""
    return weigh(x, phase.to(x.dtype), stride)


@fast(place_phase, when=_is_plane)
def share_among_components(y: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Convolve backwards, as above."""
    return share(y, phase.to(y.dtype), stride)


@fast(keep_phase, when=_is_soft)
def mix_components(x: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Add slice by slice."""
    return mix(x, phase.to(x.dtype), component_slices(stride))


@fast(place_phase, when=_is_soft)
def spread_components(y: Tensor, phase: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Write slice by slice."""
    sizes = [size * step for size, step in zip(y.shape[2:], stride, strict=True)]
    return spread(y, phase.to(y.dtype), component_slices(stride), sizes)


@fast(phase_window, when=_is_soft)
def mix_phase_windows(
    x: Tensor, phase: Tensor, stride: tuple[int, ...], widths: Widths, mode: Mode
) -> Tensor:
    """Mix as :func:`mix_components` does."""
    padded = pad(x, widths, mode)
    reads = window_slices(padded.shape[2:], stride)
    return mix(padded, phase.to(x.dtype), reads)


@fast(mix_moves)
def mix_moves_at_once(
    x: Tensor, weights: Tensor, offsets: Sequence[tuple[int, ...]], mode: Mode
) -> Tensor:
    """Mix as :func:`mix_components` does."""
    padded = pad(x, move_widths(offsets), mode)
    reads = move_slices(x.shape[2:], offsets)
    return mix(padded, weights.to(x.dtype), reads)
