"""Show where the time of a network goes at test time: its parts, and torch's operations.

``python -m benchmarks.parts resnet18 --rows stride lps-input`` times the stem, the stages and the
selectors of every row, in turn; with ``--operations`` torch's profiler counts operations instead.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import nn

from trueshift.bench import LAYOUTS, NETWORKS, ROWS, Setting
from trueshift.bench.meters import Run, interleaved, profiled
from trueshift.bench.run import make_batch, prepare, runner
from trueshift.layers.selectors import ConvSelector, NormSelector
from trueshift.memory import keep_memory
from trueshift.report.tables import markdown_table

SHOWN = 12  # operations
SELECTORS = "of it, selectors"  # within stages and stem

Times = dict[str, dict[str, float]]


def timed(function: Callable[..., Any], name: str, spent: Counter[str]) -> Callable[..., Any]:
    """Return the function; what its calls take is added to ``spent``, in milliseconds."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = function(*args, **options)
        spent[name] += 1e3 * (time.perf_counter() - start)
        return result

    return run


def watch(model: nn.Module) -> Counter[str]:
    """Make the parts of a network tell what they take; stages, selectors, decoder, up-sampling."""
    spent: Counter[str] = Counter()
    backbone = getattr(model, "backbone", model)
    for name, part in backbone.named_children():
        for block in part if name.startswith("layer") else ():
            block.forward = timed(block.forward, name, spent)
    for name in ("classifier", "unpool"):
        if isinstance(part := getattr(model, name, None), nn.Module):
            part.forward = timed(part.forward, name, spent)
    for module in model.modules():
        if isinstance(module, ConvSelector | NormSelector):
            module.choose = timed(module.choose, SELECTORS, spent)  # type: ignore[method-assign]
    return spent


def measure_parts(setting: Setting, rows: list[str]) -> Times:
    """Return the median milliseconds of every part, by row."""
    models, runs = _build(setting, rows)
    spent = {row: watch(model) for row, model in models.items()}
    times: dict[str, dict[str, list[float]]] = {row: {} for row in rows}
    for row, whole in interleaved(runs, setting.repeats):
        inside = sum(ms for name, ms in spent[row].items() if name != SELECTORS)
        if whole is not None:
            parts = {**spent[row], "whole": whole, "stem and rest": whole - inside}
            for name, elapsed in parts.items():
                times[row].setdefault(name, []).append(elapsed)
        spent[row].clear()
    return {
        row: {n: statistics.median(ms) for n, ms in parts.items()} for row, parts in times.items()
    }


def measure_operations(setting: Setting, rows: list[str]) -> Times:
    """Return the milliseconds that torch's profiler counts for operations themselves, by row."""
    times = {}
    for row, run in _build(setting, rows)[1].items():
        run()
        prof = profiled(lambda run=run: [run() for _ in range(setting.repeats)])
        per_run = 1e-3 / setting.repeats
        times[row] = {e.key: e.self_cpu_time_total * per_run for e in prof.key_averages()}
    return times


def _build(setting: Setting, rows: list[str]) -> tuple[dict[str, nn.Module], dict[str, Run]]:
    images, labels = make_batch(setting)
    models = {row: prepare(setting, row, images) for row in rows}
    runs = {row: runner(net, images, labels, setting, "eval") for row, net in models.items()}
    return models, runs


def table(times: Times, most: int | None = None) -> str:
    """Render as markdown, a line for every part; with ``most`` only those that take most."""
    names = list(dict.fromkeys(name for parts in times.values() for name in parts))
    if most is not None:
        largest = {name: max(parts.get(name, 0.0) for parts in times.values()) for name in names}
        names = sorted(names, key=lambda name: -largest[name])[:most]
    body = [
        [name, *(f"{parts[name]:.1f}" if name in parts else "-" for parts in times.values())]
        for name in names
    ]
    return markdown_table(["ms", *(ROWS[row].title for row in times)], body)


def main() -> None:
    """Measure and print markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=list(NETWORKS))
    usual = ["stride", "aps-input", "lps-input", "lpf-tri3", "lps-tri3-input", "lps-tri3"]
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=usual, metavar="NAME")
    parser.add_argument("--layout", choices=list(LAYOUTS), default="nchw", help="(nchw)")
    parser.add_argument("--batch", type=int, help="images per call (the network's own)")
    parser.add_argument("--size", type=int, help="size of images (the network's own)")
    parser.add_argument("--repeats", type=int, default=9, help="runs of every row (9)")
    parser.add_argument("--operations", action="store_true", help="count torch's operations")
    args = parser.parse_args()
    keep_memory()
    setting = Setting(
        args.network, args.layout, repeats=args.repeats, batch=args.batch, size=args.size
    )
    if args.operations:
        print(table(measure_operations(setting, args.rows), SHOWN))
    else:
        print(table(measure_parts(setting, args.rows)))


if __name__ == "__main__":
    main()
