"""``trueshift audit``: see how much a network changes when its input moves."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trueshift._files import check_parent
from trueshift.anchor import anchor
from trueshift.audit.images import FolderImages
from trueshift.audit.measure import KINDS, audit
from trueshift.audit.predictor import Predictor, in_eval_mode
from trueshift.audit.results import AuditResult
from trueshift.audit.shifting import DISTANCES
from trueshift.cli.networks import NETWORK_HELP, Loaded, load_network
from trueshift.cli.options import (
    CYLINDERS,
    add_conversion,
    add_images,
    check_conversion,
    converted,
    per_channel,
)
from trueshift.cli.progress import Progress
from trueshift.data import IMAGENET_MEAN, IMAGENET_STD
from trueshift.report.html import summary_lines, verdict, write_html
from trueshift.report.words import difference_rows

BUILT_IN_IMAGES, CIRCULAR_SHIFTS = 20, 256
ROOM = 32  # pixels of a frame beyond the anchored window
WRAPS = {"both": (True, True), "horizontal": (False, True), "vertical": (True, False)}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.description = (
        "Shift images and measure how often and how much a network changes its answer, and which"
        " of its layers is the first to depend on the shift. The exit code is 1 if the consistency"
        " is below --fail-under."
    )
    add = parser.add_argument
    add("network", metavar="NETWORK", help=NETWORK_HELP)
    add("--weights", type=Path, metavar="FILE", help="state dict of NETWORK (.pth, .safetensors)")
    add(
        "--output",
        metavar="KEY",
        help="key or index of the logits if the network returns a dict or a tuple",
    )
    add("--against", metavar="NETWORK", help="a second network to compare with, on the same images")
    add("--against-weights", type=Path, metavar="FILE", help="state dict of the second network")
    add_conversion(parser, "compare with the same network after trueshift.convert")
    data = parser.add_argument_group("images")
    add_images(
        data, f"all, or {BUILT_IN_IMAGES} built-in ones", None, "the network's, or no change"
    )
    data.add_argument(
        "--labels",
        action="store_true",
        help="also measure accuracy. Labels are the sub-folders of DIR: their names if all are"
        " numbers, else their position in alphabetical order. The built-in pictures have labels"
        " too",
    )
    shifts = parser.add_argument_group("shifts")
    add = shifts.add_argument
    add(
        "--shifts",
        metavar="N|all",
        help="how many random shifts, or all (default: 256 circular ones; standard ones by 1, 2,"
        " 4, 8, 16 and 32 px along both axes, and by one pixel in all directions)",
    )
    add(
        "--kind",
        choices=KINDS,
        default="circular",
        help="standard: a frame moves over a photo, as a camera does; circular: what leaves"
        " on one side comes back on the other",
    )
    add(
        "--window",
        type=int,
        metavar="PX",
        help="size of the frame of standard shifts (default: 3/4 of an image)",
    )
    add(
        "--anchor",
        type=int,
        metavar="PX",
        help="compare the centre of every frame with a window that the content chooses"
        " (trueshift.anchor), for --kind standard",
    )
    add("--anchors", type=int, metavar="K", help="windows to average over (default: 1)")
    add(
        "--wraps",
        choices=WRAPS,
        help="axes of circular shifts (default: those that wrap in the network, else both)",
    )
    add("--seed", type=int, default=0, help="seed of random shifts (default: 0)")
    out = parser.add_argument_group("results")
    add = out.add_argument
    add("--html", type=Path, metavar="FILE", help="write a report to open in a browser")
    add("--json", type=Path, metavar="FILE", help="write all numbers to FILE")
    add(
        "--fail-under",
        type=float,
        metavar="X",
        help="exit with code 1 if the consistency is below X (0 to 1)",
    )
    add(
        "--no-layers",
        action="store_true",
        help="skip the measurement of every layer, which takes time",
    )
    add("--batch-size", type=int, default=64, metavar="N", help="images per call (default: 64)")
    add("--device", default="cpu", help="cpu, cuda, ... (default: cpu)")


def run(args: argparse.Namespace) -> int:
    """Audit, print, write the reports; 1 if the network does not pass."""
    _check(args)
    loaded = load_network(args.network, args.weights)
    _frame(args, loaded)
    data = _images(args, loaded)
    second = None
    if args.anchor is not None:
        loaded, second = (_anchored(args, loaded, centre) for centre in (True, False))
    elif args.against:
        loaded, second = _named(args, loaded, load_network(args.against, args.against_weights))
    try:
        result = _audit(args, loaded, data)
        other = _other(args, loaded, data, result, second)
    except MemoryError as error:
        raise ValueError(f"{error} Pass a smaller --batch-size.") from error
    for one in (result, other) if other is not None else (result,):
        print(f"\n{verdict(one)}")
        print("\n".join(summary_lines(one)))
    if other is not None and (rows := difference_rows(result, other)):
        width = max(len(name) for name, _ in rows)
        print(f"\n{other.name} minus {result.name}, on the same pictures:")
        print("\n".join(f"  {name:{width}}  {value}" for name, value in rows))
    if args.json is not None:
        print(f"\nnumbers: {result.to_json(args.json, other)}")
    if args.html is not None:
        print(f"report: {write_html(result, args.html, other)}")
    if args.fail_under is not None and result.consistency < args.fail_under:
        print(
            f"FAILED: consistency {result.consistency:.4f} is below {args.fail_under}.",
            file=sys.stderr,
        )
        return 1
    return 0


class _Data(NamedTuple):
    """Images, labels and what to say of them."""

    images: Any
    labels: Tensor | None
    class_names: tuple[str, ...] | None
    origin: str


def _check(args: argparse.Namespace) -> None:
    if args.fail_under is not None and not 0 <= args.fail_under <= 1:
        raise ValueError(f"--fail-under must be a fraction from 0 to 1, got {args.fail_under}.")
    check_conversion(args)
    args.wraps = args.wraps or CYLINDERS.get(args.padding)  # for both networks
    if sum(one is not None for one in (args.convert, args.against, args.anchor)) > 1:
        raise ValueError(
            "--convert, --against and --anchor each name a second network. Pass only one of them."
        )
    if args.anchor is not None and args.kind != "standard":
        raise ValueError("--anchor is for frames that move: pass --kind standard.")
    if args.anchor is None and args.anchors is not None:
        raise ValueError("--anchors is a number of windows: pass their size with --anchor PX.")
    if args.against_weights and not args.against:
        raise ValueError("--against-weights needs --against NETWORK.")
    for path in (args.html, args.json):
        check_parent(path)
    try:
        torch.zeros(1, device=args.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"--device {args.device} is not available: {reason}") from error


def _audit(args: argparse.Namespace, loaded: Loaded, data: _Data, examples: Any = 4) -> AuditResult:
    model = loaded.model.to(args.device)
    with Progress(loaded.name) as progress:
        return audit(
            model,
            data.images,
            data.labels,
            _shifts(args.shifts, args.kind),
            args.kind,
            args.output,
            args.batch_size,
            lambda done, total: progress(
                loaded.name, done / total, f"{done} of {total} shifted images"
            ),
            window=args.window,
            examples=examples,
            layers=not args.no_layers,
            seed=args.seed,
            wraps=WRAPS.get(args.wraps),
            name=loaded.name,
            class_names=data.class_names,
            images_from=data.origin,
        )


def _frame(args: argparse.Namespace, loaded: Loaded) -> None:
    """Choose sizes of standard shifts: pictures in which a frame can move by 32 pixels."""
    if args.kind == "standard" and args.size is None and loaded.size is not None:
        inside = loaded.size if args.anchor is None else args.anchor + ROOM
        args.window = args.window or inside
        args.size = args.window + 2 * max(DISTANCES)


def _anchored(args: argparse.Namespace, loaded: Loaded, centre: bool) -> Loaded:
    """Let the network see anchored windows of a frame or, to compare with, its centre."""
    size = loaded.size if loaded.size not in (None, args.anchor) else None
    flat = lambda frames: torch.zeros_like(frames[:, 0])  # noqa: E731  # keeps the centre
    anchors = 1 if centre or args.anchors is None else args.anchors
    score, name = (flat, "centre") if centre else (None, f"anchored x {anchors}")
    model = anchor(loaded.model, args.anchor, size=size, anchors=anchors, score=score)
    return loaded._replace(model=model.eval(), name=f"{loaded.name}, {name}")


def _named(args: argparse.Namespace, first: Loaded, second: Loaded) -> tuple[Loaded, Loaded]:
    """Give networks of the same name different ones: by their folders, or by their weights."""
    if first.name != second.name:
        return first, second
    if args.network != args.against:
        a, b = _different_ends(args.network, args.against)
    else:
        a, b = (
            f"{first.name} ({end})"
            for end in _different_ends(str(args.weights), str(args.against_weights))
        )
    return first._replace(name=a), second._replace(name=b)


def _different_ends(first: str, second: str) -> tuple[str, str]:
    """Return the ends of two paths, as short as possible, that differ.

    Examples:
        >>> _different_ends("runs/a/0/net.safetensors", "runs/b/0/net.safetensors")
        ('a/0/net.safetensors', 'b/0/net.safetensors')
    """
    a, b = Path(first).parts, Path(second).parts
    longest = max(len(a), len(b))
    size = next((n for n in range(1, longest) if a[-n:] != b[-n:]), longest)
    return "/".join(a[-size:]), "/".join(b[-size:])


def _other(
    args: argparse.Namespace,
    loaded: Loaded,
    data: _Data,
    result: AuditResult,
    second: Loaded | None,
) -> AuditResult | None:
    if second is None and not args.convert:
        return None
    if second is None:
        first = data.images[0]
        example = (first[0] if isinstance(first, tuple) else first)[None].to(args.device)
        second = converted(args, loaded, example)
    return _audit(args, second, data, [example.index for example in result.examples])


def _images(args: argparse.Namespace, loaded: Loaded) -> _Data:
    channels = loaded.channels or 3
    if channels not in (1, 3):
        raise ValueError(
            f"{loaded.name} takes {channels} channels; images have 3, or 1 if grey. Use"
            " trueshift.audit from Python with your own tensors."
        )
    if args.images is None:
        return _built_in(args, loaded, channels)
    mean, std = loaded.mean or IMAGENET_MEAN, loaded.std or IMAGENET_STD
    size = args.size or loaded.size
    images = FolderImages(
        args.images,
        size,
        per_channel("--mean", args.mean or mean, channels),
        per_channel("--std", args.std or std, channels),
        args.num_images,
        args.labels,
    )
    origin = f"{len(images)} images of {args.images}"
    return _Data(images, None, images.class_names or loaded.class_names, origin)


def _built_in(args: argparse.Namespace, loaded: Loaded, channels: int) -> _Data:
    from trueshift.data import SHAPE_NAMES, Shapes, make_shapes

    size, num = args.size or loaded.size or 32, args.num_images or BUILT_IN_IMAGES
    print(f"no --images given: using {num} built-in pictures of {size} px", file=sys.stderr)
    pictures, labels, masks = make_shapes(num, size, seed=2)
    images = pictures.float() / 255
    images = images if channels == 3 else images.mean(1, keepdim=True)
    mean = per_channel("--mean", args.mean or Shapes.mean, channels)
    std = per_channel("--std", args.std or Shapes.std, channels)
    images = (images - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    origin = f"{num} built-in pictures of textured shapes"
    if not args.labels:
        return _Data(images, None, loaded.class_names, origin)
    network = Predictor(loaded.model, args.output)
    with in_eval_mode(network.module):
        logits = network(images[:1])
    wanted = len(SHAPE_NAMES) + (logits.ndim == 4)
    if logits.shape[1] != wanted:
        raise ValueError(
            f"--labels: the built-in pictures have {wanted} classes, {loaded.name} has"
            f" {logits.shape[1]}. Leave out --labels, or pass --images DIR."
        )
    if logits.ndim == 4:
        return _Data(images, masks.long(), ("background", *SHAPE_NAMES), origin)
    return _Data(images, labels, SHAPE_NAMES, origin)


def _shifts(text: str | None, kind: str) -> str | int | None:
    if text is None:
        return None if kind == "standard" else CIRCULAR_SHIFTS
    if text == "all":
        return text
    if not text.isdigit():
        raise ValueError(f"--shifts must be a number or all, got {text!r}.")
    return int(text)
