"""The built-in pictures: textured shapes on textured backgrounds, drawn from a seed.

Nothing is downloaded. Objects stand near the centre, so the data does not teach a network to ignore
position; colours, textures, sizes and angles say nothing about the class, only the
outline does. Smaller shapes at the margin are distractors and belong to the background.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from trueshift._validate import check_positive

SHAPE_NAMES = (
    "disc", "triangle", "square", "pentagon", "star", "cross", "ring", "crescent", "bar", "flower",
)  # fmt: skip
_DISTRACTORS = ("disc", "bar")
_CHUNK = 256  # images drawn at once; the result does not depend on it
_NUMBERS = 48  # uniform random numbers per image, more than are used
_NOISE = 0.14  # half-width of the uniform pixel noise

Draw = Callable[[float, float], Tensor]


def make_shapes(num: int, size: int = 32, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Draw pictures of ten classes of shapes.

    The classes of every ten images are a permutation of all ten. Image ``i`` depends on ``seed``,
    ``size`` and ``i`` only, not on ``num``. On other processors single grey values may differ by
    one, as sines round differently there.

    Args:
        num: Number of images.
        size: Height and width in pixels.
        seed: Seed of the pictures.

    Returns:
        Images, uint8 ``(num, 3, size, size)``; labels, int64 ``(num,)``, 0..9; masks, uint8
        ``(num, size, size)``: 0 background, label + 1 on the object.

    Examples:
        >>> images, labels, masks = make_shapes(20, size=16)
        >>> images.shape, sorted(labels[:10].tolist()) == list(range(10))
        (torch.Size([20, 3, 16, 16]), True)
    """
    check_positive("make_shapes", num=num, size=size)
    tens = -(-num // len(SHAPE_NAMES))
    order = torch.rand(tens, len(SHAPE_NAMES), generator=_stream(seed, 0))
    labels = order.argsort(1).flatten()[:num].contiguous()
    numbers = torch.rand(num, _NUMBERS, generator=_stream(seed, 1))
    images = torch.empty(num, 3, size, size, dtype=torch.uint8)
    masks = torch.zeros(num, size, size, dtype=torch.uint8)
    for label, name in enumerate(SHAPE_NAMES):
        grain = _stream(seed, 2 + label)
        for chosen in (labels == label).nonzero().flatten().split(_CHUNK):
            picture, cover = _draw(name, numbers[chosen], size)
            noise = torch.rand(picture.shape, generator=grain).mul_(2 * _NOISE).sub_(_NOISE)
            grey = picture.add_(noise).mul_(255).round_().clamp_(0, 255)
            images[chosen] = grey.to(torch.uint8)
            masks[chosen] = (cover > 0.5).to(torch.uint8) * (label + 1)
    return images, labels, masks


def _stream(seed: int, number: int) -> torch.Generator:
    mixed = (seed * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9) % 2**63
    return torch.Generator().manual_seed(mixed)


def _draw(name: str, numbers: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return pictures in about [0, 1], ``(B, 3, H, W)``, and what the object covers."""
    axis = (torch.arange(size) * 2 + 1) / size - 1
    y, x = axis[None, :, None], axis[None, None, :]  # -1..1 over the image
    columns = iter(numbers.unbind(1))

    def draw(low: float, high: float) -> Tensor:
        return low + (high - low) * next(columns)[:, None, None]  # (B, 1, 1)

    def cover(kind: str, dx: Tensor, dy: Tensor, smallest: float, largest: float) -> Tensor:
        angle, radius = draw(-0.6, 0.6), draw(smallest, largest)
        cos, sin = angle.cos() / radius, angle.sin() / radius
        distance = _outline(kind, dx * cos + dy * sin, dy * cos - dx * sin)
        return (0.5 - distance * (radius * (size / 2))).clamp_(0, 1)  # edges one pixel wide

    colour = torch.stack([draw(0.15, 0.45) for _ in range(3)], 1)  # (B, 3, 1, 1)
    picture = colour + _texture(draw, x, y)
    for number, kind in enumerate(_DISTRACTORS):
        side, away = draw(0, math.pi) + math.pi * number, draw(0.85, 0.98)
        small = cover(kind, x - away * side.cos(), y - away * side.sin(), 0.08, 0.16)
        picture = torch.lerp(picture, colour + _contrast(draw), small[:, None])
    whole = cover(name, x - draw(-0.12, 0.12), y - draw(-0.12, 0.12), 0.45, 0.75)
    paint = colour + _contrast(draw) + _texture(draw, x, y)
    return torch.lerp(picture, paint, whole[:, None]), whole


def _contrast(draw: Draw) -> Tensor:
    """Return a step to a brighter colour, ``(B, 3, 1, 1)``, weak or strong."""
    direction = torch.stack([draw(0.1, 1) for _ in range(3)], 1)
    return direction / direction.norm(dim=1, keepdim=True) * draw(0.25, 0.8)[:, None]


def _texture(draw: Draw, x: Tensor, y: Tensor) -> Tensor:
    """Return coloured stripes ``(B, 3, H, W)`` of any direction and width."""
    angle, waves, start = draw(0, math.pi), draw(4, 20), draw(0, 2 * math.pi)
    stripes = ((x * angle.cos() + y * angle.sin()) * waves + start).sin()  # (B, H, W)
    return torch.stack([draw(-0.07, 0.07) for _ in range(3)], 1) * stripes[:, None]


def _outline(name: str, x: Tensor, y: Tensor) -> Tensor:
    """About the distance to the outline of a shape of radius 1, negative inside."""
    if name == "cross":
        x, y = x.abs(), y.abs()
        return torch.maximum(torch.maximum(x, y) - 1, torch.minimum(x, y) - 0.3)
    if name == "bar":
        return torch.maximum(x.abs() - 1, y.abs() - 0.4)
    far = (x.square() + y.square()).sqrt()
    if name == "disc":
        return far - 1
    if name == "ring":
        return (far - 0.75).abs() - 0.25
    if name == "crescent":
        return torch.maximum(far - 1, 0.75 - ((x - 0.5).square() + y.square()).sqrt())
    around = torch.atan2(y, x)
    if name == "flower":
        return far - (0.78 + 0.22 * (5 * around).cos())
    corners, inner = {
        "triangle": (3, 0.5),
        "square": (4, 0.5**0.5),
        "pentagon": (5, math.cos(math.pi / 5)),
        "star": (5, 0.45),
    }[name]
    half = math.pi / corners  # from a corner to the middle of a side, which is at `inner`
    fold = (around.remainder(2 * half) - half).abs().neg_().add_(half)
    side = inner * math.sin(half) / (inner * (half - fold).sin() + fold.sin())
    return far - side
