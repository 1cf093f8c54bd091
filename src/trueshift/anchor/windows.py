"""Sizes, residues and windows of frames."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trueshift._validate import check_map, check_positive
from trueshift.anchor.places import Places

Size = int | Sequence[int]


def residues_of(places: Places, position: Tensor, value: Tensor) -> Tensor:
    """Residues of the strongest points; a frame without any keeps its windows at the centre."""
    residues = position % position.new_tensor(places.spacing)
    return torch.where(value[:, None] > 0, residues, position.new_tensor(places.middle))


def crop(frames: Tensor, corners: Tensor, window: tuple[int, ...]) -> Tensor:
    """Cut out windows ``(B * K, C, *window)``."""
    cut = []
    for frame, places in zip(frames, corners.tolist(), strict=True):
        for corner in places:
            part = frame
            for axis, (start, length) in enumerate(zip(corner, window, strict=True), start=1):
                part = part.narrow(axis, start, length)
            cut.append(part)
    return torch.stack(cut) if cut else frames.new_empty(0, frames.shape[1], *window)


def check_sizes(name: str, value: Size) -> int | tuple[int, ...]:
    """Check one positive integer, or one for each axis."""
    if isinstance(value, list | tuple):
        for number in value:
            check_positive("anchor", **{name: number})
        return tuple(int(number) for number in value)
    check_positive("anchor", **{name: value})  # type: ignore[arg-type]  # refuses the rest
    return int(value)  # type: ignore[arg-type]


def per_axis(name: str, value: int | tuple[int, ...], dim: int) -> tuple[int, ...]:
    """Return one size for each of ``dim`` axes."""
    if isinstance(value, int):
        return (value,) * dim
    if len(value) != dim:
        raise ValueError(
            f"anchor: {name} {value} has {len(value)} entries for frames with {dim} spatial axes."
            f" Pass one integer, or {dim}; frames need a batch axis, (B, C, *spatial)."
        )
    return value


def check_frames(frames: object) -> None:
    """Raise unless ``frames`` are frames of one size, ``(B, C, *spatial)``."""
    if isinstance(frames, list | tuple):
        shapes = sorted({tuple(getattr(frame, "shape", ())) for frame in frames})
        raise TypeError(
            f"anchor: frames must be one tensor (B, C, *spatial), got {len(frames)} frames of"
            f" shapes {shapes}. Stack frames of one size; call once for each size."
        )
    check_map("anchor", frames, name="frames")  # type: ignore[arg-type]  # refuses the rest
