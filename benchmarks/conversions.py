"""Measure networks of other libraries before and after conversion.

``python -m benchmarks.conversions`` converts every network, with random weights, to APS with
``select_from="input"``, which keeps its FLOPs, and times it in turn with the original: medians of a
batch, in both memory layouts.

``python -m benchmarks.conversions --segmenters`` does so for segmenters with a MobileNetV2 encoder
and LPS or APS, both sides through ``ts.optimize``, and also times a training step.
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
from trueshift.memory import keep_memory
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
    "torchvision.swin_t",
    "torchvision.vit_b_16",
    "timm.mobilenetv4_hybrid_medium",
    "timm.hrnet_w18_small",
    "timm.ghostnet_100",
    "segmentation_models_pytorch.Unet",
    "segmentation_models_pytorch.FPN",
)
SEGMENTERS = (
    "segmentation_models_pytorch.DeepLabV3Plus",
    "segmentation_models_pytorch.Unet",
    "segmentation_models_pytorch.FPN",
    "segmentation_models_pytorch.Linknet",
    "segmentation_models_pytorch.PAN",
    "torchvision.lraspp_mobilenet_v3_large",
)
NARROW = {"DeepLabV3Plus": {"decoder_channels": 64}}
LAYOUTS = {"default": torch.contiguous_format, "channels_last": torch.channels_last}


def build(name: str, encoder: str = "resnet18") -> nn.Module:
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
        options = NARROW.get(own, {})
        model = getattr(package, own)(encoder, encoder_weights=None, classes=21, **options)
    return model.eval()


def measure(name: str, batch: int, size: int, repeats: int) -> dict[str, dict[str, float]]:
    """Return milliseconds of the original and the converted network, by layout."""
    torch.manual_seed(0)
    model, images = build(name), torch.randn(batch, 3, size, size)
    spec = ts.Sampling("aps", select_from="input")
    new = ts.convert(model, spec, images[:1], positions="canonical", verify=False)
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


def measure_segmenter(
    name: str, batch: int, size: int, repeats: int
) -> dict[str, dict[str, float]]:
    """Return milliseconds of the original and the converted network, in test and in training."""
    torch.manual_seed(0)
    model, images = build(name, "mobilenet_v2"), torch.randn(batch, 3, size, size)
    specs = {
        "LPS": ts.Sampling("lps", hidden="eighth", select_from="input"),
        "APS (random)": ts.Sampling("aps", select_from="input", train_rule="random"),
    }
    nets = {
        "original": model,
        **{k: ts.convert(model, s, images[:1], verify=False) for k, s in specs.items()},
    }
    with torch.inference_mode():
        fast = {key: ts.optimize(net, images) for key, net in nets.items()}
        test = medians({k: functools.partial(net, images) for k, net in fast.items()}, repeats)
    steps = {key: functools.partial(_step, net.train(), images) for key, net in nets.items()}
    times = {"test": test, "train": medians(steps, repeats)}
    return {
        f"{kind}, {key}": {"original": each["original"], "converted": each[key]}
        for kind, each in times.items()
        for key in specs
    }


def _step(net: nn.Module, images: torch.Tensor) -> None:
    output = net(images)
    logits = output["out"] if isinstance(output, dict) else output
    logits.square().mean().backward()
    net.zero_grad()


def table(rows: dict[str, dict[str, dict[str, float]]]) -> str:
    """Render what was measured as a markdown table."""
    kinds = list(next(iter(rows.values())))
    parts = [
        f"{part}, {kind}" for kind in kinds for part in ("original ms", "converted ms", "ratio")
    ]
    body = []
    for name, times in rows.items():
        cells = []
        for kind in kinds:
            before, after = times[kind]["original"], times[kind]["converted"]
            cells += [f"{before:.0f}", f"{after:.0f}", f"{after / before:.2f}"]
        body.append([name.split(".")[1], *cells])
    return markdown_table(["Network", *parts], body)


def main() -> None:
    """Measure, print markdown, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", help="library.network")
    parser.add_argument("--segmenters", action="store_true", help="segmenters, training too")
    parser.add_argument("--batch", type=int, default=8, help="images per call")
    parser.add_argument("--size", type=int, default=224, help="pixels of both axes")
    parser.add_argument("--repeats", type=int, default=7, help="runs to take the median of")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    args = parser.parse_args()
    keep_memory()  # as `trueshift fit` and `trueshift bench` do
    rows = {}
    run = measure_segmenter if args.segmenters else measure
    for name in args.networks or (SEGMENTERS if args.segmenters else NETWORKS):
        rows[name] = run(name, args.batch, args.size, args.repeats)
        print(name, rows[name], flush=True)
    print(f"\n{table(rows)}")
    if args.json:
        setting = {"batch": args.batch, "size": args.size, "repeats": args.repeats}
        result = {"machine": machine(), **setting, "milliseconds": rows}
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
