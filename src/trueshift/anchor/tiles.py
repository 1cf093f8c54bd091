"""Maps: every pixel of the frame takes its value from one tile of a grid that the content fixes.

Tiles lie on a lattice that moves with the content, up to half a window apart, so that each gives
its middle part only. Pixels that no such tile reaches, less than one step from the border, come
from tiles at the border of the frame.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trueshift.anchor.places import Line, grid, spread

_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def tiling(axes: Sequence[Line]) -> tuple[Line, ...]:
    """Return the places of tiles: a multiple of the modulus apart, at most half a window."""
    if any(a.modulus > a.window for a in axes):
        window, modulus = tuple(a.window for a in axes), tuple(a.modulus for a in axes)
        raise ValueError(
            f"anchor: tiles of {window} that are {modulus} apart leave gaps. Pass a modulus of at"
            " most the window."
        )
    return tuple(_lattice(axis, axis.frame - axis.window + 1) for axis in axes)


def _lattice(axis: Line, room: int) -> Line:
    m = axis.modulus
    step = max(m, min(room, axis.window // 2) // m * m)
    return Line(axis.frame, axis.window, step, room // step)


def tiles(axes: Sequence[Line], residues: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Lay out the tiles of each frame.

    Args:
        axes: From :func:`tiling`.
        residues: Of the strongest points, ``(B, dim)``.

    Returns:
        Corners of the tiles ``(B, K, dim)``; the tile of every pixel ``(B, *spatial)``; and where
        in its tile a pixel lies, along each axis ``(B, size)``.
    """
    starts, owners, inside = [], [], []
    for axis, residue in zip(axes, residues.unbind(1), strict=True):
        anchored = axis.corners(residue)  # (B, n)
        ends = anchored.new_tensor([0, axis.frame - axis.window]).expand(len(anchored), 2)
        start = torch.cat([ends[:, :1], anchored, ends[:, 1:]], 1)  # (B, 1 + n + 1)
        pixel = torch.arange(axis.frame, device=residue.device)
        # Neighbouring tiles meet halfway: each owns `modulus` pixels in its middle.
        halfway = pixel - anchored[:, :1] - (axis.window - axis.modulus) // 2
        owner = halfway.div(axis.modulus, rounding_mode="floor").clamp(0, axis.count - 1) + 1
        owner = torch.where(pixel < anchored[:, :1], 0, owner)
        owner = torch.where(pixel >= anchored[:, -1:] + axis.window, axis.count + 1, owner)
        starts.append(start)
        owners.append(owner)
        inside.append(pixel - start.gather(1, owner))
    index = torch.zeros_like(owners[0][:, :1]).view(-1, *[1] * len(axes))
    for start, owner in zip(starts, spread(owners), strict=True):
        index = index * start.shape[1] + owner
    return grid(starts), index, inside


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
        outputs = resized(outputs, window)
    stacked = outputs.unflatten(0, (count, len(outputs) // max(count, 1)))  # (B, K, C, *window)
    frame = torch.arange(count, device=index.device).view(-1, *[1] * dim)
    whole = stacked[(frame, index, slice(None), *spread(inside))]  # (B, *spatial, C)
    return whole[..., 0] if plain else whole.movedim(-1, 1).contiguous()


def resized(x: Tensor, size: tuple[int, ...], antialias: bool = False) -> Tensor:
    """Interpolate to ``size``, in float32 at least: torch has no kernels for some other types."""
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    wide = F.interpolate(wide, size, mode=_LINEAR[len(size)], antialias=antialias)
    return (wide if x.dtype.is_floating_point else wide.round()).to(x.dtype)
