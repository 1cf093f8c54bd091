"""When kernels pay: every threshold, and the questions that their conditions ask."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Limits:
    """The thresholds, in elements of a map unless said otherwise; measured on AVX2 and AVX-512.

    Attributes:
        chunk: What is computed at a time, so that intermediates stay in the cache.
        pick: From this size of a component on, it is copied row by row instead of gathered.
        window: From this size of an image on, its window is copied instead of gathered.
        fill: From this size of an image on, up-sampling fills the gaps between values itself.
        mix_last: From this size of an image on, channels-last images are mixed one by one.
        mix_windows: From this size of an image on, windows are mixed before a filter runs.
        stem_channels: Up to this many channels, a convolution counts as one that reads images.
        close: Scores closer than this share of the sum of their terms' absolute values are computed
            again with exact sums; torch's float32 sums, which add parts of parts, err less.
    """

    chunk: int = 2**21
    pick: int = 2**13
    window: int = 2**12
    fill: int = 2**13
    mix_last: int = 2**17
    mix_windows: int = 2**18
    stem_channels: int = 4
    close: float = 2.0**-16


LIMITS = Limits()


@contextlib.contextmanager
def limits(**changes: float) -> Iterator[None]:
    """Change thresholds for a while, so that a test can take either side of each."""
    before = dataclasses.asdict(LIMITS)
    unknown = changes.keys() - before.keys()
    if unknown:
        raise ValueError(f"limits: unknown {sorted(unknown)}. Choose from: {', '.join(before)}.")
    try:
        vars(LIMITS).update(changes)
        yield
    finally:
        vars(LIMITS).update(before)


def differentiates(*tensors: Tensor | int | None) -> bool:
    """Whether a backward pass through one of the tensors may follow."""
    if not torch.is_grad_enabled():
        return False
    return any(isinstance(t, Tensor) and t.requires_grad for t in tensors)


def full_precision(x: Tensor) -> bool:
    """Whether what is computed from a tensor is computed in float32 or float64."""
    wide = x.dtype in (torch.float32, torch.float64)
    return wide and not torch.is_autocast_enabled(x.device.type)


def image_size(x: Tensor) -> int:
    """Return the number of elements of one image."""
    return math.prod(x.shape[1:])
