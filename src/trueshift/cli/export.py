"""``trueshift export``: write a network for other runtimes, and check that it computes the same."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from trueshift.cli.networks import NETWORK_HELP, Loaded, load_network
from trueshift.cli.options import add_conversion, check_conversion, converted
from trueshift.export import DYNAMIC, FORMATS, Check, Exported, check, export
from trueshift.export.check import Exactness

RUNTIMES = {"onnx": "onnxruntime", "pt2": "exported program"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.description = (
        "Write a network as an ONNX file or as an exported program of torch (pt2). The file is"
        " compared with torch at several batches and sizes, and tested on shifted images. The exit"
        " code is 1 if the file computes something different from torch."
    )
    add = parser.add_argument
    add("network", metavar="NETWORK", help=NETWORK_HELP.replace(", .onnx", ""))
    add("--out", type=Path, required=True, metavar="FILE", help="file to write: .onnx or .pt2")
    add("--format", choices=FORMATS, help="file format (default: from the suffix of FILE)")
    add("--weights", type=Path, metavar="FILE", help="state dict of NETWORK (.pth, .safetensors)")
    add_conversion(parser, "make it shift-invariant first")
    add(
        "--size",
        type=int,
        metavar="PX",
        help="size of the example image (default: the network's, or 224)",
    )
    add("--batch", type=int, default=2, metavar="B", help="images in the example (default: 2)")
    add(
        "--dynamic",
        default=",".join(DYNAMIC),
        metavar="WHAT",
        help="what may change from call to call: batch, size, both or none (default: batch,size)",
    )
    add("--repeats", type=int, default=5, metavar="N", help="timed runs (default: 5)")
    add("--force", action="store_true", help="overwrite FILE if it exists")


def run(args: argparse.Namespace) -> int:
    """Export, check, print; 1 if the file does not compute what torch does."""
    form = args.format or args.out.suffix.removeprefix(".")
    if args.out.exists() and not args.force:  # before any work is done
        raise FileExistsError(f"{args.out} exists. Pass --force to replace it.")
    loaded = _load(args)
    example = _example(args, loaded)
    model = converted(args, loaded, example).model if args.convert else loaded.model
    dynamic = [] if args.dynamic == "none" else args.dynamic.split(",")

    def progress(stage: str) -> None:
        print(f"{loaded.name}: {stage}", file=sys.stderr, flush=True)

    exported = export(model, example, args.out, form, dynamic, force=args.force, progress=progress)
    progress("comparing with torch")
    result = check(model, exported, example, repeats=args.repeats)
    print("\n".join(_lines(exported, result, args.repeats)))
    return 0 if result.agrees else 1


def _load(args: argparse.Namespace) -> Loaded:
    if Path(args.network).suffix == ".onnx":
        raise ValueError(f"{args.network} is an ONNX file already.")
    check_conversion(args)
    return load_network(args.network, args.weights)


def _example(args: argparse.Namespace, loaded: Loaded) -> torch.Tensor:
    if args.batch < 1 or (args.size is not None and args.size < 1):
        raise ValueError("--batch and --size must be positive.")
    dim = getattr(getattr(loaded.model, "spec", None), "dim", 2)
    size = args.size or loaded.size or 224
    generator = torch.Generator().manual_seed(0)
    return torch.randn(args.batch, loaded.channels or 3, *[size] * dim, generator=generator)


def _lines(exported: Exported, result: Check, repeats: int) -> list[str]:
    runtime = RUNTIMES[exported.form]
    worst = max(result.differences.values())
    shapes = ", ".join(_times(shape) for shape in result.differences)
    verdict = "agrees with torch" if result.agrees else "DIFFERS from torch"
    speed = result.torch_ms / result.ms
    return [
        f"wrote {exported.path}: {result.size_mb:.1f} MB, {_takes(exported)}",
        f"{runtime} {verdict}: largest difference {worst:.1e} of the largest output, at {shapes}",
        f"shifted images, torch: {_exactness(result.torch_exactness)}",
        f"shifted images, {runtime}: {_exactness(result.exactness)}",
        f"speed at {_times(result.timed_shape)}: torch {result.torch_ms:.1f} ms, {runtime}"
        f" {result.ms:.1f} ms ({speed:.2f}x as fast), medians of {repeats} interleaved runs",
    ]


def _takes(exported: Exported) -> str:
    low, high = exported.batch
    batch = (
        "any batch" if high is None else f"batch {low}" if low == high else f"batch {low}-{high}"
    )
    sizes = []
    for (smallest, largest), multiple in zip(exported.sizes, exported.multiples, strict=True):
        steps = f" in steps of {multiple}" if multiple > 1 else ""
        fixed = smallest == largest
        sizes.append(f"{smallest}" if fixed else f"{smallest} to {largest}{steps}")
    return f"{batch}, size " + " x ".join(dict.fromkeys(sizes) if len(set(sizes)) == 1 else sizes)


def _exactness(result: Exactness | None) -> str:
    if result is None:
        return "not compared, outputs are neither scores nor maps of the input's size"
    text = f"{result.equal} of {result.total} shifts equal bit by bit"
    return text if result.equal == result.total else f"{text}, largest change {result.largest:.1e}"


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
