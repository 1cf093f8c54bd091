"""What attention needs on a circle: windows that begin at a phase, circular distances."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from trueshift.convert.parts.phases import Recipe, Unshift, cut
from trueshift.convert.parts.windows import Window


class Partition(Window):
    """Move a map so that the windows that it is cut into afterwards begin at a phase.

    Args:
        stride: Size of the windows.

    Shape:
        ``(B, C, *spatial)`` and a phase to the same shape.
    """

    has_dense = False

    def __init__(self, stride: tuple[int, ...]) -> None:
        super().__init__(stride, (0,) * len(stride), tuple(step - 1 for step in stride))

    def forward(self, x: Tensor, phase: Tensor | None = None, *tensors: Any) -> Tensor:
        if phase is None:
            return x
        return cut(x, phase, self.stride, [(0, step - 1) for step in self.stride])


class CircularBias(nn.Module):
    """A bias of relative positions in which every pair has that of its shortest way around.

    Where queries are sampled and keys are not, the bias moves with the phase of the queries.

    Args:
        dims: Which axes, from the last one, are the positions of queries and keys.
        rows: Sizes of the map of the queries.
        columns: Sizes of the map of the keys.
        recipe: The offset of queries among keys.

    Shape:
        A tensor with axes ``prod(rows)`` and ``prod(columns)`` to the same, or to one per image.
    """

    places: Tensor

    def __init__(
        self,
        dims: tuple[int, int],
        rows: tuple[int, ...],
        columns: tuple[int, ...],
        recipe: Recipe | None = None,
    ) -> None:
        super().__init__()
        self.dims, self.rows, self.columns = dims, rows, columns
        self.unshift = None if recipe is None else Unshift(recipe)
        pairs = [_shortest(*sizes) for sizes in zip(rows, columns, strict=True)]
        places = [
            _ravel([(axis[i, j]) for axis, i, j in zip(pairs, at, to, strict=True)], rows, columns)
            for at in itertools.product(*map(range, rows))
            for to in itertools.product(*map(range, columns))
        ]
        self.register_buffer("places", torch.tensor(places), persistent=False)

    def forward(self, bias: Tensor, *phases: Tensor) -> Tensor:
        bias = bias.movedim(self.dims, (-2, -1))
        shape = bias.shape
        bias = bias.flatten(-2)[..., self.places].reshape(shape)
        if self.unshift is not None and phases:
            heads = bias.reshape(1, -1, *self.columns).expand(len(phases[0]), -1, *self.columns)
            bias = self.unshift(heads, *phases).reshape(-1, *shape[-3:])
        return bias.movedim((-2, -1), self.dims)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"dims={self.dims}, rows={self.rows}, columns={self.columns}"


def _shortest(count: int, size: int) -> dict[tuple[int, int], tuple[int, int]]:
    """For every row and column, the first pair of the same way around that does not wrap."""
    step = size // count
    result = {}
    for i, j in itertools.product(range(count), range(size)):
        ways = sorted(((step * i - j) % size, (step * i - j) % size - size), key=abs)
        pairs = ((row, step * row - way) for way in ways for row in range(count))
        result[i, j] = next((row, column) for row, column in pairs if 0 <= column < size)
    return result


def _ravel(pairs: list[tuple[int, int]], rows: tuple[int, ...], columns: tuple[int, ...]) -> int:
    """Return the place of a pair of positions, given row and column on each axis."""
    place = [0, 0]
    for (row, column), height, width in zip(pairs, rows, columns, strict=True):
        place = [place[0] * height + row, place[1] * width + column]
    return place[0] * math.prod(columns) + place[1]
