"""How far long work has come."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

_SECONDS = 10  # between lines


class Progress:
    """A bar on a terminal; elsewhere a line now and then. Call it with how many are done, of all.

    Args:
        name: What runs.
        unit: What is counted.
    """

    def __init__(self, name: str, unit: str) -> None:
        self.name, self.unit = name, unit
        self.bar: Any = None
        self.told = time.monotonic()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            self.bar = progress.Progress(console=Console(stderr=True), transient=True).__enter__()
            self.task = self.bar.add_task(self.name, total=1.0)
        return self

    def __exit__(self, *error: Any) -> None:
        if self.bar is not None:
            self.bar.__exit__(*error)

    def __call__(self, done: int, total: int) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=done, total=total)
        elif time.monotonic() - self.told > _SECONDS:
            self.told = time.monotonic()
            print(f"{self.name}: {done} of {total} {self.unit}", file=sys.stderr, flush=True)
