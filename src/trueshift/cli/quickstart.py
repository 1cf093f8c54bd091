"""``trueshift quickstart``: see in minutes what shifts do to networks."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path

from trueshift.cli.progress import Progress
from trueshift.cli.runs import new_folder
from trueshift.quickstart import COLUMNS, Budget, quickstart, read_budget, runs, table, write_all

_BUDGET = {
    "seeds": "runs of each network, with different seeds",
    "epochs": "passes over the training pictures",
    "num_train": "pictures to train on",
    "num_test": "pictures to test on",
    "num_pairs": "pairs of shifts per test picture",
    "flow_epochs": "passes over the training trajectories of the flow",
    "num_flows": "trajectories to train on",
}
_TITLES = {
    "pictures": "Scene 1, pictures: percent of the test pictures",
    "flow": "Scene 2, a flow on a ring (Kuramoto-Sivashinsky)",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.description = (
        "Two scenes in about four minutes on two cores, with nothing to download. Pictures: four"
        " small networks that differ in how they down-sample, and how often each changes its answer"
        " when a picture moves. A periodic flow: two networks that forecast it, and what happens to"
        " their forecasts when the start is shifted. Ends with a page to open in a browser."
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="folder for the results (default: runs)"
    )
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="continue a stopped run")
    for name, text in _BUDGET.items():
        option, default = f"--{name.replace('_', '-')}", getattr(Budget(), name)
        parser.add_argument(option, type=int, metavar="N", help=f"{text} (default: {default})")


def run(args: argparse.Namespace) -> int:
    """Train, test, print the tables and say where everything is."""
    given = {name: getattr(args, name) for name in _BUDGET if getattr(args, name) is not None}
    folder = args.resume or new_folder(args.runs / "quickstart")
    budget = dataclasses.replace(read_budget(folder) if args.resume else Budget(), **given)
    start, titles = time.monotonic(), [one.title for one in runs(budget)]
    print(f"training {len(titles)} small networks, several at once", file=sys.stderr)
    try:
        with Progress(*titles, every_seconds=15) as progress:
            results = quickstart(folder, budget, lambda one, *what: progress(one.title, *what))
    except (KeyboardInterrupt, SystemExit):  # Lightning turns the one into the other
        print(f"\nstopped. To continue: trueshift quickstart --resume {folder}", file=sys.stderr)
        return 130
    print("trained; now trying every shift of the pictures on the page", file=sys.stderr)
    page = write_all(results, folder, budget)
    for scene in COLUMNS:
        _print_table(_TITLES[scene], *table(scene, results))
    print(f"{time.monotonic() - start:.0f} s. Networks, tables and results: {folder}")
    print(f"Open this page in a browser and drag: {page}")
    return 0


def _print_table(title: str, heads: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(*heads, title=title)
    for row in rows:
        shown.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(shown)
