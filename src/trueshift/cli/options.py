"""Options that several commands share: images, and conversion."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import Tensor

from trueshift.cli.networks import Loaded
from trueshift.layers.selectors import METHODS
from trueshift.layers.spec import SELECT_FROM

CYLINDERS = {"keep,circular": "horizontal", "circular,keep": "vertical"}  # and what wraps


def positive(text: str) -> int:
    """Read a number that must be at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def add_images(
    parser: argparse._ActionsContainer, num: str, default: int | None, size: str
) -> None:
    """Add the options that name images.

    Args:
        parser: Where to add them.
        num: How many there are without ``--num-images``, in words.
        default: The same as a number.
        size: Their size without ``--size``, in words.
    """
    add = parser.add_argument
    add("--images", type=Path, metavar="DIR", help="folder of images (default: built-in pictures)")
    add(
        "--num-images",
        type=positive,
        default=default,
        metavar="N",
        help=f"how many images (default: {num})",
    )
    add(
        "--size",
        type=positive,
        metavar="PX",
        help=f"resize and crop images to PX (default: {size})",
    )
    add("--mean", type=float, nargs="+", metavar="M", help="mean of each channel, to subtract")
    add(
        "--std",
        type=float,
        nargs="+",
        metavar="S",
        help="standard deviation of each channel, to divide by",
    )


def read_images(
    folder: Path | None,
    num: int,
    size: int | None,
    seed: int,
    names: Sequence[str] | None = None,
) -> list[Tensor]:
    """Return uint8 pictures ``(3, H, W)``.

    Args:
        folder: Where they are; ``None`` draws the built-in ones.
        num: How many.
        size: What to resize and crop to; built-in ones have 32 pixels without it.
        seed: Seed of the built-in ones.
        names: Names of files in the folder, without suffix, in place of ``num``.
    """
    if folder is not None:
        from trueshift.audit.images import picture_paths, read_picture

        return [read_picture(path, size) for path in picture_paths(folder, num, names)]
    if names is not None:
        raise ValueError("--pick chooses images from a folder: pass --images DIR too.")
    from trueshift.data import make_shapes

    size = size or 32
    print(f"no --images given: using {num} built-in pictures of {size} px", file=sys.stderr)
    return list(make_shapes(num, size, seed=seed)[0])


def per_channel(option: str, values: Iterable[float], channels: int) -> tuple[float, ...]:
    """Return one value for each channel: as given, one for all, or the mean if grey."""
    values = tuple(float(v) for v in values)
    if len(values) == channels:
        return values
    if channels == 1 and len(values) == 3:
        return (sum(values) / 3,)
    if len(values) == 1:
        return values * channels
    raise ValueError(f"{option} takes 1 or {channels} values, got {len(values)}.")


def add_conversion(parser: argparse._ActionsContainer, purpose: str) -> None:
    """Add ``--convert`` and what goes with it."""
    add = parser.add_argument
    add("--convert", choices=METHODS, help=f"{purpose} (stride needs --padding seam)")
    add(
        "--select-from",
        choices=SELECT_FROM,
        help="select phases from the output or the input of operations (default: output)",
    )
    add(
        "--positions",
        choices=["refuse", "canonical"],
        help="what --convert does where a network distinguishes positions, as position embeddings"
        " do: refuse, or count them from an origin that the content chooses (default: refuse)",
    )
    add(
        "--padding",
        choices=["circular", "seam", *CYLINDERS],
        metavar="MODE",
        help="borders of the converted network: circular; keep,circular (circular only"
        " horizontally); circular,keep (only vertically); or seam: keep the network's own borders"
        " and undo circular shifts of the input, no help with a moving camera (default: circular)",
    )


def check_conversion(args: argparse.Namespace) -> None:
    """Raise if the options do not go together."""
    for option in ("select_from", "positions", "padding"):
        if getattr(args, option) and not args.convert:
            raise ValueError(
                f"--{option.replace('_', '-')} changes how --convert works: pass --convert too."
            )
    if args.convert == "stride" and args.select_from:
        raise ValueError("--convert stride chooses no phases: leave out --select-from.")
    if args.convert == "stride" and args.padding != "seam":
        raise ValueError("--convert stride is shift-invariant only with --padding seam: pass both.")


# What the advice of a refused conversion is called on the command line.
_OPTIONS = {
    "flatten='canonical'": "--positions canonical",
    "positions='canonical'": "--positions canonical",
    "padding='seam'": "--padding seam",
}


def converted(args: argparse.Namespace, loaded: Loaded, example: Tensor) -> Loaded:
    """Return the network that the options ask for."""
    from trueshift.convert import ConversionError, convert

    given = args.padding or "circular"
    padding = tuple(given.split(",")) if given in CYLINDERS else given
    try:
        model = convert(
            loaded.model,
            args.convert,
            example,
            select_from=args.select_from,
            positions=args.positions or "refuse",
            padding=padding,
        )
    except ConversionError as error:  # its advice is for Python
        advice = str(error)
        for argument, option in _OPTIONS.items():
            advice = advice.replace(argument, option)
        raise ValueError(advice) from error
    how = args.convert if given == "circular" else f"{args.convert}, {given}"
    return loaded._replace(model=model.eval(), name=f"{loaded.name}, converted ({how})")
