"""Conversion as an option of commands that take a network."""

from __future__ import annotations

import argparse

from torch import Tensor

from trueshift.cli.networks import Loaded
from trueshift.layers.selectors import METHODS
from trueshift.layers.spec import SELECT_FROM

CYLINDERS = {"keep,circular": "horizontal", "circular,keep": "vertical"}  # and what wraps


def add_conversion(parser: argparse._ActionsContainer, purpose: str) -> None:
    """Add ``--convert`` and what goes with it."""
    add = parser.add_argument
    add("--convert", choices=METHODS, help=f"{purpose} (stride: with --padding seam only)")
    add("--select-from", choices=SELECT_FROM, help="where --convert chooses phases (output)")
    add(
        "--padding",
        choices=["circular", "seam", *CYLINDERS],
        help="borders of the converted network: circular, or its own, counted from where the ends"
        " of a picture meet, or its own vertically and circular horizontally, or the other way"
        " round (circular)",
    )


def check_conversion(args: argparse.Namespace) -> None:
    """Raise if the options do not go together."""
    for option in ("select_from", "padding"):
        if getattr(args, option) and not args.convert:
            raise ValueError(
                f"--{option.replace('_', '-')} says how --convert works: pass --convert too."
            )
    if args.convert == "stride" and args.select_from:
        raise ValueError("--convert stride chooses no phases: leave out --select-from.")
    if args.convert == "stride" and args.padding != "seam":
        raise ValueError("--convert stride is shift-invariant with --padding seam only: pass both.")


def converted(args: argparse.Namespace, loaded: Loaded, example: Tensor) -> Loaded:
    """Return the network that the options ask for."""
    from trueshift.convert import convert

    given = args.padding or "circular"
    padding = tuple(given.split(",")) if given in CYLINDERS else given
    model = convert(
        loaded.model, args.convert, example, select_from=args.select_from, padding=padding
    )
    how = args.convert if given == "circular" else f"{args.convert}, {given}"
    return loaded._replace(model=model.eval(), name=f"{loaded.name}, converted ({how})")
