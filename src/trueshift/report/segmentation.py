"""The paper's qualitative figure: masks of two segmenters on images and on shifted images."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trueshift._validate import check_choice
from trueshift.models.anysize import extend, predict_mask
from trueshift.report.images import colour_mask
from trueshift.report.pictures import picture_grid, save_figure
from trueshift.shifts import circular_shift, common_region, standard_shift

KINDS = ("circular", "standard")
_MARK = torch.tensor([255, 0, 60], dtype=torch.uint8)


class Masks(NamedTuple):
    """What one network says of one image.

    Attributes:
        still: Labels ``(H, W)`` for the image.
        moved: Labels for the shifted image, moved back: pixel by pixel comparable with ``still``.
    """

    still: Tensor
    moved: Tensor

    @property
    def changed(self) -> Tensor:
        """Where the label is another one after the shift, boolean ``(H, W)``."""
        return self.still != self.moved


def masks_under_shift(
    model: nn.Module,
    image: Tensor,
    shift: tuple[int, int],
    kind: str = "circular",
    multiple: int = 1,
) -> Masks:
    """Segment an image before and after a shift.

    Args:
        model: A segmenter in eval mode.
        image: Normalised image ``(C, H, W)`` of any size.
        shift: By how much to move it, (dy, dx).
        kind: ``"circular"``: the image, extended as :func:`trueshift.models.segment` does, wraps
            around. ``"standard"``: a window moves over the image; nothing wraps, and the masks
            are those of what both windows show.
        multiple: What sizes are extended to; for networks that are compared on the same image, a
            multiple of both :attr:`required_multiple`.

    Returns:
        The masks; with standard shifts smaller than the image.
    """
    check_choice("masks_under_shift", "kind", kind, KINDS)
    height, width = image.shape[-2:]
    if kind == "circular":
        period = extend(image[None], multiple)
        still = predict_mask(model, period, multiple=multiple)[0]
        moved = predict_mask(model, circular_shift(period, *shift), multiple=multiple)[0]
        back = circular_shift(moved, -shift[0], -shift[1])
        return Masks(still[:height, :width], back[:height, :width])
    window = _window(image, shift)
    views = [standard_shift(image[None], window, *by) for by in ((0, 0), shift)]
    still, moved = (predict_mask(model, view, multiple=multiple)[0] for view in views)
    return Masks(*common_region(still, moved, (0, 0), shift))


def shown_region(image: Tensor, shift: tuple[int, int], kind: str) -> Tensor:
    """Return the part ``(C, h, w)`` of an image that its masks under a shift show."""
    if kind == "circular":
        return image
    window = _window(image, shift)
    still, moved = (standard_shift(image, window, *by) for by in ((0, 0), shift))
    return common_region(still, moved, (0, 0), shift)[0]


def common_multiple(*models: nn.Module) -> int:
    """Return the smallest multiple that all networks take."""
    return math.lcm(*(int(getattr(model, "required_multiple", 1)) for model in models))


def qualitative_figure(
    images: Sequence[Tensor],
    masks: Mapping[str, Sequence[Masks]],
    path: str | os.PathLike[str],
) -> Path:
    """Draw images and, for each network, its masks before and after a shift (paper appendix).

    A column for each image; a row of inputs, then two rows for each network. Masks of shifted
    images are moved back; where the label is another one than before, every second pixel is red.

    Args:
        images: uint8 ``(3, h, w)``, of the size of their masks.
        masks: Network to its masks, one for each image.
        path: Picture to write; it is returned.
    """
    wanted = [tuple(image.shape[1:]) for image in images]
    for name, pairs in masks.items():
        sizes = [tuple(pair.still.shape) for pair in pairs]
        if sizes != wanted:
            raise ValueError(
                f"qualitative_figure: the masks of {name!r} must have the sizes of the images"
                f" {wanted}, got {sizes}."
            )
    figure, axes = picture_grid(1 + 2 * len(masks), len(images), 1.5)
    axes[0][0].set_ylabel("input", fontsize=8)
    for panel, image in zip(axes[0], images, strict=True):
        panel.imshow(image.permute(1, 2, 0).numpy())
    for row, (name, pairs) in zip(range(1, 1 + 2 * len(masks), 2), masks.items(), strict=True):
        axes[row][0].set_ylabel(f"{name}\non input", fontsize=8)
        axes[row + 1][0].set_ylabel(f"{name}\non shifted", fontsize=8)
        for column, pair in enumerate(pairs):
            axes[row][column].imshow(_picture(pair.still).numpy())
            marked = _picture(pair.moved)
            marked[pair.changed.cpu() & _chequered(*pair.changed.shape)] = _MARK
            axes[row + 1][column].imshow(marked.numpy())
            share = float(pair.changed.double().mean())
            axes[row + 1][column].set_xlabel(f"{share:.1%} changed", fontsize=7)
    return save_figure(figure, path)


def _picture(mask: Tensor) -> Tensor:
    return colour_mask(mask.long().cpu()).permute(1, 2, 0).clone()  # (H, W, 3)


def _chequered(height: int, width: int) -> Tensor:
    return (torch.arange(height)[:, None] + torch.arange(width)) % 2 == 0


def _window(image: Tensor, shift: tuple[int, int]) -> tuple[int, int]:
    """Return the largest window that stays inside the image, still and shifted."""
    height, width = image.shape[-2:]
    window = (height - 2 * abs(shift[0]), width - 2 * abs(shift[1]))
    if min(window) < 1:
        raise ValueError(
            f"masks_under_shift: a standard shift by {shift} leaves nothing of an image of"
            f" {(height, width)}. Pass a smaller shift."
        )
    return window
