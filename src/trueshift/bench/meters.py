"""Interleaved timings, peak memory and FLOPs of functions that are called without arguments."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

Run = Callable[[], object]


def interleaved(
    runs: Mapping[str, Run], repeats: int, warmup: int = 1
) -> Iterator[tuple[str, float | None]]:
    """Call functions in turn, so that noise hits all of them alike, and yield their times.

    Args:
        runs: Functions by name.
        repeats: How often each is timed.
        warmup: How often each is called before that.

    Yields:
        Name and milliseconds, ``None`` for a call that only warms up.
    """
    for repeat in range(warmup + repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            elapsed = 1e3 * (time.perf_counter() - start)
            yield name, elapsed if repeat >= warmup else None


def medians(runs: Mapping[str, Run], repeats: int, warmup: int = 1) -> dict[str, float]:
    """Return the median milliseconds of every function; see :func:`interleaved`."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for name, elapsed in interleaved(runs, repeats, warmup):
        if elapsed is not None:
            times[name].append(elapsed)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_mib(run: Run) -> float:
    """Return how much tensor memory a call holds at its peak beyond what was there before, in MiB.

    Counted by torch's allocator, so the number does not depend on what the machine or the process
    did before, as that of the resident set does. Scratch memory inside of oneDNN is not seen.
    """
    gc.collect()
    results = profiled(run, memory=True).profiler.kineto_results
    changes = [event for event in results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak / 2**20


def profiled(run: Run, *, memory: bool = False) -> Any:  # torch leaves parts of it untyped
    """Return torch's profile of a call, on request with every allocation."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # its library logs every start and stop
    with profile(activities=[ProfilerActivity.CPU], profile_memory=memory) as prof:
        run()
    return prof


def flops_per_image(model: nn.Module, x: Tensor) -> int:
    """Count the floating-point operations of convolutions and matrix products at test time.

    Args:
        model: The network, in eval mode.
        x: A batch of at least two images: small single images are convolved twice to be exact.
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(x)
    return int(counter.get_total_flops()) // len(x)


def machine() -> dict[str, object]:
    """Return what timings depend on."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load": load(),
    }


def load() -> float | None:
    """Return how many processes ran on average in the last minute, where the system says so."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
