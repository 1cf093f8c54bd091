"""Is there anything for a selector to learn? All paths of phases of a trained ResNet-9.

``python -m benchmarks.selection RUN_FOLDER/checkpoints/last.ckpt`` freezes the network and prints
its accuracy, in percent, by how phases are chosen: as trained, at random, by APS, the most
confident path (no label needed), the mean of all paths, any path right (oracle). Then it trains
fresh selectors with full information, the loss of every phase of a layer, on images that the
network did not see, and prints what their choice is worth.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueshift as ts
from trueshift.audit.swaps import replaced_selectors
from trueshift.cli.networks import load_network
from trueshift.data.cifar10 import MEAN, STD, Arrays, load_cifar10
from trueshift.training.calibration import scale_logits

SCALE, SHIFT = (torch.tensor(values).view(3, 1, 1) for values in (STD, MEAN))
Choice = Callable[[int, Tensor], Tensor]  # of a layer, from its input


class Given(nn.Module):
    """A selector that returns what it is told."""

    learns = False

    def __init__(self, phase: Tensor) -> None:
        super().__init__()
        self.phase = phase

    def choose(self, x: Tensor, stride: object, tie_breaker: object = None) -> Tensor:
        return self.phase


def images_of(raw: Tensor) -> Tensor:
    """Normalize uint8 images."""
    return ((raw / 255 - SHIFT) / SCALE).contiguous(memory_format=torch.channels_last)


def constant(x: Tensor, phase: int) -> Tensor:
    """Return the same phase for every image."""
    return torch.full((len(x),), phase)


def at_random(_: int, x: Tensor) -> Tensor:
    """Choose a phase at random."""
    return torch.randint(4, (len(x),))


class Frozen:
    """A ResNet-9 whose layers are run one by one, with phases from outside."""

    def __init__(self, network: ts.models.ResNet9) -> None:
        self.network = network
        self.num_layers = len(network.stages)

    @torch.no_grad()
    def go(self, layer: int, x: Tensor, phase: Tensor) -> Tensor:
        """Apply a stage with the phases of its images."""
        stage = self.network.stages[layer]
        with replaced_selectors({"": stage.down}, Given(phase)):
            return stage(x)[0]

    def logits(self, layer: int, x: Tensor) -> Tensor:
        """Return what the selector of a stage says about the input of the stage."""
        stage = self.network.stages[layer]
        with torch.no_grad():
            seen = stage.down.antialias(F.relu(stage.norm(stage.conv(x))))
        return stage.down.selector(seen)

    @torch.no_grad()
    def end(self, x: Tensor) -> Tensor:
        """Return the outputs for the last map."""
        return self.network.fc(self.network.avgpool(x).flatten(1)).float()

    def outputs(self, images: Tensor, choice: Choice) -> Tensor:
        """Return the outputs with the phases that ``choice`` names."""
        with torch.no_grad():
            x = self.network.stem(images)
        for layer in range(self.num_layers):
            x = self.go(layer, x, choice(layer, x))
        return self.end(x)

    def paths(self, images: Tensor) -> Tensor:
        """Return the outputs of all paths, ``(B, 4 ** layers, classes)``."""
        with torch.no_grad():
            maps = [self.network.stem(images)]
        for layer in range(self.num_layers):
            maps = [self.go(layer, x, constant(x, p)) for x in maps for p in range(4)]
        return torch.stack([self.end(x) for x in maps], 1)

    def losses(self, layer: int, x: Tensor, labels: Tensor) -> Tensor:
        """Return the losses ``(B, 4)`` of the phases of a layer; later ones are random, shared."""
        later = [at_random(layer, x) for _ in range(self.num_layers)]
        losses = []
        for phase in range(4):
            y = self.go(layer, x, constant(x, phase))
            for n in range(layer + 1, self.num_layers):
                y = self.go(n, y, later[n])
            losses.append(F.cross_entropy(self.end(y), labels, reduction="none"))
        return torch.stack(losses, 1)

    def norms(self, layer: int, x: Tensor) -> Tensor:
        """Choose as APS does."""
        stage = self.network.stages[layer]
        seen = stage.down.antialias(F.relu(stage.norm(stage.conv(x))))
        return ts.NormSelector(2).eval().choose(seen, 2)


def percent(right: Tensor) -> float:
    """Return the percentage of right answers."""
    return round(100 * float(right.float().mean()), 2)


def paths_report(net: Frozen, images: Tensor, labels: Tensor) -> dict[str, float]:
    """Return what all paths together are worth."""
    outputs = torch.cat([net.paths(images_of(part)) for part in images.split(100)])
    shares, right = outputs.softmax(2), outputs.argmax(2) == labels[:, None]
    confident = shares.amax(2).argmax(1, keepdim=True)
    return {
        "random": percent(right),
        "most confident": percent(right.gather(1, confident)),
        "averaged": percent(shares.mean(1).argmax(1) == labels),
        "oracle": percent(right.any(1)),
    }


def learn(net: Frozen, images: Tensor, labels: Tensor, passes: int) -> None:
    """Train the selectors of a frozen network by the exact gradient of the expected loss."""
    learned = [stage.down.selector for stage in net.network.stages]
    adam = torch.optim.Adam([p for s in learned for p in s.parameters()], 3e-3)
    steps = passes * len(images) // 100
    for step in range(steps):
        adam.param_groups[0]["lr"] = 3e-3 * (1 - step / steps)
        index = torch.randint(len(images), (100,))
        with torch.no_grad():
            x = net.network.stem(images_of(images[index]))
        loss = torch.zeros(())
        for layer in range(net.num_layers):
            worth = net.losses(layer, x, labels[index])
            gain = worth.mean(1, keepdim=True) - worth
            gain = gain / gain.square().mean().sqrt()
            loss = loss - (net.logits(layer, x).softmax(1) * gain).sum(1).mean()
            x = net.go(layer, x, at_random(layer, x))
        adam.zero_grad()
        loss.backward()
        adam.step()


def accuracy(net: Frozen, images: Tensor, labels: Tensor, choice: Choice) -> float:
    """Return the accuracy with phases of a rule."""
    outputs = [net.outputs(images_of(part), choice) for part in images.split(250)]
    return percent(torch.cat(outputs).argmax(1) == labels)


def untrained(network: ts.models.ResNet9, hidden: int, images: Tensor) -> Frozen:
    """Give a network fresh selectors; by way of APS, which has none."""
    spec = network.spec.replace(method="lps", hidden=hidden)
    new = ts.models.resample(ts.models.resample(network, "aps"), spec)
    scale_logits(new, images_of(images))
    return Frozen(new.eval().to(memory_format=torch.channels_last))


@torch.autocast("cpu", torch.bfloat16)
def report(path: Path, data: Arrays, options: argparse.Namespace) -> dict[str, object]:
    """Return accuracies in percent, by how phases are chosen."""
    torch.manual_seed(0)
    trained = load_network(str(path)).model
    net = untrained(trained, options.hidden, data.train_images[:250])
    test = data.test_images, data.test_labels
    numbers = paths_report(net, *(part[: options.paths] for part in test))
    line: dict[str, object] = {f"{k}, {options.paths} images": v for k, v in numbers.items()}
    with torch.no_grad():
        own = torch.cat([trained(images_of(part)) for part in data.test_images.split(250)])
    line["own"] = percent(own.argmax(1) == data.test_labels)
    line["random"] = accuracy(net, *test, at_random)
    line["aps"] = accuracy(net, *test, net.norms)
    part = slice(options.first, options.first + options.learn)
    learn(net, data.train_images[part], data.train_labels[part], options.passes)
    choice = accuracy(net, *test, lambda layer, x: net.logits(layer, x).argmax(1))
    return {"checkpoint": str(path), **line, "full information": choice}


def main() -> None:
    """Print a line of JSON for each checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoints", nargs="+", type=Path)
    parser.add_argument("--data", default="data/cifar10")
    parser.add_argument("--first", type=int, default=16000, help="first image to learn from")
    for name, value in {"paths": 2000, "learn": 8000, "passes": 3, "hidden": 16}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    data = load_cifar10(options.data)
    for path in options.checkpoints:
        print(json.dumps(report(path, data, options)), flush=True)


if __name__ == "__main__":
    main()
