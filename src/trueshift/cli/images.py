"""Images as an argument of commands: a folder, or built-in pictures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor


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
    add("--images", type=Path, metavar="DIR", help="folder of images (built-in pictures)")
    add("--num-images", type=int, default=default, metavar="N", help=f"how many ({num})")
    add("--size", type=int, metavar="PX", help=f"resize and crop to this ({size})")
    add("--mean", type=float, nargs="+", metavar="M", help="mean per channel to subtract")
    add("--std", type=float, nargs="+", metavar="S", help="deviation per channel to divide by")


def read_images(folder: Path | None, num: int, size: int | None, seed: int) -> list[Tensor]:
    """Return uint8 pictures ``(3, H, W)``.

    Args:
        folder: Where they are; ``None`` draws the built-in ones.
        num: How many.
        size: What to resize and crop to; built-in ones have 32 pixels without it.
        seed: Seed of the built-in ones.
    """
    if folder is not None:
        from trueshift.audit.folder import read_pictures

        return read_pictures(folder, size, num)
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
