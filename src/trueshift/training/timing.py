"""Time of forward passes, and the window through which test images are seen."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trueshift.shifts import standard_shift


class BatchTimes:
    """Milliseconds of forward passes; the first one and smaller batches do not count."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all."""
        self.shape: tuple[int, ...] | None = None
        self.device = "cpu"
        self.milliseconds: list[float] = []

    @contextmanager
    def measure(self, images: Tensor) -> Iterator[None]:
        """Time what runs inside on ``images``."""
        _synchronize(images)
        start = time.perf_counter()
        yield
        _synchronize(images)
        elapsed = 1e3 * (time.perf_counter() - start)
        if self.shape is None:
            self.shape, self.device = tuple(images.shape), images.device.type
        elif self.shape == tuple(images.shape):
            self.milliseconds.append(elapsed)

    def summary(self) -> dict[str, Any] | None:
        """Return batch shape, device, number, mean and standard deviation, or ``None``."""
        if self.shape is None or not self.milliseconds:
            return None
        return {
            "batch_shape": list(self.shape),
            "device": self.device,
            "num_batches": len(self.milliseconds),
            "mean_ms": statistics.fmean(self.milliseconds),
            "std_ms": statistics.pstdev(self.milliseconds),
        }


def centre_crop(images: Tensor, size: int | None) -> Tensor:
    """Return the centre of images ``(B, C, H, W)`` that are larger than ``size``."""
    if size is None or max(images.shape[-2:]) <= size:
        return images
    return standard_shift(images, tuple(min(size, have) for have in images.shape[-2:]), 0, 0)


def _synchronize(images: Tensor) -> None:
    if images.device.type == "cuda":
        torch.cuda.synchronize(images.device)
