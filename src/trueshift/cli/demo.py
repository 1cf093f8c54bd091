"""``trueshift demo``: drag an image in the browser and see what networks say."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

import torch
from torch.nn import functional as F

from trueshift.cli.demo_server import Demo, Shown, serve
from trueshift.cli.networks import NETWORK_HELP, load_network
from trueshift.cli.options import add_images, read_images
from trueshift.data import IMAGENET_MEAN, IMAGENET_STD, SHAPE_NAMES, Shapes
from trueshift.quickstart.scenes import PICTURES


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.description = (
        "Open a local page on which you drag an image and see what networks answer. The image wraps"
        " around, or a frame moves over it. You can drop a photo of your own on the page. Without"
        " NETWORK, the networks of the newest quickstart are shown."
    )
    add = parser.add_argument
    add("networks", nargs="*", metavar="NETWORK", help=f"one or more: {NETWORK_HELP}")
    add(
        "--weights",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="state dict of each NETWORK, in the same order",
    )
    add_images(parser, "12", 12, "the network's, or 32")
    add(
        "--runs",
        type=Path,
        default=Path("runs"),
        help="folder with the quickstart's results (default: runs)",
    )
    add(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1, this machine only)",
    )
    add("--port", type=int, default=8000, help="port; 0 takes any that is free (default: 8000)")
    add("--no-browser", action="store_true", help="print the address and open no browser")


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    server = serve(build(args), args.host, args.port)
    address = f"http://{args.host}:{server.server_address[1]}/"
    print(f"open {address} in a browser; stop with Ctrl-C", flush=True)
    if not args.no_browser:
        webbrowser.open(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("\nstopped")
    finally:
        server.server_close()
    return 0


def build(args: argparse.Namespace) -> Demo:
    """Load the networks and the pictures."""
    if (args.mean is None) != (args.std is None):
        raise ValueError("pass both --mean and --std, or neither.")
    names = args.networks or newest_quickstart(args.runs)
    weights = args.weights or [None] * len(names)
    if len(weights) != len(names):
        raise ValueError(f"--weights: pass one file per network, got {len(weights)}.")
    loaded = [load_network(name, file) for name, file in zip(names, weights, strict=True)]
    default = (Shapes.mean, Shapes.std) if args.images is None else (IMAGENET_MEAN, IMAGENET_STD)
    titles = args.networks or [row.title for row in PICTURES.values()]
    mean, std = args.mean, args.std
    shown = [
        Shown(title, one.model, mean or one.mean or default[0], std or one.std or default[1])
        for title, one in zip(titles, loaded, strict=True)
    ]
    size = args.size or loaded[0].size or (32 if args.images is None else 224)
    classes = SHAPE_NAMES if not args.networks else loaded[0].class_names
    return Demo(shown, _pictures(args.images, args.num_images, size), (size, size), classes)


def _pictures(folder: Path | None, num: int, size: int) -> torch.Tensor:
    """Return pictures with a margin of a quarter, so that a frame of ``size`` can move."""
    margin = size // 4
    if folder is not None:
        return torch.stack(read_images(folder, num, size + 2 * margin, seed=0))
    drawn = torch.stack(read_images(None, num, size, seed=1_000))
    return F.pad(drawn.float(), [margin] * 4, mode="reflect").to(torch.uint8)


def newest_quickstart(runs: Path) -> list[str]:
    """Return the files of the networks, of the first seed, of the newest finished quickstart."""
    files = [f"pictures/{name}_seed0/network.safetensors" for name in PICTURES]
    folders = [p for p in (runs / "quickstart").glob("*") if all((p / f).is_file() for f in files)]
    if not folders:
        raise FileNotFoundError(
            f"no finished quickstart in {runs / 'quickstart'}. Run `trueshift quickstart` first, or"
            " name networks."
        )
    newest = max(folders, key=lambda folder: folder.stat().st_mtime)
    return [str(newest / file) for file in files]
