"""Is there anything for a selector to learn? All 64 paths of phases of a trained, frozen body.

``python -m benchmarks.record.probe runs/record/NAME.pt`` prints the accuracy of: random paths, APS,
the first phases, the most confident path (needs no label), the mean over paths, the oracle. Then it
trains fresh selectors on the frozen body with the losses of all four phases of a layer (full
information), on images that the body did not train on if there are any, and reports what their
choice is worth on the test set.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.record.body import Body, Selector, aps_phase
from benchmarks.record.learn import normalize
from benchmarks.record.run import append_line, load_body
from trueshift.data.cifar10 import load_cifar10


def go(net: Body, k: int, x: Tensor, phase: Tensor) -> Tensor:
    """Apply stage ``k`` of a frozen body at a phase."""
    return net.stage(k, x, phase, None, False, None)


def random_phase(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return a phase for each image."""
    return torch.randint(4, (len(x),), generator=generator)


@torch.no_grad()
def all_paths(net: Body, images: Tensor) -> Tensor:
    """Return the outputs of all paths, (B, 64, 10)."""
    maps = [net.begin(normalize(images))]
    for k in range(len(net.convs)):
        maps = [go(net, k, x, torch.full((len(x),), p)) for x in maps for p in range(4)]
    return torch.stack([net.end(x) for x in maps], 1)


@torch.no_grad()
def full_information(
    net: Body, k: int, x: Tensor, labels: Tensor, generator: torch.Generator
) -> Tensor:
    """Return the losses (B, 4) of the phases of layer ``k``; later ones are random but shared."""
    losses = []
    later = [random_phase(x, generator) for _ in net.convs]
    for p in range(4):
        y = go(net, k, x, torch.full((len(x),), p))
        for n in range(k + 1, len(net.convs)):
            y = go(net, n, y, later[n])
        losses.append(F.cross_entropy(net.end(y), labels, reduction="none"))
    return torch.stack(losses, 1)


def percent(right: Tensor) -> float:
    """Return the percentage of right answers."""
    return 100 * float(right.float().mean())


def paths_report(net: Body, x: Tensor, t: Tensor) -> dict:
    """Return what the 64 paths are worth."""
    out = torch.cat([all_paths(net, part) for part in x.split(100)])
    p, labels = out.softmax(2), out.argmax(2)
    right, best = labels == t[:, None], p.amax(2).argmax(1)
    loss = F.cross_entropy(out.flatten(0, 1), t.repeat_interleave(64), reduction="none")
    loss = loss.view(-1, 4, 4, 4)
    within = loss.var((1, 2, 3), correction=0).mean()
    others = ((2, 3), (1, 3), (1, 2))
    effects = [loss.mean(axes).var(1, correction=0).mean() for axes in others]
    return dict(
        mean_of_paths=percent(right),
        first_path=percent(right[:, 0]),
        most_confident=percent(right.gather(1, best[:, None])),
        averaged=percent(p.mean(1).argmax(1) == t),
        oracle=percent(right.any(1)),
        all_agree=percent((labels == labels[:, :1]).all(1)),
        loss_mean=float(loss.mean()),
        loss_best=float(loss.flatten(1).amin(1).mean()),
        loss_sd_within=float(within.sqrt()),
        loss_sd_layers=[float(e.sqrt()) for e in effects],
    )


def learn_selectors(
    net: Body, hidden: int, images: Tensor, labels: Tensor, passes: int, generator: torch.Generator
) -> list[Selector]:
    """Train selectors for a frozen body by the exact policy gradient."""
    ins = [net.stem.weight.shape[0], *[len(c.bias) for c in net.convs][:-1]]
    selectors = [Selector(c, hidden, True).train() for c in ins]
    adam = torch.optim.Adam([q for s in selectors for q in s.parameters()], 3e-3)
    steps = passes * len(images) // 100
    for step in range(steps):
        i = torch.randint(len(images), (100,), generator=generator)
        adam.param_groups[0]["lr"] = 3e-3 * (1 - step / steps)
        y, total = net.begin(normalize(images[i])).detach(), 0.0
        for k, selector in enumerate(selectors):
            losses = full_information(net, k, y, labels[i], generator)
            gain = losses.mean(1, keepdim=True) - losses
            gain = gain / gain.square().mean().sqrt()
            total = total - (selector(y).softmax(1) * gain).sum(1).mean()
            with torch.no_grad():
                y = go(net, k, y, random_phase(y, generator))
        adam.zero_grad()
        total.backward()
        adam.step()
    return [s.eval() for s in selectors]


@torch.no_grad()
def choices_report(net: Body, selectors: list[Selector], x: Tensor, t: Tensor) -> dict:
    """Return accuracy and loss of the learned choice and of APS."""
    report = {}
    for name in ("learned", "aps"):
        outs = []
        for part in x.split(100):
            y = net.begin(normalize(part))
            for k, s in enumerate(selectors):
                y = go(net, k, y, s(y).argmax(1) if name == "learned" else aps_phase(y))
            outs.append(net.end(y))
        out = torch.cat(outs)
        report[name] = percent(out.argmax(1) == t)
        report[f"{name}_loss"] = float(F.cross_entropy(out, t))
    return report


@torch.no_grad()
def layer_gains(
    net: Body, selectors: list[Selector], x: Tensor, t: Tensor, generator: torch.Generator
) -> list[list[float]]:
    """Return by layer what its choice is worth, the others at random, and the standard error."""
    worth = []
    for k, s in enumerate(selectors):
        parts = []
        for part, truth in zip(x.split(100), t.split(100), strict=True):
            y = net.begin(normalize(part))
            for n in range(k):
                y = go(net, n, y, random_phase(y, generator))
            losses = full_information(net, k, y, truth, generator)
            parts.append(losses.mean(1) - losses.gather(1, s(y).argmax(1, keepdim=True))[:, 0])
        gains = torch.cat(parts)
        error = gains.std() / len(gains) ** 0.5
        worth.append([round(float(gains.mean()), 5), round(float(error), 5)])
    return worth


def main() -> None:
    """Probe a checkpoint and append the numbers to RUNS.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--data", default="data/cifar10")
    for name, value in dict(test_images=2000, learn=8000, passes=3, hidden=16).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    start = time.process_time()
    net, config = load_body(options.checkpoint)
    data = load_cifar10(options.data)
    x, t = data.test_images[: options.test_images], data.test_labels[: options.test_images]
    report = dict(probe=config["name"], images=len(x)) | paths_report(net, x, t)
    first = config["images"] if config["images"] + options.learn <= 50_000 else 0
    images, labels = (
        part[first : first + options.learn] for part in (data.train_images, data.train_labels)
    )
    generator = torch.Generator().manual_seed(1)
    selectors = learn_selectors(net, options.hidden, images, labels, options.passes, generator)
    gains = layer_gains(net, selectors, x, t, generator)
    report |= choices_report(net, selectors, x, t)
    report |= dict(learned_gain_and_error=gains, learn_first=first, options=vars(options))
    report |= dict(cpu_seconds=round(time.process_time() - start))
    report = {k: round(v, 4) if isinstance(v, float) else v for k, v in report.items()}
    append_line(Path(options.checkpoint).parent, report)


if __name__ == "__main__":
    main()
