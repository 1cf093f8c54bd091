"""``trueshift norms``: whether learned selectors choose, and what the largest norm would do."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trueshift.audit.selection import diagnose_selectors
from trueshift.cli.networks import load_network
from trueshift.cli.progress import Progress
from trueshift.cli.runs import data_of
from trueshift.report.words import selection_lines, selection_verdict


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.description = (
        "Check on the test data of a run whether its learned selectors have learned to choose: how"
        " far their logits exceed the noise of training, how often they keep the component of the"
        " largest norm, and how accurate the network is with its own choices, with those of APS,"
        " with random ones, and with outputs averaged over random ones."
    )
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CKPT", help=".ckpt in a run folder")
    add("--limit", type=int, metavar="N", help="only the first N batches")
    add(
        "--draws",
        type=int,
        default=4,
        metavar="N",
        help="random choices to average over (default: 4)",
    )
    add(
        "--phases",
        action="store_true",
        help="also average outputs over the phases of each layer (slow)",
    )
    add("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")


def run(args: argparse.Namespace) -> int:
    """Diagnose and print."""
    network = load_network(str(args.checkpoint)).model
    kind, arguments = data_of(args.checkpoint)
    data = kind(**arguments)
    data.setup("test")
    loader = data.test_dataloader()
    total = len(loader) if args.limit is None else min(args.limit, len(loader))
    with Progress("norms") as progress:

        def batches() -> Iterator[Any]:
            for done, batch in enumerate(itertools.islice(loader, total), 1):
                yield batch
                progress("norms", done / total, f"{done} of {total} batches")

        selection = diagnose_selectors(network, batches(), args.draws, phases=args.phases)
    accuracy = "" if selection.accuracy is None else f", accuracy {selection.accuracy:.2%}"
    print(f"{selection.num_images} images{accuracy}")
    print("\n".join(selection_lines(selection)))
    if args.json is not None:
        numbers = {
            "verdict": selection_verdict(selection),
            "mean": {
                name: selection.mean(name)
                for name in ("entropy", "gap", "agreement", "same_as_norm")
            },
            **dataclasses.asdict(selection),
        }
        args.json.write_text(json.dumps(numbers, indent=2) + "\n")
    return 0
