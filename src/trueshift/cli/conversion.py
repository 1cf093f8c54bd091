"""Conversion as an option of commands that take a network."""

from __future__ import annotations

import argparse

from torch import Tensor

from trueshift.cli.networks import Loaded
from trueshift.layers.selectors import METHODS
from trueshift.layers.spec import SELECT_FROM


def add_conversion(parser: argparse._ActionsContainer, purpose: str) -> None:
    """Add ``--convert`` and what goes with it."""
    add = parser.add_argument
    add("--convert", choices=METHODS, help=f"{purpose} (stride: with --padding seam only)")
    add("--select-from", choices=SELECT_FROM, help="where --convert chooses phases (output)")
    add(
        "--padding",
        choices=["circular", "seam"],
        help="borders of the converted network: circular, or its own, counted from where the ends"
        " of a picture meet (circular)",
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

    padding = args.padding or "circular"
    model = convert(
        loaded.model, args.convert, example, select_from=args.select_from, padding=padding
    )
    how = args.convert if padding == "circular" else f"{args.convert}, {padding}"
    return loaded._replace(model=model.eval(), name=f"{loaded.name}, converted ({how})")
