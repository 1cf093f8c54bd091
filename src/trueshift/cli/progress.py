"""Progress of long work: bars on a terminal, elsewhere a plain line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any


class Progress:
    """Show how far some tasks are, on stderr, as a context manager.

    Args:
        *tasks: What they are called.
        every_seconds: Without a terminal: time between two lines of a task, the last one excepted.
            A line is printed only if its text is a new one.
    """

    def __init__(self, *tasks: str, every_seconds: float = 10.0) -> None:
        self.every_seconds = every_seconds
        self._lines = {name: (time.monotonic(), "") for name in tasks}  # when and what, last
        self._bars: Any = None
        self._ids: dict[str, Any] = {}

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._bars, self._ids = _rich_bars(list(self._lines))
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, task: str, share: float | None, text: str) -> None:
        """Say how far a task is.

        Args:
            task: Its name.
            share: Share of the work that is done; None if that is not known.
            text: What it does now.
        """
        if self._bars is not None:
            bar = self._ids[task]
            self._bars.start_task(bar)
            total = None if share is None else 1.0
            self._bars.update(bar, total=total, completed=share or 0.0, text=text)
            if share == 1:
                self._bars.stop_task(bar)
            return
        last_time, last_text = self._lines[task]
        due = share == 1 or time.monotonic() - last_time >= self.every_seconds
        if text != last_text and due:
            print(f"{task}: {text}", file=sys.stderr, flush=True)
            self._lines[task] = time.monotonic(), text


def _rich_bars(tasks: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = ("{task.description:18}", BarColumn(), TextColumn("{task.fields[text]}"))
    bars = Bars(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=len(tasks) == 1
    )
    return bars, {
        name: bars.add_task(name, start=False, total=1.0, text="waiting") for name in tasks
    }
