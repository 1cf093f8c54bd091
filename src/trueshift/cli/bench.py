"""``trueshift bench``: what networks cost."""

from __future__ import annotations

import argparse

from trueshift.report.tables import FORMATS, build_table, render


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    params = what.add_parser("params", help="parameters of ResNet-101, beside the paper's table 4")
    params.add_argument("--format", choices=FORMATS, default="markdown", help="(markdown)")


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    print(render("params", build_table("params", {}), args.format), end="")
    return 0
