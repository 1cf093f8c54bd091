"""``trueshift table``: the paper's tables with our numbers next to the paper's."""

from __future__ import annotations

import argparse
from pathlib import Path

from trueshift.report.ours import TABLES
from trueshift.report.tables import FORMATS, build_table, find_results, render


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    paper = ", ".join(f"{name} ({one.number})" for name, one in TABLES.items() if one.number)
    ours = ", ".join(name for name, one in TABLES.items() if not one.number)
    names = f"a table of the paper, with its number: {paper}; or one of our own: {ours}"
    parser.add_argument("name", choices=tuple(TABLES), metavar="NAME", help=names)
    parser.add_argument(
        "folder",
        nargs="?",
        metavar="FOLDER",
        default="runs",
        help="folder with results.json files, at any depth (default: runs)",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="markdown", help="output format (default: markdown)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write to FILE instead of the terminal"
    )


def run(args: argparse.Namespace) -> int:
    """Print or write the table."""
    results = {} if args.name == "params" else find_results(args.folder)
    text = render(args.name, build_table(args.name, results), args.format)
    if args.output is None:
        print(text, end="")
    else:
        args.output.write_text(text)
    return 0
