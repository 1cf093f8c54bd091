"""What a training step consists of: augmentation, the optimizer, and how phases are chosen."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.record.body import Body, aps_phase
from trueshift.data.cifar10 import MEAN, STD

MEANS, STDS = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
LEARNED = ("gumbel", "sample", "argmax", "info")  # the rules that need selectors
RULES = ("zero", "random", "aps", *LEARNED)


def normalize(images: Tensor) -> Tensor:
    """Turn uint8 images into bfloat16, channels-last, of mean 0 and deviation 1."""
    x = images.to(memory_format=torch.channels_last).float()
    return ((x / 255 - MEANS) / STDS).bfloat16()


def cut(x: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Set a square of each image to the mean; it wraps around the border."""
    corner = torch.randint(32, (2, len(x), 1), generator=generator)
    inside = ((torch.arange(32) - corner) % 32) < size
    return x.masked_fill((inside[0][:, :, None] & inside[1][:, None, :])[:, None], 0)


def orthogonal(g: Tensor, steps: int = 4) -> Tensor:
    """Bring the singular values of a matrix near one, by Newton-Schulz iterations."""
    x = g.bfloat16() / (g.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.T if tall else x).float()


class Optimizer:
    """Muon on normalised filters; Adam on biases, the last layer and selectors."""

    def __init__(self, net: Body, config: dict) -> None:
        self.config = config
        self.filters = [conv.weight for stage in (net.convs, *net.pairs) for conv in stage]
        self.buffers = [torch.zeros_like(w) for w in self.filters]
        self.stem_bias = net.stem.bias
        selectors = [] if net.selectors is None else list(net.selectors.parameters())
        special = {id(p) for p in (*self.filters, *selectors)}
        rest = [p for p in net.parameters() if p.requires_grad and id(p) not in special]
        groups = [dict(params=rest, lr=config["adam"], peak=config["adam"])]
        if selectors:
            groups.append(dict(params=selectors, lr=0.0, peak=config["selector_lr"]))
        self.adam = torch.optim.Adam(groups, betas=(0.9, 0.98))

    @torch.no_grad()
    def step(self, rate: float, train_stem: bool) -> None:
        """Update all parameters; ``rate`` is the fraction of the peak learning rates."""
        mu = self.config["momentum"]
        for w, buffer in zip(self.filters, self.buffers, strict=True):
            buffer.mul_(mu).add_(w.grad)
            g = w.grad + mu * buffer
            w.mul_(len(w) ** 0.5 / w.norm())
            w.sub_(orthogonal(g.flatten(1)).view_as(w), alpha=rate * self.config["lr"])
        if not train_stem:
            self.stem_bias.grad = None
        for group in self.adam.param_groups:
            group["lr"] = group["peak"] * rate
        self.adam.step()

    def state(self) -> dict:
        """Return what a checkpoint needs."""
        return {"buffers": self.buffers, "adam": self.adam.state_dict()}

    def load(self, state: dict) -> None:
        """Restore what :meth:`state` returned."""
        for mine, theirs in zip(self.buffers, state["buffers"], strict=True):
            mine.copy_(theirs)
        self.adam.load_state_dict(state["adam"])


class Chooser:
    """How phases are chosen: a function ``(net, k, x) -> (phase, weights, soft)`` of stage ``k``.

    Args:
        rule: ``"zero"`` (the first phase), ``"random"`` or ``"aps"``, which need no selectors;
            ``"gumbel"`` (the soft sample of the paper), ``"sample"`` (a hard sample with the
            gradient of the probabilities), ``"argmax"``, or ``"info"`` (a hard sample without a
            gradient: selectors learn from :func:`auxiliary_loss`).
        tau: Temperature of the samples.
        generator: Source of randomness.
        learns: Whether selectors get a gradient.
    """

    def __init__(
        self, rule: str, tau: float, generator: torch.Generator, learns: bool = True
    ) -> None:
        if rule not in RULES:
            raise ValueError(f"Chooser: unknown rule {rule!r}. Choose from: {', '.join(RULES)}.")
        self.rule, self.tau, self.generator, self.learns = rule, tau, generator, learns

    def noise(self, logits: Tensor) -> Tensor:
        """Return Gumbel noise of the shape of ``logits``."""
        u = torch.rand(logits.shape, generator=self.generator).clamp_(1e-9, 1 - 1e-7)
        return -(-u.log()).log()

    def __call__(self, net: Body, k: int, x: Tensor) -> tuple[Tensor | None, Tensor | None, bool]:
        if self.rule == "zero":
            return None, None, False
        if self.rule == "random":
            return torch.randint(4, (len(x),), generator=self.generator), None, False
        if self.rule == "aps":
            return aps_phase(x.detach()), None, False
        if self.rule == "info" or (self.rule in ("sample", "argmax") and not self.learns):
            with torch.no_grad():
                logits = net.selectors[k](x)
                noise = 0 if self.rule == "argmax" else self.noise(logits)
                return (logits / self.tau + noise).argmax(1), None, False
        logits = net.selectors[k](x)
        if self.rule == "gumbel":
            return None, ((logits + self.noise(logits)) / self.tau).softmax(1), True
        phase = logits.detach().argmax(1)
        if self.rule == "sample":
            phase = (logits.detach() / self.tau + self.noise(logits)).argmax(1)
        p = (logits / self.tau).softmax(1)
        return phase, p.gather(1, phase[:, None] ^ torch.arange(4)), False


def auxiliary_loss(
    net: Body, images: Tensor, labels: Tensor, chooser: Chooser, scale: float
) -> Tensor:
    """Evaluate all four phases of one layer; its selector learns which has the lowest loss."""
    k = int(torch.randint(len(net.convs), (1,), generator=chooser.generator))
    with torch.no_grad():
        x = net.begin(images)
        for n in range(k):
            phase, _, _ = chooser(net, n, x)
            x = net.stage(n, x, phase, None, False, [])
        losses = []
        for candidate in range(4):
            y = net.stage(k, x, torch.full((len(x),), candidate), None, False, [])
            for n in range(k + 1, len(net.convs)):
                y = net.stage(n, y, net.selectors[n](y).argmax(1), None, False, [])
            losses.append(F.cross_entropy(net.end(y), labels, reduction="none"))
        loss = torch.stack(losses, 1)
        gain = loss.mean(1, keepdim=True) - loss
        target = (scale * gain / gain.square().mean().sqrt().clamp(min=1e-6)).softmax(1)
    return -(target * net.selectors[k](x).log_softmax(1)).sum(1).mean()
