"""Make a segmenter exact, train it, and see its masks move with the picture to the bit.

``network`` may be any segmenter, such as one of segmentation-models-pytorch with a pretrained
encoder; ``make_data`` is where your own pictures and masks go. Run it::

    python examples/segmentation.py
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueshift as ts

EXACT = ts.Sampling("lps", antialias="tri3", hidden="eighth", select_from="input")


def make_data(num: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures ``(num, 3, 32, 32)`` and masks ``(num, 32, 32)``: 1 on the object, else 0."""
    images, _, masks = ts.data.make_shapes(num, seed=seed)
    return (images.float() / 255 - 0.5) / 0.25, (masks > 0).long()


def network() -> nn.Module:
    """Return an ordinary segmenter: strides, zero padding, bilinear up-sampling."""
    blocks = [(3, 16, 1), (16, 24, 2), (24, 32, 2), (32, 32, 1)]
    layers = [
        layer
        for inside, width, stride in blocks
        for layer in (nn.Conv2d(inside, width, 3, stride, 1), nn.BatchNorm2d(width), nn.ReLU())
    ]
    up = nn.Upsample(scale_factor=4, mode="bilinear", align_corners=False)
    return nn.Sequential(*layers, nn.Conv2d(32, 2, 1), up)


def train(net: nn.Module, images: Tensor, masks: Tensor, epochs: int) -> None:
    """Train in batches of 20; the learning rate falls, and choices become hard."""
    optimizer = torch.optim.AdamW(net.train().parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for epoch in range(epochs):
        if hasattr(net, "sampling"):  # converted: choices are soft at first
            ts.set_tau(net, max(0.2 * 0.5**epoch, 0.02))
        for chosen in torch.randperm(len(images)).split(20):
            loss = F.cross_entropy(net(images[chosen]), masks[chosen], ignore_index=255)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()


@torch.inference_mode()
def test(net: nn.Module, images: Tensor, masks: Tensor) -> dict[str, float]:
    """Return mIoU, the share of pixels that keep their label (mASCC), and whether bits move."""
    logits, same = net.eval()(images), ts.metrics.MaskCircularConsistency(num_pairs=2)
    moved = net(ts.shifts.circular_shift(images, 3, 5))
    same.update(net, images)
    hits = [((logits.argmax(1) == k) & (masks == k)).sum() for k in (0, 1)]
    either = [((logits.argmax(1) == k) | (masks == k)).sum() for k in (0, 1)]
    miou = sum(float(a / b) for a, b in zip(hits, either, strict=True)) / 2
    exact = torch.equal(moved, ts.shifts.circular_shift(logits, 3, 5))
    return {"mIoU": miou, "mASCC": float(same.compute()), "exact": float(exact)}


def main(
    num_images: int = 300, num_test: int = 100, epochs: int = 6
) -> dict[str, dict[str, float]]:
    """Print and return the scores of the network as it is and converted."""
    data, held_out, scores = make_data(num_images, seed=0), make_data(num_test, seed=1), {}
    for name in ("plain", "LPS"):
        torch.manual_seed(0)
        net = network() if name == "plain" else ts.convert(network(), EXACT, held_out[0][:1])
        train(net, *data, epochs)
        scores[name] = test(net, *held_out)
        print(name, *(f"{key} {value:.2%}" for key, value in scores[name].items()), sep="  ")
    return scores


if __name__ == "__main__":
    main()
