"""``trueshift quickstart``: see in minutes what shifts do to networks."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

from trueshift.cli.runs import new_folder
from trueshift.report.quickstart import (
    HEADS,
    TITLES,
    table_rows,
    write_pictures,
    write_report,
    write_table,
)
from trueshift.training.quickstart import ROWS, Budget, quickstart, read_budget

_BUDGET = {
    "epochs": "passes over the training pictures",
    "num_train": "pictures to train on",
    "num_test": "pictures to test on",
    "num_pairs": "pairs of shifts per test picture",
    "seed": "of pictures, weights and order",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    budget = Budget()
    parser.description = (
        "Train six small networks on built-in pictures, with the same budget, and compare their"
        " accuracy and how often they change their mind when the picture moves."
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where to write (runs)")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with a stopped run")
    for name, text in _BUDGET.items():
        option, default = f"--{name.replace('_', '-')}", getattr(budget, name)
        parser.add_argument(option, type=int, metavar="N", help=f"{text} ({default})")


def run(args: argparse.Namespace) -> int:
    """Train, test, print the table and say where everything is."""
    names = {field.name for field in dataclasses.fields(Budget)}
    asked = {key: value for key, value in vars(args).items() if key in names and value is not None}
    folder = args.resume or new_folder(args.runs / "quickstart")
    begun = read_budget(folder) if args.resume else Budget()
    budget = dataclasses.replace(begun, **asked)
    start = time.monotonic()
    try:
        with _progress() as tell:
            results = quickstart(folder, budget, tell)
    except (KeyboardInterrupt, SystemExit):  # Lightning turns the one into the other
        print(f"\nstopped. To go on: trueshift quickstart --resume {folder}", file=sys.stderr)
        return 130
    write_table(results, folder)
    pictures = write_pictures(folder, list(results), budget.seed)
    report = write_report(folder, budget.seed)
    _print_table(table_rows(results))
    print(f"\n{time.monotonic() - start:.0f} s. Table, networks and curves: {folder}")
    for picture in pictures:
        print(f"picture: {picture}")
    print(f"report, to open in a browser: {report}")
    return 0


class _progress:
    """A bar on a terminal, a line per epoch elsewhere."""

    bar: Any = None

    def __enter__(self) -> Any:
        if not sys.stdout.isatty():
            self.last: dict[str, str] = {}
            return self._line
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = ("{task.description:18}", BarColumn(), TextColumn("{task.fields[word]}"))
        self.bar = Progress(*columns, TimeElapsedColumn()).__enter__()
        self.tasks = {
            name: self.bar.add_task(TITLES[name], total=1.0, word="waiting", start=False)
            for name in ROWS
        }
        return self._move

    def __exit__(self, *error: Any) -> None:
        if self.bar is not None:
            self.bar.__exit__(*error)

    def _move(self, name: str, share: float, word: str) -> None:
        task = self.tasks[name]
        self.bar.start_task(task)
        self.bar.update(task, completed=share, word=word)
        if share >= 1:
            self.bar.stop_task(task)

    def _line(self, name: str, share: float, word: str) -> None:
        if self.last.get(name) != word:
            print(f"{TITLES[name]}: {word}", flush=True)
        self.last[name] = word


def _print_table(rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*HEADS, title="The same small ResNet, sampled in six ways")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
