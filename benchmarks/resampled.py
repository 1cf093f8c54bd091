"""Exactness after training: a network trained as LPF, then given the choices of APS.

``python -m benchmarks.resampled RUN_FOLDER/checkpoints/last.ckpt ...`` prints a line of JSON per
checkpoint: accuracy on the test set of CIFAR-10 and on its images under one random circular shift
each, in percent, and the share of shifted images whose outputs keep their bits; for the network as
it was trained and for ``ts.models.resample(network, "aps")``.
"""

from __future__ import annotations

import argparse
import json

import torch
from torch import Tensor, nn

import trueshift as ts
from benchmarks.selection import images_of, percent
from trueshift.cli.networks import load_network
from trueshift.data.cifar10 import load_cifar10


@torch.inference_mode()
def scores(network: nn.Module, images: Tensor, labels: Tensor) -> dict[str, float]:
    """Return accuracy, accuracy on shifted images, and the share of equal outputs."""
    draw = torch.Generator().manual_seed(0)
    right, shifted, equal = [], [], []
    for part, target in zip(images.split(250), labels.split(250), strict=True):
        height, width = torch.randint(1, 32, (2,), generator=draw).tolist()
        outputs = network(images_of(part))
        moved = network(images_of(ts.shifts.circular_shift(part, height, width)))
        right.append(outputs.argmax(1) == target)
        shifted.append(moved.argmax(1) == target)
        equal.append((outputs == moved).all(1))
    return {
        "accuracy": percent(torch.cat(right)),
        "shifted": percent(torch.cat(shifted)),
        "bitwise equal": percent(torch.cat(equal)),
    }


def main() -> None:
    """Print a line of JSON for each checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoints", nargs="+")
    parser.add_argument("--data", default="data/cifar10")
    options = parser.parse_args()
    data = load_cifar10(options.data)
    test = data.test_images, data.test_labels
    for path in options.checkpoints:
        trained = load_network(path).model.eval().to(memory_format=torch.channels_last)
        exact = ts.models.resample(trained, "aps").eval().to(memory_format=torch.channels_last)
        line = {"as trained": scores(trained, *test), "aps": scores(exact, *test)}
        print(json.dumps({"checkpoint": path, **line}), flush=True)


if __name__ == "__main__":
    main()
