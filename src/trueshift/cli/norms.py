"""``trueshift norms``: what learned selectors do that the largest norm would not."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from pathlib import Path

from trueshift.cli.networks import load_network
from trueshift.cli.runs import data_of
from trueshift.report.norms import compare_with_norms


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.description = (
        "Replace every learned selector of a trained classifier by that of APS and see how much"
        " accuracy falls; and count how often the learned choice is the component of the largest"
        " norm. On the test data of the run."
    )
    parser.add_argument("checkpoint", type=Path, metavar="CKPT", help=".ckpt in a run folder")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N batches")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers")


def run(args: argparse.Namespace) -> int:
    """Compare and print."""
    network = load_network(str(args.checkpoint)).model
    kind, arguments = data_of(args.checkpoint)
    data = kind(**arguments)
    data.setup("test")
    result = compare_with_norms(network, itertools.islice(data.test_dataloader(), args.limit))
    print(f"{result.num_images} images")
    print(f"accuracy {result.accuracy:.2%}, with the selectors of APS {result.norm_accuracy:.2%}")
    for name, share in result.same_choice.items():
        print(f"{name}: the kept component has the largest norm in {share:.2%} of images")
    print(f"over all layers: {result.mean_same_choice:.2%}")
    if args.json is not None:
        args.json.write_text(json.dumps(dataclasses.asdict(result), indent=2) + "\n")
    return 0
