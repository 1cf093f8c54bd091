"""Segment panoramas: pictures on a cylinder, whose left and right ends meet.

Objects stand on a strip as wide as a full turn; some lie across the place where the ends meet. Two
U-Nets learn to find them: one with plain strides and zeros around the picture, and one whose border
is zeros above and below and circular to the left and right, with LPS. Turn the camera by any angle:
the mask of the second turns with it, to the bit. Run it::

    python examples/panorama.py

It prints a table and writes ``panorama.png``.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueshift as ts

HEIGHT, WIDTH = 32, 128  # pixels above each other, and in a full turn
METHODS = {
    "stride, zeros": ts.Sampling("stride", padding_mode="zeros"),
    "LPS, cylinder": ts.Sampling(
        "lps", antialias="tri3", padding_mode=("zeros", "circular"), hidden="eighth"
    ),
}


class Score(NamedTuple):
    """Mean IoU of object and background; pixels that change when turned; turns that are exact."""

    mean_iou: float
    changed: float
    exact_turns: float


def make_data(num: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw panoramas ``(num, 3, HEIGHT, WIDTH)`` and masks: 1 on an object, else 0.

    Four built-in pictures stand side by side; the panorama then begins somewhere inside one.
    """
    views = WIDTH // HEIGHT
    images, _, masks = ts.data.make_shapes(views * num, size=HEIGHT, seed=seed)
    images = images.unflatten(0, (num, views)).permute(0, 2, 3, 1, 4).flatten(3)
    masks = masks.unflatten(0, (num, views)).transpose(1, 2).flatten(2)
    starts = torch.randint(WIDTH, (num,), generator=torch.Generator().manual_seed(seed))
    turned = [
        turn((image, mask), int(start))
        for image, mask, start in zip(images, masks, starts, strict=True)
    ]
    images, masks = (torch.stack(parts) for parts in zip(*turned, strict=True))
    return (images.float() / 255 - 0.5) / 0.25, (masks > 0).long()


def turn(pair: tuple[Tensor, ...], pixels: int) -> tuple[Tensor, ...]:
    """Turn pictures and masks by some pixels to the right."""
    return tuple(ts.shifts.circular_shift(x, 0, pixels) for x in pair)


def train(net: ts.models.UNet, images: Tensor, masks: Tensor, epochs: int) -> None:
    """Train in batches of 10; the learning rate and the temperature fall."""
    net.train()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for epoch in range(epochs):
        if net.spec.method == "lps":
            ts.set_tau(net, max(0.2 * 0.5**epoch, 0.02))
        for chosen in torch.randperm(len(images)).split(10):
            loss = F.cross_entropy(net(images[chosen]), masks[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    net.eval()


@torch.inference_mode()
def test(net: nn.Module, images: Tensor, masks: Tensor, turns: range) -> Score:
    """Compare the outputs for turned panoramas with the turned outputs."""
    logits = net(images)
    labels, changed, exact = logits.argmax(1), [], []
    for pixels in turns:
        (back,) = turn((net(*turn((images,), pixels)),), -pixels)
        changed.append((back.argmax(1) != labels).double().mean())
        exact.append(torch.equal(back, logits))
    ious = [
        ((labels == k) & (masks == k)).sum() / ((labels == k) | (masks == k)).sum() for k in (0, 1)
    ]
    return Score(
        torch.stack(ious).mean().item(),
        torch.stack(changed).mean().item(),
        sum(exact) / len(exact),
    )


@torch.inference_mode()
def save_figure(nets: dict[str, nn.Module], image: Tensor, path: Path) -> None:
    """Show a panorama, its masks, and where they change if it is turned by one pixel."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1 + len(nets), 2, figsize=(11, 1.6 * (1 + len(nets))))
    panels = [("panorama", image), ("turned by 45 degrees", turn((image,), WIDTH // 8)[0])]
    for axis, (title, picture) in zip(axes[0], panels, strict=True):
        axis.imshow((picture.permute(1, 2, 0) * 0.25 + 0.5).clamp(0, 1).numpy())
        axis.set_title(title)
    for row, (name, net) in zip(axes[1:], nets.items(), strict=True):
        mask = net(image[None]).argmax(1)[0]
        (back,) = turn((net(*turn((image[None],), 1)).argmax(1)[0],), -1)
        row[0].imshow(mask.numpy(), vmin=0, vmax=1)
        row[0].set_title(f"{name}: mask")
        row[1].imshow((mask != back).numpy(), vmin=0, vmax=1)
        row[1].set_title(f"{name}: changed by a turn of one pixel")
    for axis in axes.flat:
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(
    num_images: int = 80,
    num_test: int = 20,
    epochs: int = 6,
    every: int = 1,
    path: str | Path = "panorama.png",
) -> dict[str, Score]:
    """Print and return the scores of both networks; save a figure."""
    images, masks = make_data(num_images, seed=0)
    held_out = make_data(num_test, seed=1)
    turns = range(1, WIDTH, every)
    scores, nets = {}, {}
    print(f"network          mIoU  pixels changed  exact turns (of {len(turns)})")
    for name, spec in METHODS.items():
        torch.manual_seed(0)
        nets[name] = net = ts.models.unet(spec, in_channels=3, num_classes=2, widths=(8, 16, 32))
        train(net, images, masks, epochs)
        score = scores[name] = test(net, *held_out, turns)
        print(f"{name:13} {score.mean_iou:7.1%}  {score.changed:14.3%}  {score.exact_turns:11.1%}")
    save_figure(nets, held_out[0][0], Path(path))
    print(f"figure: {path}")
    return scores


if __name__ == "__main__":
    main()
