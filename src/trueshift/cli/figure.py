"""``trueshift figure``: the paper's pictures, for checkpoints and images of your own."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trueshift._files import check_parent
from trueshift.audit.masks import KINDS, common_multiple, masks_under_shift, shown_region
from trueshift.audit.probes import Seen, selecting_layers, watch_layer
from trueshift.cli.networks import Loaded, load_network
from trueshift.cli.options import add_images, per_channel, read_images
from trueshift.cli.runs import data_of
from trueshift.data import IMAGENET_MEAN, IMAGENET_STD
from trueshift.functional import polyphase_split
from trueshift.models.anysize import extend
from trueshift.report.figures import components_figure, filters_figure, qualitative_figure

IMAGENET = (IMAGENET_MEAN, IMAGENET_STD)
FILES = ".ckpt of a run, or .safetensors of trueshift.save"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    kinds = parser.add_subparsers(title="figures", metavar="FIGURE", required=True)
    two = _add(kinds, "segmentation", "masks of two networks, for images and for shifted images")
    two.add_argument("first", metavar="CKPT_A", help=FILES)
    two.add_argument("second", metavar="CKPT_B", help="the network to compare it with")
    two.add_argument("--names", nargs=2, metavar=("A", "B"), help="what to call the networks")
    shift: Any = {"nargs": 2, "type": int, "default": (3, 5), "metavar": ("DY", "DX")}
    two.add_argument("--shift", help="pixels down and to the right (default: 3 5)", **shift)
    two.add_argument(
        "--kind", choices=KINDS, default=KINDS[0], help="kind of shift (default: circular)"
    )
    add_images(two, "4", 4, "as they are")
    two.add_argument("--pick", nargs="+", metavar="NAME", help="names of the images to take")
    two.add_argument(
        "--masks",
        type=Path,
        metavar="DIR",
        help="folder of true masks, labels as PNG with the names of the images; drawn too",
    )
    one = _add(
        kinds,
        "components",
        "components at a layer: the kept one in blue, the one of the largest norm in red",
    )
    one.add_argument("first", metavar="CKPT", help=FILES)
    one.add_argument(
        "--layer", metavar="NAME", help="name of the down-sampling layer (default: the last one)"
    )
    add_images(one, "4", 4, "as they are")
    taps = _add(kinds, "filters", "first filters of a learned selector")
    taps.add_argument("first", metavar="CKPT", help=FILES)
    taps.add_argument(
        "--layer", metavar="NAME", help="name of the down-sampling layer (default: the last one)"
    )
    taps.add_argument("--channel", type=int, help="input channel to show (default: mean over all)")


def run(args: argparse.Namespace) -> int:
    """Draw one figure and say where it is."""
    check_parent(args.out)
    print(f"figure: {_DRAW[args.figure](args)}")
    return 0


def _add(kinds: Any, name: str, text: str) -> Any:
    parser = kinds.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.set_defaults(figure=name)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(f"{name}.png"),
        metavar="FILE",
        help=f"picture to write (default: {name}.png)",
    )
    return parser


class _Images(NamedTuple):
    """Normalised images ``(3, H, W)``, and the same to be drawn, uint8."""

    inputs: list[Tensor]
    pictures: list[Tensor]


def _segmentation(args: argparse.Namespace) -> Path:
    networks = [_load(name) for name in (args.first, args.second)]
    names = args.names or _names(args.first, args.second)
    if names[0] == names[1]:
        raise ValueError(f"both networks are called {names[0]!r}. Name them: --names A B.")
    images, shift = _images(args), (args.shift[0], args.shift[1])
    truth = _truth(args)
    multiple = common_multiple(*(one.model for one in networks))
    masks = {
        name: [masks_under_shift(one.model, x, shift, args.kind, multiple) for x in images.inputs]
        for name, one in zip(names, networks, strict=True)
    }
    shown = [shown_region(picture, shift, args.kind) for picture in images.pictures]
    for name, pairs in masks.items():
        share = sum(float(pair.changed.double().mean()) for pair in pairs) / len(pairs)
        print(f"{name}: {share:.2%} of pixels changed")
    seen = [shown_region(mask[None], shift, args.kind)[0] for mask in truth]
    return qualitative_figure(shown, masks, args.out, seen)


def _truth(args: argparse.Namespace) -> list[Tensor]:
    if args.masks is None:
        return []
    if args.images is None or args.size is not None:
        raise ValueError("--masks needs --images DIR of the same size: leave out --size.")
    from trueshift.audit.images import picture_paths, read_labels

    paths = picture_paths(args.images, args.num_images, args.pick)
    return [read_labels(args.masks / f"{path.stem}.png") for path in paths]


def _components(args: argparse.Namespace) -> Path:
    loaded, images = _load(args.first), _images(args)
    sizes = {tuple(x.shape) for x in images.inputs}
    if len(sizes) > 1:
        raise ValueError(f"images of several sizes {sorted(sizes)}: pass --size PX.")
    multiple = int(getattr(loaded.model, "required_multiple", 1))
    name, seen = watch_layer(loaded.model, args.layer, extend(torch.stack(images.inputs), multiple))
    same = float((seen.phase == _largest(seen)).double().mean())
    print(f"{name}: the kept component has the largest norm in {same:.0%} of images")
    return components_figure(seen.x, seen.phase, args.out, seen.stride)


def _filters(args: argparse.Namespace) -> Path:
    layers = {
        name: layer.selector
        for name, layer in selecting_layers(_load(args.first).model).items()
        if hasattr(layer.selector, "conv1")
    }
    name = args.layer or (list(layers)[-1] if layers else None)
    if name not in layers:
        known = ", ".join(layers) or "none, it is not a network of method lps"
        raise ValueError(f"no layer {name!r} with a learned selector. There are: {known}.")
    print(f"filters of {name}")
    return filters_figure(layers[name], args.out, args.channel)


_DRAW = {"segmentation": _segmentation, "components": _components, "filters": _filters}


def _load(name: str) -> Loaded:
    if Path(name).suffix not in (".ckpt", ".safetensors"):
        raise ValueError(f"{name} is not a checkpoint. Pass {FILES}.")
    return load_network(name)


def _names(first: str, second: str) -> list[str]:
    """Return the names of two networks without the words that both begin with."""
    words = [_name(path).split("_") for path in (first, second)]
    while min(map(len, words)) > 1 and words[0][0] == words[1][0]:
        words = [rest for _, *rest in words]
    return ["_".join(rest) for rest in words]


def _name(path: str) -> str:
    """Return the recipe's name for ``runs/voc/RECIPE/0/checkpoints/last.ckpt``, else the file's."""
    file = Path(path)
    named = file.parent.name == "checkpoints" and len(file.parts) > 3
    return file.parts[-4] if named else file.stem


def _largest(seen: Seen) -> Tensor:
    return polyphase_split(seen.x, seen.stride).flatten(2).norm(dim=2).argmax(1)


def _images(args: argparse.Namespace) -> _Images:
    mean, std = (args.mean, args.std) if args.mean and args.std else _normalisation(args.first)
    mean, std = (
        torch.tensor(per_channel(option, values, 3))[:, None, None]
        for option, values in (("--mean", mean), ("--std", std))
    )
    size = args.size or (64 if args.images is None else None)
    names = getattr(args, "pick", None)
    pictures = read_images(args.images, args.num_images, size, seed=3, names=names)
    return _Images([(x / 255 - mean) / std for x in pictures], pictures)


def _normalisation(checkpoint: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation of the data of a run, as its configuration says."""
    try:
        kind, _ = data_of(Path(checkpoint))
        return kind.mean, kind.std
    except (FileNotFoundError, ValueError, ImportError, AttributeError) as error:
        print(f"{error} Images are normalised as ImageNet's.", file=sys.stderr)
        return IMAGENET
