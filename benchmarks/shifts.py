"""The picture at the top of the README: a moving picture, and what two networks say of it.

Run the quickstart first, then draw what its networks of the first seed say::

    trueshift quickstart
    python -m benchmarks.shifts runs/quickstart/0
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

import trueshift as ts
from trueshift.data import SHAPE_NAMES, Shapes, make_shapes

ROWS = {"stride": "Plain stride", "lps": "LPS"}
SIZE, ZOOM, WIDTH = 32, 7, 560
GREEN, RED, INK = "#0a7d4f", "#c2362b", "#1c1e21"


@torch.no_grad()
def answers(run: Path, image: Tensor) -> dict[str, list[int]]:
    """Return what each network says of a picture in every step."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (Shapes.mean, Shapes.std))
    x = (image / 255 - mean) / std
    moved = torch.stack([ts.shifts.circular_shift(x, *shift(step)) for step in range(SIZE)])
    files = {row: run / "pictures" / f"{row}_seed0" / "network.safetensors" for row in ROWS}
    return {row: ts.load(file)(moved).argmax(1).tolist() for row, file in files.items()}


def shift(step: int) -> tuple[int, int]:
    """Return where the picture is: one more pixel to the right in every step, every third down."""
    return step // 3, step


def frame(image: Tensor, said: dict[str, list[int]], label: int, step: int) -> Image.Image:
    """Draw one step: the picture, and all answers so far, green where they are right."""
    side = SIZE * ZOOM
    page = Image.new("RGB", (WIDTH, side), "white")
    pixels = ts.shifts.circular_shift(image, *shift(step)).permute(1, 2, 0).numpy()
    page.paste(Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST))
    draw, left = ImageDraw.Draw(page), side + 24
    for number, (row, title) in enumerate(ROWS.items()):
        top = 10 + number * side // 2
        now = said[row][step]
        colour = GREEN if now == label else RED
        draw.text((left, top), title, INK, ImageFont.load_default(20))
        draw.text((left, top + 26), SHAPE_NAMES[now], colour, ImageFont.load_default(30))
        for k, one in enumerate(said[row][: step + 1]):
            x = left + k * 9
            draw.rectangle((x, top + 70, x + 7, top + 86), GREEN if one == label else RED)
    return page


def main() -> None:
    """Draw the first unseen picture that both get right at first, but one not at every place."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="?", default=Path("runs/quickstart/0"))
    parser.add_argument("--out", type=Path, default=Path("docs/shifts.gif"))
    args = parser.parse_args()
    images, labels, _ = make_shapes(64, SIZE, seed=1_000)
    for image, label in zip(images, labels.tolist(), strict=True):
        said = answers(args.run, image)
        if all(one[0] == label for one in said.values()) and len(set(said["stride"])) > 2:
            break
    frames = [frame(image, said, label, step) for step in range(SIZE)]
    palette = frames[-1].quantize(64)
    frames = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in frames]
    frames[0].save(args.out, save_all=True, append_images=frames[1:], duration=200, loop=0)


if __name__ == "__main__":
    main()
