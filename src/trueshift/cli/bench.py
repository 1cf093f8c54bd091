"""``trueshift bench``: what networks cost."""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path
from typing import Any

from trueshift._files import check_parent, written_whole
from trueshift.bench import DTYPES, LAYOUTS, MEASURES, NETWORKS, ROWS, Bench, Setting, measure
from trueshift.bench.meters import machine
from trueshift.cli.progress import Progress
from trueshift.layers.spec import HIDDEN
from trueshift.report import speed
from trueshift.report.tables import FORMATS, build_table, render

QUICK_BATCH, QUICK_SIZE = 2, 64


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    text = "count the parameters of ResNet-101, as in the paper's table 4"
    params = what.add_parser("params", help=text, description=f"C{text[1:]}.")
    params.add_argument(
        "--format", choices=FORMATS, default="markdown", help="output format (default: markdown)"
    )
    text = "measure time, memory and FLOPs of our networks and of those of other packages"
    _configure_models(what.add_parser("models", help=text, description=f"M{text[1:]}."))


def _configure_models(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    for option, names, text in (
        ("--networks", NETWORKS, "which networks"),
        ("--rows", ROWS, "which ways to down-sample"),
        ("--measures", MEASURES, "in addition to parameters and FLOPs"),
    ):
        known, text = list(names), f"{text} (all): {', '.join(names)}"
        add(option, nargs="+", choices=known, default=known, metavar="NAME", help=text)
    add(
        "--repeats",
        type=int,
        metavar="N",
        help="timed runs of every row (default: 7, or 1 with --quick)",
    )
    add(
        "--layout", choices=[*LAYOUTS, "both"], default="nchw", help="memory format (default: nchw)"
    )
    add(
        "--dtype",
        choices=list(DTYPES),
        default="float32",
        help="bfloat16 runs by autocast (default: float32)",
    )
    add("--batch", type=int, metavar="B", help="images per call (default: depends on the network)")
    add("--size", type=int, metavar="PX", help="size of images (default: depends on the network)")
    add(
        "--hidden",
        choices=HIDDEN,
        help="width of learned selectors (default: depends on the network)",
    )
    quick = f"only check that all rows run: {QUICK_BATCH} images, at most {QUICK_SIZE} px, once"
    add("--quick", action="store_true", help=quick)
    add("--json", type=Path, metavar="FILE", help="write all numbers to FILE, after every network")
    add(
        "--format",
        choices=speed.FORMATS,
        default="markdown",
        help="output format (default: markdown)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    if args.what == "models":
        return _run_models(args)
    print(render("params", build_table("params", {}), args.format), end="")
    return 0


def _run_models(args: argparse.Namespace) -> int:
    check_parent(args.json)
    settings, benches = _settings(args), list[Bench]()
    computer = machine()
    if computer["load"] is not None and computer["load"] > 0.5:  # type: ignore[operator]
        load = f"load {computer['load']:.1f}"
        print(f"this machine is busy ({load}): do not trust the times", file=sys.stderr)
    try:
        for number, setting in enumerate(settings, start=1):
            benches.append(Bench(setting))
            name = f"[{number}/{len(settings)}] {setting.network} {setting.layout}"
            with Progress(name) as progress:
                measure(benches[-1], args.rows, functools.partial(progress, name, None))
            _write(args.json, benches, computer)
    finally:  # an interruption too leaves what is known so far
        _write(args.json, benches, computer)
        print(speed.render_benches(benches, computer, args.format), end="")
    return 0


def _settings(args: argparse.Namespace) -> list[Setting]:
    quick = args.quick
    repeats = (1 if quick else 7) if args.repeats is None else args.repeats
    batch = args.batch or (QUICK_BATCH if quick else None)
    layouts = list(LAYOUTS) if args.layout == "both" else [args.layout]
    settings = []
    for network in args.networks:
        size = args.size or (min(NETWORKS[network].size, QUICK_SIZE) if quick else None)
        rest = (batch, size, tuple(args.measures), args.hidden)
        settings += [Setting(network, layout, args.dtype, repeats, *rest) for layout in layouts]
    return settings


def _write(path: Path | None, benches: list[Bench], computer: dict[str, Any]) -> None:
    if path is not None:
        with written_whole(path) as partial:
            partial.write_text(speed.benches_json(benches, computer))
