"""Measure every layer with and without its kernels: `python -m benchmarks.layers`.

Each row is one layer at one shape: the median of interleaved runs as is and under ``ts.plain()``,
where only the formulas of ``functional.py`` run; their ratio (above 1: kernels are faster), and the
peak memory of each.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import trueshift as ts
from trueshift.bench.meters import Run, machine, medians, peak_mib

SHAPES = ((32, 64, 56, 56), (32, 256, 28, 28), (16, 64, 112, 112))
FORMATS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass
class Row:
    """One measured layer at one shape."""

    layer: str
    mode: str
    shape: tuple[int, ...]
    layout: str
    ours_ms: float
    plain_ms: float
    ours_mib: float
    plain_mib: float

    @property
    def speedup(self) -> float:
        """How many times faster ours is."""
        return self.plain_ms / self.ours_ms


def layers(channels: int) -> dict[str, nn.Module]:
    """Build the layers that are measured."""
    fixed = ts.FixedSelector
    return {
        "LPD, C_hid = C": ts.LPD(channels),
        "LPD, C_hid = C/8": ts.LPD(channels, channels // 8),
        "APS": ts.APS(channels),
        "stride + tri3": ts.PolyphaseDown(fixed(), antialias=ts.Blur(channels)),
        "DDAC (stride + adapt3)": ts.PolyphaseDown(fixed(), antialias=ts.AdaptiveBlur(channels)),
    }


def runner(fn: Callable[[Tensor], Tensor], x: Tensor, mode: str) -> Run:
    """Return one forward pass, or in training one forward and backward pass."""

    def evaluate() -> None:
        with torch.inference_mode():
            fn(x)

    def train() -> None:
        fn(x.requires_grad_()).sum().backward()
        x.grad = None

    return train if mode == "train" else evaluate


def plainly(run: Run) -> Run:
    """Return a run that takes the formulas only."""

    def plain() -> None:
        with ts.plain():
            run()

    return plain


def measure(shape: tuple[int, ...], layout: str, repeats: int) -> Iterator[Row]:
    """Measure all layers at one shape and memory layout, at test time and in training."""
    for (layer, module), mode in itertools.product(layers(shape[1]).items(), ("eval", "train")):
        module.train(mode == "train")
        x = torch.randn(shape).contiguous(memory_format=FORMATS[layout])
        run = runner(module, x, mode)
        runs = {"ours": run, "plain": plainly(run)}
        ms = medians(runs, repeats, warmup=2)
        mib = {name: peak_mib(each) for name, each in runs.items()}
        yield Row(layer, mode, shape, layout, ms["ours"], ms["plain"], mib["ours"], mib["plain"])


def table(rows: list[Row]) -> str:
    """Render rows as a markdown table."""
    lines = [
        "| layer | mode | shape | layout | ours ms | plain ms | faster | ours MiB | plain MiB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        shape = " x ".join(map(str, row.shape))
        lines.append(
            f"| {row.layer} | {row.mode} | {shape} | {row.layout} | {row.ours_ms:.1f}"
            f" | {row.plain_ms:.1f} | **{row.speedup:.2f}x** | {row.ours_mib:.0f}"
            f" | {row.plain_mib:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print markdown, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--repeats", type=int, default=9, help="runs to take the median of")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default: 2)")
    parser.add_argument("--layouts", nargs="+", default=list(FORMATS), choices=list(FORMATS))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    rows = []
    for shape in SHAPES:
        for layout in args.layouts:
            for row in measure(shape, layout, args.repeats):
                rows.append(row)
                print(f"{row.layer:24s} {row.mode:5s} {row.shape} {row.layout}: {row.speedup:.2f}x")
    print(f"\n{table(rows)}")
    if args.json:
        result = {"machine": machine(), "rows": [asdict(r) for r in rows]}
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
