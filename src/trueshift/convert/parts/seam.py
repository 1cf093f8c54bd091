"""Where the border of a picture is, for networks that keep their own padding.

On a circle the two ends of a picture meet, and there its rows, or columns, do not fit together: a
seam. Wherever the picture is moved to, the seam moves along. A network that counts from it sees the
same picture for every shift, with the border where it was trained to have one.
"""

from __future__ import annotations

import functools
import operator

import torch
from torch import Tensor, nn

from trueshift.exact import layout_of, order_free_mean
from trueshift.ties import argmax_phase
from trueshift.windows import axis_length, read_at, unravel

_QUIET = 0.01  # jumps this small compared with the largest one count for little


class Seam(nn.Module):
    """Move pictures so that they begin at their seam.

    Every map of the network is then the same for all shifts of the input, so that ties matter only
    for the seam itself, where the whole picture breaks them.

    Shape:
        Inputs ``(B, C, *spatial)`` that move together to the same, moved, and the offsets
        ``(B, dim)`` of their seams.
    """

    def forward(self, *images: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            wide = functools.reduce(torch.promote_types, [x.dtype for x in images], torch.float32)
            batch = max(image.shape[0] for image in images)
            images = tuple(_of_batch(image, batch) for image in images)
            picture = torch.cat([image.to(wide) for image in images], 1)
            sizes = tuple(picture.shape[2:])
            phase = argmax_phase(seam_scores(picture), picture, sizes)
            lengths = [axis_length(size, phase.device) for size in sizes]
            offsets = torch.stack(unravel(phase, lengths), 1)
        axes = tuple(range(2, picture.ndim))
        return (*(roll_each(image, -offsets, axes) for image in images), offsets)


class FromSeam(nn.Module):
    """Move a result back to where its picture was.

    Args:
        batch: The axis of the images.
        axes: The spatial axes of the result.
        places: Which axis of the input each of them is, how many times finer it is, and its stride:
            on coarser grids the offset is rounded down to whole strides.

    Shape:
        A result and offsets ``(B, dim)`` to a result of the same shape.
    """

    def __init__(
        self, batch: int, axes: tuple[int, ...], places: tuple[tuple[int, int, int], ...]
    ) -> None:
        super().__init__()
        self.batch, self.axes, self.places = batch, axes, places

    def forward(self, y: Tensor, offsets: Tensor) -> Tensor:
        shifts = [offsets[:, axis] * fine // stride for axis, fine, stride in self.places]
        if self.batch == 0:
            return roll_each(y, torch.stack(shifts, 1), self.axes)
        axes = tuple(axis + 1 if axis < self.batch else axis for axis in self.axes)
        moved = roll_each(y.movedim(self.batch, 0), torch.stack(shifts, 1), axes)
        return moved.movedim(0, self.batch)

    def extra_repr(self) -> str:
        """Show the axes."""
        return f"axes={self.axes}, places={self.places}"


def _of_batch(image: Tensor, batch: int) -> Tensor:
    """Repeat one image that stands for all of a batch."""
    alone = image.shape[0] == 1 and batch > 1
    return image.expand(batch, *image.shape[1:]) if alone else image


def seam_scores(x: Tensor) -> Tensor:
    """Score how well a picture may begin at each position: ``(B, number of positions)``.

    A row begins a picture if its pixels differ from the row before it by more than rows around them
    do. A ratio says by how much, so that an edge counts along its length and not by its contrast;
    the mean over the row is order-free. Scores move with the picture, bit by bit.

    Args:
        x: Picture ``(B, C, *spatial)``, floating.

    Examples:
        >>> x = torch.arange(6.0).roll(2).view(1, 1, 6)
        >>> seam_scores(x).argmax(1)
        tensor([2])
    """
    space = tuple(range(1, x.ndim - 1))
    lines = []
    for axis in space:
        jump = (x - x.roll(1, 1 + axis)).abs().amax(1)  # (B, *spatial)
        around = jump.roll(1, axis) + jump.roll(-1, axis)
        quiet = (_QUIET * jump.amax(space, keepdim=True)).clamp_min(torch.finfo(x.dtype).tiny)
        ratio = (jump - around / 2) / (jump + around + quiet)
        others = tuple(other for other in space if other != axis)
        line = order_free_mean(ratio, others) if others else ratio
        lines.append(line[(slice(None), *(slice(None) if axis == o else None for o in space))])
    return functools.reduce(operator.add, lines).flatten(1)


def roll_each(x: Tensor, shifts: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Shift the content of each of a batch's items along ``axes`` by its own row of ``shifts``."""
    others = [axis for axis in range(1, x.ndim) if axis not in axes]
    flat = x.permute(0, *others, *axes).flatten(1, len(others)) if others else x[:, None]
    moved = read_at(flat, [-shift for shift in shifts.unbind(1)], flat.shape[2:])
    moved = moved.unflatten(1, [x.shape[axis] for axis in others]) if others else moved[:, 0]
    order = [0, *others, *axes]
    return layout_of(x, moved.permute([order.index(axis) for axis in range(x.ndim)]))
