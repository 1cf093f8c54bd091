"""Medians of interleaved runs and peak memory, by the package's own meters."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import torch

from trueshift.benchmark import meters
from trueshift.benchmark.meters import Run


def interleaved_ms(runs: Mapping[str, Run], repeats: int, warmup: int = 2) -> dict[str, float]:
    """Median milliseconds of every run; runs take turns, so that noise hits all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for name, elapsed in meters.interleaved(runs, repeats, warmup):
        if elapsed is not None:
            times[name].append(elapsed)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_mib(run: Run) -> float:
    """Largest amount of tensor memory that a warm call holds beyond what was there, in MiB."""
    run()
    return meters.peak_mib(run)


def machine() -> dict[str, object]:
    """What the numbers depend on."""
    return {"torch": torch.__version__, "threads": torch.get_num_threads()}
