"""Convert a trained classifier and fine-tune it until it is as accurate as before, or better.

A small network with plain strides is trained on the built-in pictures for some seconds. Converting
it makes it exactly invariant to circular shifts, but it has never seen maps that were sampled by
their content, so its accuracy falls. A few epochs with a low temperature bring it back. Run it::

    python examples/classification_finetune.py
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueshift as ts


class Score(NamedTuple):
    """What is printed of a network; ``consistency`` is C-Cons., accuracies are fractions."""

    loss: float
    accuracy: float
    shifted_accuracy: float
    consistency: float


def make_net(num_classes: int = 10) -> nn.Module:
    """Return an ordinary network with three strided convolutions and zero padding."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        conv = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


def make_data(num: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return built-in pictures ``(num, 3, 32, 32)``, about -2..2, and their labels."""
    images, labels, _ = ts.data.make_shapes(num, seed=seed)
    return (images.float() / 255 - 0.5) / 0.25, labels


def train(net: nn.Module, images: Tensor, labels: Tensor, epochs: int, lr: float) -> None:
    """Train in batches of 50; the learning rate rises and falls once."""
    net.train()
    optimizer = torch.optim.AdamW(net.parameters(), lr)
    steps = epochs * -(-len(images) // 50)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(50):
            loss = F.cross_entropy(net(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    net.eval()


@torch.inference_mode()
def test(net: nn.Module, images: Tensor, labels: Tensor) -> Score:
    """Return the scores of a network on images as they are, and moved."""
    net.eval()
    logits = net(images)
    moved = net(ts.shifts.circular_shift(images, 5, -3))
    metric = ts.metrics.CircularConsistency(num_pairs=2)
    metric.update(net, images)
    return Score(
        loss=F.cross_entropy(logits, labels).item(),
        accuracy=(logits.argmax(1) == labels).float().mean().item(),
        shifted_accuracy=(moved.argmax(1) == labels).float().mean().item(),
        consistency=float(metric.compute()),
    )


def main(
    num_images: int = 1200, num_test: int = 300, epochs: int = 10, tune_epochs: int = 5
) -> dict[str, Score]:
    """Print and return the scores of the network as trained, converted, and fine-tuned."""
    torch.manual_seed(0)
    images, labels = make_data(num_images, seed=0)
    held_out = make_data(num_test, seed=1)
    net = make_net()
    train(net, images, labels, epochs, lr=1e-2)
    scores = {"as trained": test(net, *held_out)}

    new = ts.convert(net, ts.Sampling("lps", hidden="eighth"), images[:1])
    scores["converted"] = test(new, *held_out)

    ts.set_tau(new, 0.05)  # nearly hard choices, as the weights were trained for
    train(new, images, labels, tune_epochs, lr=5e-3)
    scores["fine-tuned"] = test(new, *held_out)

    print("network      loss  accuracy  shifted  C-Cons.")
    for name, score in scores.items():
        shares = f"{score.accuracy:8.1%}  {score.shifted_accuracy:7.1%}  {score.consistency:7.1%}"
        print(f"{name:11} {score.loss:5.2f}  {shares}")
    return scores


if __name__ == "__main__":
    main()
