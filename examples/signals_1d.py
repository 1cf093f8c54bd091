"""Classify events in 1-D signals, wherever in the signal they are.

A signal of 64 samples holds one short event in noise: a tone that rises, a tone that falls, or a
burst. While training the event stands in the middle; afterwards it may be anywhere. Two small 1-D
networks differ only in their down-sampling layers. Run it::

    python examples/signals_1d.py
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueshift as ts

LENGTH, EVENTS = 64, ("rising", "falling", "burst")


class Score(NamedTuple):
    """Accuracy with the event in the middle and at every place; share of shifts with one label."""

    accuracy: float
    accuracy_anywhere: float
    consistency: float
    largest_change: float


class SignalClassifier(nn.Module):
    """Scores ``(B, 3)`` of signals ``(B, 1, L)``, with ``L`` a multiple of 8."""

    def __init__(self, spec: ts.Sampling) -> None:
        super().__init__()
        self.spec = spec
        layers: list[nn.Module] = []
        for before, after in ((1, 8), (8, 16), (16, 32)):
            layers.append(nn.Conv1d(before, after, 5, padding=2, padding_mode="circular"))
            layers += [nn.BatchNorm1d(after), nn.ReLU(), spec.down(after)]
        self.body, self.pool = nn.Sequential(*layers), ts.GlobalAvgPool()
        self.head = nn.Linear(32, len(EVENTS))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.body(x)))


def make_signals(num: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw signals ``(num, 1, 64)`` with one event in the middle, and the event's number."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, len(EVENTS), (num,), generator=generator)
    time = (torch.arange(LENGTH) - LENGTH / 2) / 8  # -4..4, the event is about -1..1
    pitch = 4 + 2 * torch.rand(num, 1, generator=generator)
    slope = torch.tensor([2.0, -2.0, 0.0])[labels, None]
    tone = torch.sin((pitch + slope * time) * time + 6 * torch.rand(num, 1, generator=generator))
    signals = tone * torch.exp(-(time**2))
    signals += 0.25 * torch.randn(num, LENGTH, generator=generator)
    return signals[:, None], labels


def train(net: SignalClassifier, signals: Tensor, labels: Tensor, epochs: int) -> None:
    """Train in batches of 50; the learning rate and the temperature fall."""
    net.train()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for epoch in range(epochs):
        if net.spec.method == "lps":
            ts.set_tau(net, max(0.2 * 0.7**epoch, 0.02))
        for chosen in torch.randperm(len(signals)).split(50):
            loss = F.cross_entropy(net(signals[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    net.eval()


@torch.inference_mode()
def test(net: nn.Module, signals: Tensor, labels: Tensor) -> Score:
    """Compare the scores of the signals with those at each of their 64 places."""
    scores = net(signals)
    moved = torch.stack([net(ts.shifts.circular_shift(signals, d)) for d in range(LENGTH)])
    found = moved.argmax(2)  # (shifts, B)
    return Score(
        accuracy=(scores.argmax(1) == labels).float().mean().item(),
        accuracy_anywhere=(found == labels).float().mean().item(),
        consistency=(found == scores.argmax(1)).float().mean().item(),
        largest_change=(moved - scores).abs().max().item(),
    )


def main(num_signals: int = 600, num_test: int = 300, epochs: int = 10) -> dict[str, Score]:
    """Print and return the scores of plain strides and of LPS."""
    signals, labels = make_signals(num_signals, seed=0)
    held_out = make_signals(num_test, seed=1)
    scores = {}
    print("network  in the middle  anywhere  consistency  largest change")
    for name in ("stride", "lps"):
        torch.manual_seed(0)
        net = SignalClassifier(ts.Sampling(name, dim=1))
        train(net, signals, labels, epochs)
        score = scores[name] = test(net, *held_out)
        shares = (
            f"{score.accuracy:13.1%}  {score.accuracy_anywhere:8.1%}  {score.consistency:11.1%}"
        )
        print(f"{name:7}  {shares}  {score.largest_change:14.3g}")
    return scores


if __name__ == "__main__":
    main()
