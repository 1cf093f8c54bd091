"""``trueshift recipes``: the recipes that come with the package."""

from __future__ import annotations

import argparse
import fnmatch
import shutil
from pathlib import Path

_PACKAGED = Path(__file__).parents[1] / "recipes"  # in a wheel
_REPOSITORY = Path(__file__).parents[3] / "recipes"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.description = (
        "List the recipes that come with trueshift, or copy them to a folder to edit them."
    )
    parser.add_argument(
        "pattern", nargs="?", default="", help="part of a name, for instance cifar10/fast"
    )
    parser.add_argument("--copy", type=Path, metavar="DIR", help="copy the listed recipes into DIR")


def run(args: argparse.Namespace) -> int:
    """Print the names; copy the files if asked."""
    root = recipes_folder()
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.yaml"))
    matching = fnmatch.filter(names, f"*{args.pattern}*")
    if not matching:
        raise FileNotFoundError(f"no recipe matches {args.pattern!r}. Leave it out to list all.")
    for name in matching:
        title = (root / name).read_text().partition("\n")[0].removeprefix("# ")
        print(f"{name}  {title}")
        if args.copy is not None:
            _copy(root / name, args.copy / name)
    return 0


def recipes_folder() -> Path:
    """Return where the recipes are: in the installed package or in the repository."""
    for folder in (_PACKAGED, _REPOSITORY):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"no recipes in {_PACKAGED}: install the package again.")


def _copy(path: Path, target: Path) -> None:
    if target.exists():
        raise FileExistsError(f"{target} exists. Remove it, or copy to another folder.")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)
