"""``trueshift bench``: what networks cost."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from trueshift._files import written_whole
from trueshift.benchmark import DTYPES, LAYOUTS, MEASURES, NETWORKS, ROWS, Bench, Setting, measure
from trueshift.benchmark.meters import machine
from trueshift.layers.spec import HIDDEN
from trueshift.report import speed
from trueshift.report.tables import FORMATS, build_table, render

QUICK_BATCH, QUICK_SIZE = 2, 64


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    params = what.add_parser("params", help="parameters of ResNet-101, beside the paper's table 4")
    params.add_argument("--format", choices=FORMATS, default="markdown", help="(markdown)")
    text = "time, memory and FLOPs of whole networks, beside plain ones and other packages"
    _configure_models(what.add_parser("models", help=text, description=text))


def _configure_models(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--networks",
        nargs="+",
        choices=list(NETWORKS),
        default=list(NETWORKS),
        metavar="NAME",
        help=f"which networks (all): {', '.join(NETWORKS)}",
    )
    add(
        "--rows",
        nargs="+",
        choices=list(ROWS),
        default=list(ROWS),
        metavar="NAME",
        help=f"which ways to down-sample (all): {', '.join(ROWS)}",
    )
    add(
        "--measures",
        nargs="+",
        choices=MEASURES,
        default=list(MEASURES),
        metavar="WHAT",
        help=f"beside parameters and FLOPs (all): {', '.join(MEASURES)}",
    )
    add("--repeats", type=int, metavar="N", help="timed runs of every row (7; 1 with --quick)")
    add("--layout", choices=[*LAYOUTS, "both"], default="nchw", help="memory layout (nchw)")
    add("--dtype", choices=list(DTYPES), default="float32", help="bfloat16: by autocast (float32)")
    add("--batch", type=int, metavar="B", help="images per call (the network's own)")
    add("--size", type=int, metavar="PX", help="size of images (the network's own)")
    add("--hidden", choices=HIDDEN, help="width of learned selectors (the network's own)")
    add(
        "--quick",
        action="store_true",
        help=f"only see that all runs: {QUICK_BATCH} images, at most {QUICK_SIZE} px, one run",
    )
    add("--json", type=Path, metavar="FILE", help="write all numbers, after every network")
    add("--format", choices=speed.FORMATS, default="markdown", help="of the output (markdown)")


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    if args.what == "models":
        return _run_models(args)
    print(render("params", build_table("params", {}), args.format), end="")
    return 0


def _run_models(args: argparse.Namespace) -> int:
    if args.json is not None and not args.json.parent.is_dir():
        raise FileNotFoundError(f"no folder {args.json.parent} to write {args.json.name} to.")
    settings, benches = _settings(args), list[Bench]()
    told = machine()
    if told["load"] is not None and told["load"] > 0.5:  # type: ignore[operator]
        busy = f"other work runs on this machine (load {told['load']:.1f}): do not trust the times"
        print(busy, file=sys.stderr)
    try:
        for number, setting in enumerate(settings, start=1):
            benches.append(Bench(setting))
            name = f"[{number}/{len(settings)}] {setting.network} {setting.layout}"
            with _Progress(name) as tell:
                measure(benches[-1], args.rows, tell)
            _write(args.json, benches, told)
    finally:  # an interruption too leaves what is known so far
        _write(args.json, benches, told)
        print(speed.render_benches(benches, told, args.format), end="")
    return 0


def _settings(args: argparse.Namespace) -> list[Setting]:
    layouts = list(LAYOUTS) if args.layout == "both" else [args.layout]
    batch, repeats = args.batch, args.repeats
    if args.quick:
        batch, repeats = batch or QUICK_BATCH, repeats or 1
    found = []
    for network in args.networks:
        own = NETWORKS[network].size
        size = args.size or (min(own, QUICK_SIZE) if args.quick else own)
        for layout in layouts:
            found.append(
                Setting(
                    network,
                    layout,
                    args.dtype,
                    7 if repeats is None else repeats,
                    batch,
                    size,
                    tuple(args.measures),
                    args.hidden,
                )
            )
    return found


def _write(path: Path | None, benches: list[Bench], told: dict[str, Any]) -> None:
    if path is not None:
        with written_whole(path) as partial:
            partial.write_text(speed.benches_json(benches, told))


class _Progress:
    """One line on a terminal that changes; elsewhere a line now and then."""

    def __init__(self, name: str) -> None:
        self.name, self.told = name, 0.0

    def __enter__(self) -> Any:
        self.live = sys.stderr.isatty()
        return self._tell

    def __exit__(self, *error: Any) -> None:
        if self.live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def _tell(self, text: str) -> None:
        if self.live:
            print(f"\r\033[K{self.name}: {text}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self.told > 10:
            self.told = time.monotonic()
            print(f"{self.name}: {text}", file=sys.stderr, flush=True)
