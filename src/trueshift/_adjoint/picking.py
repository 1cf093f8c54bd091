"""Reading each image at its own phase, by one gather or image by image."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from trueshift._adjoint.views import unravel

# From these sizes of an image on, copies of rows, image by image, are quicker than one gather of
# values.
_PICK_ELEMENTS = 2**13
_WRAP_ELEMENTS = 2**16


def pick(blocks: Tensor, phase: Tensor, stride: tuple[int, ...], *, last: bool = False) -> Tensor:
    """Read from ``(B, C, *stride, *sizes)`` the block at each image's phase: ``(B, C, *sizes)``."""
    ordered = offsets_first(blocks, len(stride), last)
    if ordered.stride(-1) == 1 and image_by_image(ordered, math.prod(stride) * _PICK_ELEMENTS):
        picked = blocks.new_empty(ordered.shape[0], *ordered.shape[1 + len(stride) :])
        offsets = list(itertools.product(*map(range, stride)))
        for image, source, place in zip(picked, ordered, phase.tolist(), strict=True):
            image.copy_(source[offsets[place]])
    else:
        picked = ordered[per_image(phase, stride)]
    return picked.movedim(-1, 1) if last else picked


def image_by_image(x: Tensor, elements: int = _WRAP_ELEMENTS) -> bool:
    """Whether images of ``x`` are large enough to be copied one by one.

    Such copies leave no trace for a backward pass.
    """
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and x.requires_grad):
        return False
    return x.device.type == "cpu" and math.prod(x.shape[1:]) >= elements


def per_image(phase: Tensor, stride: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Index of each image's phase in blocks whose axes begin with batch and offsets."""
    return (torch.arange(phase.shape[0], device=phase.device), *unravel(phase, stride))


def offsets_first(blocks: Tensor, dim: int, last: bool) -> Tensor:
    """Order the axes as batch, offsets, then channels and space as they lie in memory."""
    space = range(2 + dim, 2 + 2 * dim)
    rest = (*space, 1) if last else (1, *space)
    return blocks.permute(0, *range(2, 2 + dim), *rest)
