"""``trueshift quickstart``: see in minutes what shifts do to networks."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path

from trueshift.cli.progress import Progress
from trueshift.cli.runs import new_folder
from trueshift.quickstart import (
    HEADS,
    TITLES,
    Budget,
    quickstart,
    read_budget,
    table_rows,
    write_all,
)

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
    given = {name: getattr(args, name) for name in _BUDGET if getattr(args, name) is not None}
    folder = args.resume or new_folder(args.runs / "quickstart")
    budget = dataclasses.replace(read_budget(folder) if args.resume else Budget(), **given)
    start = time.monotonic()
    try:
        with Progress(*TITLES.values(), every_seconds=0) as progress:
            results = quickstart(
                folder, budget, lambda name, share, text: progress(TITLES[name], share, text)
            )
    except (KeyboardInterrupt, SystemExit):  # Lightning turns the one into the other
        print(f"\nstopped. To go on: trueshift quickstart --resume {folder}", file=sys.stderr)
        return 130
    *pictures, report = write_all(results, folder, budget.seed)
    _print_table(table_rows(results))
    print(f"\n{time.monotonic() - start:.0f} s. Table, networks and curves: {folder}")
    for picture in pictures:
        print(f"picture: {picture}")
    print(f"report, to open in a browser: {report}")
    return 0


def _print_table(rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*HEADS, title="The same small ResNet, sampled in six ways")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
