"""Masks of a segmenter before and after a shift, in the same frame."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor, nn

from trueshift._validate import check_choice
from trueshift.models.anysize import extend, predict_mask
from trueshift.shifts import circular_shift, common_region, standard_shift

KINDS = ("circular", "standard")


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
        """Where the shift changes the label, boolean ``(H, W)``."""
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
