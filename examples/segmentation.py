"""Segment the built-in pictures with two U-Nets: plain strides, and LPS with LPU on the way up.

Both are trained in the same way for some seconds. The mask of the second one moves exactly with
the picture; that of the first one frays when the picture moves by a pixel. Run it::

    python examples/segmentation.py
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueshift as ts

METHODS = {
    "stride": ts.Sampling("stride"),
    "LPS": ts.Sampling("lps", antialias="tri3", hidden="eighth"),
}


class Score(NamedTuple):
    """Mean IoU of object and background, as drawn and moved; ``consistency`` is mASCC."""

    mean_iou: float
    shifted_mean_iou: float
    consistency: float
    bitwise_equal: bool


def make_data(num: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures ``(num, 3, 32, 32)`` and masks ``(num, 32, 32)``: 1 on the object, else 0."""
    images, _, masks = ts.data.make_shapes(num, seed=seed)
    return (images.float() / 255 - 0.5) / 0.25, (masks > 0).long()


def train(net: ts.models.UNet, images: Tensor, masks: Tensor, epochs: int) -> None:
    """Train in batches of 20; the learning rate and the temperature fall."""
    net.train()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for epoch in range(epochs):
        if net.spec.method == "lps":
            ts.set_tau(net, max(0.2 * 0.5**epoch, 0.02))
        for chosen in torch.randperm(len(images)).split(20):
            loss = F.cross_entropy(net(images[chosen]), masks[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    net.eval()


def mean_iou(predicted: Tensor, masks: Tensor) -> float:
    """Return the mean over both classes of intersection over union."""
    ious = [
        ((predicted == label) & (masks == label)).sum()
        / ((predicted == label) | (masks == label)).sum()
        for label in (0, 1)
    ]
    return torch.stack(ious).mean().item()


@torch.inference_mode()
def test(net: nn.Module, images: Tensor, masks: Tensor) -> Score:
    """Compare masks of pictures as drawn and moved by (3, 5), and of random pairs of shifts."""
    logits = net(images)
    back = ts.shifts.circular_shift(net(ts.shifts.circular_shift(images, 3, 5)), -3, -5)
    metric = ts.metrics.MaskCircularConsistency(num_pairs=2)
    metric.update(net, images)
    return Score(
        mean_iou=mean_iou(logits.argmax(1), masks),
        shifted_mean_iou=mean_iou(back.argmax(1), masks),
        consistency=float(metric.compute()),
        bitwise_equal=torch.equal(back, logits),
    )


def main(num_images: int = 300, num_test: int = 100, epochs: int = 6) -> dict[str, Score]:
    """Print and return the scores of both networks."""
    images, masks = make_data(num_images, seed=0)
    held_out = make_data(num_test, seed=1)
    scores = {}
    print("network    mIoU  shifted    mASCC  bitwise equal")
    for name, spec in METHODS.items():
        torch.manual_seed(0)
        net = ts.models.unet(spec, in_channels=3, num_classes=2, widths=(8, 16, 32))
        train(net, images, masks, epochs)
        score = scores[name] = test(net, *held_out)
        shares = f"{score.mean_iou:6.1%}  {score.shifted_mean_iou:7.1%}  {score.consistency:7.2%}"
        print(f"{name:8} {shares}  {'yes' if score.bitwise_equal else 'no'}")
    return scores


if __name__ == "__main__":
    main()
