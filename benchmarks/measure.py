"""Interleaved timings and peak memory, as ratios within one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch.profiler import ProfilerActivity, profile

Run = Callable[[], object]


def interleaved_ms(runs: Mapping[str, Run], repeats: int, warmup: int = 2) -> dict[str, float]:
    """Median milliseconds of every run; runs take turns, so that noise hits all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(warmup + repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if repeat >= warmup:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def peak_mib(run: Run) -> float:
    """Largest amount of tensor memory that one call holds beyond what was there before, in MiB."""
    run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        run()
    results = prof.profiler.kineto_results  # type: ignore[union-attr]
    changes = [event for event in results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak / 2**20


def machine() -> dict[str, object]:
    """What the numbers depend on."""
    return {"torch": torch.__version__, "threads": torch.get_num_threads()}
