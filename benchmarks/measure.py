"""Peak memory of warm calls, by the package's own meters."""

from __future__ import annotations

import torch

from trueshift.bench import meters
from trueshift.bench.meters import Run


def peak_mib(run: Run) -> float:
    """Largest amount of tensor memory that a warm call holds beyond what was there, in MiB."""
    run()
    return meters.peak_mib(run)


def machine() -> dict[str, object]:
    """What the numbers depend on."""
    return {"torch": torch.__version__, "threads": torch.get_num_threads()}
