"""Measure networks of other libraries before and after conversion.

``python -m benchmarks.conversions`` converts every network, with random weights, to APS with
``select_from="input"``, which keeps its FLOPs, and times it in turn with the original: medians of a
batch, in both memory layouts.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
from pathlib import Path

import torch
from torch import nn

import trueshift as ts
from trueshift._torchvision import import_torchvision
from trueshift.bench.meters import machine, medians
from trueshift.report.tables import markdown_table

NETWORKS = (
    "torchvision.resnet18",
    "torchvision.resnet50",
    "torchvision.mobilenet_v2",
    "torchvision.mobilenet_v3_small",
    "torchvision.efficientnet_b0",
    "torchvision.densenet121",
    "torchvision.convnext_tiny",
    "torchvision.regnet_y_400mf",
    "torchvision.shufflenet_v2_x1_0",
    "torchvision.squeezenet1_1",
    "timm.mobilenetv4_hybrid_medium",
    "timm.hrnet_w18_small",
    "timm.ghostnet_100",
    "segmentation_models_pytorch.Unet",
    "segmentation_models_pytorch.FPN",
)
LAYOUTS = {"default": torch.contiguous_format, "channels_last": torch.channels_last}


def build(name: str) -> nn.Module:
    """Build a network of another library, named ``library.network``, with random weights."""
    import_torchvision()
    library, own = name.split(".")
    package = importlib.import_module(library)
    model: nn.Module
    if library == "timm":
        model = package.create_model(own)
    elif library == "torchvision":
        model = importlib.import_module("torchvision.models").get_model(own)
    else:
        model = getattr(package, own)("resnet18", encoder_weights=None)
    return model.eval()


def measure(name: str, batch: int, size: int, repeats: int) -> dict[str, dict[str, float]]:
    """Return milliseconds of the original and the converted network, by layout."""
    torch.manual_seed(0)
    model, images = build(name), torch.randn(batch, 3, size, size)
    new = ts.convert(model, ts.Sampling("aps", select_from="input"), images[:1], verify=False)
    times = {}
    for layout, memory_format in LAYOUTS.items():
        x = images.contiguous(memory_format=memory_format)
        nets = {"original": model, "converted": new}
        calls = {
            key: functools.partial(net.to(memory_format=memory_format), x)
            for key, net in nets.items()
        }
        with torch.inference_mode():
            times[layout] = medians(calls, repeats)
    return times


def table(rows: dict[str, dict[str, dict[str, float]]]) -> str:
    """Render what was measured as a markdown table."""
    heads = ["Network", "Original, ms", "Converted, ms", "Ratio", "Ratio, channels last"]
    body = []
    for name, times in rows.items():
        milliseconds = [f"{times['default'][key]:.0f}" for key in ("original", "converted")]
        ratios = [f"{times[key]['converted'] / times[key]['original']:.2f}" for key in LAYOUTS]
        body.append([name.split(".")[1], *milliseconds, *ratios])
    return markdown_table(heads, body)


def main() -> None:
    """Measure, print markdown, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=NETWORKS, help="library.network")
    parser.add_argument("--batch", type=int, default=8, help="images per call")
    parser.add_argument("--size", type=int, default=224, help="pixels of both axes")
    parser.add_argument("--repeats", type=int, default=7, help="runs to take the median of")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    args = parser.parse_args()
    rows = {}
    for name in args.networks:
        rows[name] = measure(name, args.batch, args.size, args.repeats)
        print(name, rows[name], flush=True)
    print(f"\n{table(rows)}")
    if args.json:
        setting = {"batch": args.batch, "size": args.size, "repeats": args.repeats}
        result = {"machine": machine(), **setting, "milliseconds": rows}
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
