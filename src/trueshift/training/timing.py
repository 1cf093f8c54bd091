"""Time and memory of forward passes, and the window through which test images are seen."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trueshift.bench.meters import peak_mib
from trueshift.shifts import standard_shift


class BatchTimes:
    """Milliseconds of forward passes, and the memory of the first, which is not timed.

    Only batches of the shape of the first are timed.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all."""
        self.shape: tuple[int, ...] | None = None
        self.device = "cpu"
        self.peak_mib: float | None = None
        self.milliseconds: list[float] = []

    def measure(self, network: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """Return what a network makes of images, and note what it costs."""
        if self.shape is None:
            self.shape, self.device = tuple(images.shape), images.device.type
            return self._weigh(network, images)
        _synchronize(images)
        start = time.perf_counter()
        output = network(images)
        _synchronize(images)
        if self.shape == tuple(images.shape):
            self.milliseconds.append(1e3 * (time.perf_counter() - start))
        return output

    def _weigh(self, network: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        if torch._C._autograd._profiler_enabled():  # there can be only one
            return network(images)
        outputs: list[Tensor] = []
        self.peak_mib = peak_mib(lambda: outputs.append(network(images)))
        return outputs[0]

    def summary(self) -> dict[str, Any] | None:
        """Return batch shape, device, number, times, and peak memory beyond weights and images."""
        if self.shape is None or not self.milliseconds:
            return None
        return {
            "batch_shape": list(self.shape),
            "device": self.device,
            "num_batches": len(self.milliseconds),
            "mean_ms": statistics.fmean(self.milliseconds),
            "std_ms": statistics.pstdev(self.milliseconds),
            "peak_mib": self.peak_mib,
        }


def centre_crop(images: Tensor, size: int | None) -> Tensor:
    """Return the centre of images ``(B, C, H, W)`` that are larger than ``size``."""
    if size is None or max(images.shape[-2:]) <= size:
        return images
    return standard_shift(images, tuple(min(size, have) for have in images.shape[-2:]), 0, 0)


def _synchronize(images: Tensor) -> None:
    if images.device.type == "cuda":
        torch.cuda.synchronize(images.device)
