"""Segment images of any size: extend them to what the network takes, crop the answer back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trueshift._validate import check_positive


def extend(x: Tensor, multiple: int | tuple[int, ...], value: float = 0.0, dim: int = 2) -> Tensor:
    """Extend maps at the end of every spatial axis to the next multiple.

    Args:
        x: Maps ``(..., *spatial)``.
        multiple: What every size is to be a multiple of, or one number per axis.
        value: What the new pixels hold; in a normalised image 0 is the mean colour.
        dim: Number of spatial axes.

    Returns:
        The extended maps; ``x`` itself if its sizes fit.

    Examples:
        >>> extend(torch.ones(1, 5, 8), 4).shape
        torch.Size([1, 8, 8])
    """
    steps = (multiple,) * dim if isinstance(multiple, int) else multiple
    for step in steps:
        check_positive("extend", multiple=step)
    pairs = reversed(list(zip(x.shape[-dim:], steps, strict=True)))
    widths = [width for size, step in pairs for width in (0, -size % step)]
    return F.pad(x, widths, value=value) if any(widths) else x


def segment(
    model: nn.Module, images: Tensor, *, multiple: int | tuple[int, ...] | None = None
) -> Tensor:
    """Return a segmenter's logits for images of any size, as large as the images.

    Standard setting (``padding_mode="zeros"``): networks take every size, as is usual, and nothing
    is extended.

    Circular setting: a network takes multiples of its total stride and treats what it gets as one
    period of an image that repeats forever. An image of another size is first extended with the
    mean colour at the right and below, so the period is the *extended* image: the bottom of the
    picture meets its top, and the right its left, across a strip of mean colour. The guarantee
    holds for that period: a circular shift of the extended image shifts the logits bitwise. A
    circular shift of the picture before it is extended gives a different image. Where the picture
    truly repeats (a panorama, a simulation on a torus), do not extend it: resize it to a multiple.

    Args:
        model: A network of :mod:`trueshift.models` or one like it, in the mode that is wanted.
        images: Normalised images ``(B, C, *spatial)``.
        multiple: What sizes are extended to; ``None`` means ``model.required_multiple``.

    Returns:
        Logits ``(B, num_classes, *spatial)``.

    Examples:
        >>> from trueshift.layers.spec import Sampling
        >>> from trueshift.models.unet import unet
        >>> model = unet(Sampling("lps", "tri3"), num_classes=2, widths=(4, 8, 8)).eval()
        >>> segment(model, torch.randn(1, 3, 15, 21)).shape
        torch.Size([1, 2, 15, 21])
    """
    if multiple is None:
        multiple = _required_multiple(model)
    sizes = images.shape[2:]
    logits: Tensor = model(extend(images, multiple, dim=len(sizes)))
    for axis, size in enumerate(sizes, start=2):
        logits = logits.narrow(axis, 0, size)
    return logits


def predict_mask(
    model: nn.Module, images: Tensor, *, multiple: int | tuple[int, ...] | None = None
) -> Tensor:
    """Return the most likely label of every pixel; arguments as for :func:`segment`.

    Returns:
        int64 ``(B, *spatial)``.
    """
    with torch.no_grad():
        return segment(model, images, multiple=multiple).argmax(1)


def _required_multiple(model: nn.Module) -> int | tuple[int, ...]:
    multiple: Any = getattr(model, "required_multiple", None)
    if not isinstance(multiple, int | tuple):
        raise TypeError(
            f"segment: {type(model).__name__} does not say what its sizes must be multiples of."
            " Pass multiple."
        )
    return multiple
