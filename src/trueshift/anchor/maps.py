"""Maps: every pixel of the frame takes its value from one tile of a grid that the content fixes.

Tiles lie on the lattice of :mod:`trueshift.anchor.places`, far apart instead of near the centre:
as far as half a window, so that each gives its middle part only. Pixels that no such tile reaches,
less than one spacing from the border, come from tiles at the border of the frame.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from trueshift.anchor.places import Places, grid, spread

LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def tiling(frame: tuple[int, ...], window: tuple[int, ...], modulus: tuple[int, ...]) -> Places:
    """Return the places of the anchored tiles: a multiple of ``modulus`` apart, half a window."""
    if any(m > w for m, w in zip(modulus, window, strict=True)):
        raise ValueError(
            f"anchor: tiles of {window} that are {modulus} apart leave gaps. Pass a modulus of at"
            " most the window."
        )
    Places(frame, window, modulus, (1,) * len(frame))  # raises if there is no room
    room = [f - w + 1 for f, w in zip(frame, window, strict=True)]
    spacing = tuple(
        max(m, min(r, w // 2) // m * m) for r, w, m in zip(room, window, modulus, strict=True)
    )
    counts = tuple(r // s for r, s in zip(room, spacing, strict=True))
    return Places(frame, window, spacing, counts)


def tiles(places: Places, residues: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Lay out the tiles of each frame.

    Args:
        places: From :func:`tiling`.
        residues: Of the strongest points, ``(B, dim)``.

    Returns:
        Corners of the tiles ``(B, K, dim)``; the tile of every pixel ``(B, *spatial)``; and where
        in its tile a pixel lies, along each axis ``(B, size)``.
    """
    lines, owners, inside = [], [], []
    for axis, (frame, window) in enumerate(zip(places.frame, places.window, strict=True)):
        anchored = places.along(axis, residues)  # (B, n)
        ends = anchored.new_tensor([0, frame - window]).expand(len(anchored), 2)
        line = torch.cat([ends[:, :1], anchored, ends[:, 1:]], 1)  # (B, 1 + n + 1)
        pixel = torch.arange(frame, device=residues.device)
        spacing, count = places.spacing[axis], places.counts[axis]
        first, last = anchored[:, :1], anchored[:, -1:]
        # Neighbouring tiles meet halfway: each owns the `spacing` pixels in its middle.
        owner = (pixel - first - (window - spacing) // 2).div(spacing, rounding_mode="floor")
        owner = owner.clamp(0, count - 1) + 1
        owner = torch.where(pixel < first, 0, owner)
        owner = torch.where(pixel >= last + window, count + 1, owner)
        lines.append(line)
        owners.append(owner)
        inside.append(pixel - line.gather(1, owner))
    index = torch.zeros_like(owners[0][:, :1]).view(-1, *[1] * len(lines))
    for line, owner in zip(lines, spread(owners), strict=True):
        index = index * line.shape[1] + owner
    return grid(lines), index, inside


def put_back(
    outputs: Tensor, index: Tensor, inside: list[Tensor], window: tuple[int, ...]
) -> Tensor:
    """Assemble the outputs of the tiles to a map of the frame.

    Args:
        outputs: ``(B * K, C, *sizes)``, or without channels; other sizes than ``window`` are
            resized to it.
        index: The tile of every pixel, ``(B, *spatial)``.
        inside: Where in its tile a pixel lies, along each axis ``(B, size)``.
        window: Size of the tiles.

    Returns:
        ``(B, C, *spatial)``, or without channels.
    """
    dim, count = len(window), len(index)
    plain = outputs.ndim == dim + 1
    if plain:
        outputs = outputs[:, None]
    if outputs.ndim != dim + 2:
        raise ValueError(
            f"anchor: maps must have shape (N, C, *window) or (N, *window), got"
            f" {tuple(outputs.shape)} for windows of {window}."
        )
    if tuple(outputs.shape[2:]) != window:
        if not outputs.dtype.is_floating_point:
            raise ValueError(
                f"anchor: maps of labels must have the size of the windows {window}, got shape"
                f" {tuple(outputs.shape)}. Return scores: those are resized."
            )
        outputs = F.interpolate(outputs, window, mode=LINEAR[dim], align_corners=False)
    stacked = outputs.unflatten(0, (count, -1))  # (B, K, C, *window)
    frame = torch.arange(count, device=index.device).view(-1, *[1] * dim)
    whole = stacked[(frame, index, slice(None), *spread(inside))]  # (B, *spatial, C)
    return whole[..., 0] if plain else whole.movedim(-1, 1).contiguous()
