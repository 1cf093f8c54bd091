"""A camera pans by one pixel per frame: how often does a network change its mind?

Two networks, plain strides and LPS with a filter, learn the built-in pictures for some seconds.
Then both watch two kinds of clips. *Turn*: the frame is a panorama, what leaves on one side comes
back on the other. *Pan*: the frame is a window on a larger picture, so content enters and leaves,
and a change of mind may have a reason. An animated GIF shows one clip with what each network says,
frame by frame. Run it::

    python examples/video_flicker.py
    python examples/video_flicker.py --output flicker.gif --frames 33
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueshift as ts

FRAME, PICTURE = 32, 48  # pixels
METHODS = {
    "stride": ts.Sampling("stride"),
    "LPS": ts.Sampling("lps", antialias="tri3", hidden="eighth"),
}
COLOURS = ("#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f")
COLOURS += ("#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac")  # one per class


def make_pictures(num: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return pictures as drawn, uint8 ``(num, 3, 48, 48)``, as networks see them, and labels."""
    pictures, labels, _ = ts.data.make_shapes(num, size=PICTURE, seed=seed)
    return pictures, (pictures.float() / 255 - 0.5) / 0.25, labels


def turn(pictures: Tensor, num_frames: int) -> Tensor:
    """Film the centre of pictures as if it were a panorama; ``(num, frames, 3, 32, 32)``."""
    centre = ts.shifts.standard_shift(pictures, FRAME, 0, 0)
    return torch.stack([ts.shifts.circular_shift(centre, 0, -t) for t in range(num_frames)], 1)


def pan(pictures: Tensor, num_frames: int) -> Tensor:
    """Film pictures through a window that goes right, pixel by pixel, and back."""
    room = PICTURE - FRAME
    way = [t if t <= room else 2 * room - t for t in (k % (2 * room) for k in range(num_frames))]
    windows = [ts.shifts.standard_shift(pictures, FRAME, 0, room // 2 - t) for t in way]
    return torch.stack(windows, 1)


CLIPS = {"turn": turn, "pan": pan}


def train(net: ts.models.ResNet9, images: Tensor, labels: Tensor, epochs: int) -> None:
    """Train in batches of 50; the learning rate rises and falls once, the temperature falls."""
    net.train()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    steps = epochs * -(-len(images) // 50)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    for epoch in range(epochs):
        if net.spec.method == "lps":
            ts.set_tau(net, max(0.2 * 0.5**epoch, 0.02))
        for chosen in torch.randperm(len(images)).split(50):
            loss = F.cross_entropy(net(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    net.eval()


@torch.inference_mode()
def watch(net: nn.Module, clips: Tensor) -> Tensor:
    """Return the label of every frame of clips ``(num, frames, 3, 32, 32)``."""
    return torch.stack([net(clip).argmax(1) for clip in clips])


def changes(labels: Tensor) -> float:
    """Return how often the label of a frame differs from that of the frame before."""
    return (labels[:, 1:] != labels[:, :-1]).float().mean().item()


def write_gif(clip: Tensor, found: dict[str, Tensor], path: Path) -> Path:
    """Draw the frames of a clip, uint8 ``(frames, 3, 32, 32)``, with a bar of labels per network.

    Args:
        clip: The frames.
        found: Labels ``(frames,)`` of each network.
        path: The GIF to write.
    """
    from PIL import Image, ImageDraw

    wide = FRAME * 8
    pages: list[Any] = []
    for now, frame in enumerate(clip):
        page = Image.new("RGB", (wide, wide + 44 * len(found)), "white")
        picture = Image.fromarray(frame.permute(1, 2, 0).numpy())
        page.paste(picture.resize((wide, wide), Image.Resampling.NEAREST))
        draw = ImageDraw.Draw(page)
        for row, (name, labels) in enumerate(found.items()):
            top = wide + 44 * row
            label = int(labels[now])
            draw.text((6, top + 4), f"{name}: {ts.data.SHAPE_NAMES[label]}", "black")
            for t in range(now + 1):
                left, right = (6 + (wide - 12) * k // len(clip) for k in (t, t + 1))
                draw.rectangle((left, top + 22, right, top + 38), COLOURS[int(labels[t])])
        pages.append(page)
    pages[0].save(path, save_all=True, append_images=pages[1:], duration=120, loop=0)
    return path


def main(
    output: Path | str = "flicker.gif",
    num_images: int = 600,
    num_clips: int = 40,
    num_frames: int = 33,
    epochs: int = 8,
) -> dict[str, dict[str, float]]:
    """Write a GIF; print and return how often each network changes its mind, by kind of clip."""
    _, images, labels = make_pictures(num_images, seed=0)
    seen, pictures, _ = make_pictures(num_clips, seed=1)
    found: dict[str, dict[str, Tensor]] = {kind: {} for kind in CLIPS}
    for name, spec in METHODS.items():
        torch.manual_seed(0)
        net = ts.models.resnet9(spec, widths=(16, 32, 64), residual=(False,) * 3, stem=8)
        train(net, ts.shifts.standard_shift(images, FRAME, 0, 0), labels, epochs)
        for kind, film in CLIPS.items():
            found[kind][name] = watch(net, film(pictures, num_frames))
    rates = {kind: {n: changes(x) for n, x in rows.items()} for kind, rows in found.items()}

    print(f"changes of mind per frame, {num_clips} clips of {num_frames} frames")
    for kind, row in rates.items():
        print(f"{kind:5}" + "".join(f"  {name} {rate:6.1%}" for name, rate in row.items()))
    flips = (found["turn"]["stride"].diff(dim=1) != 0).sum(1)
    worst = int(flips.argmax())  # the clip that flickers most
    clip = turn(seen[worst : worst + 1], num_frames)[0]
    path = write_gif(clip, {name: x[worst] for name, x in found["turn"].items()}, Path(output))
    print(f"wrote {path}")
    return rates


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default="flicker.gif", help="the GIF to write")
    parser.add_argument("--frames", type=int, default=33, help="frames per clip")
    arguments = parser.parse_args()
    main(arguments.output, num_frames=arguments.frames)
