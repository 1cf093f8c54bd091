"""Which tensors are feature maps, and how far those of shifted images are from shifted maps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trueshift.audit.shifting import Offsets
from trueshift.shifts import circular_shift, common_region


def map_error(y: Tensor, size: tuple[int, int], shift: Offsets, kind: str) -> float:
    """Return the mean relative error of a map or a vector.

    Args:
        y: ``(2 B, C, h, w)`` or ``(2 B, C)``: of B images, then of the same images shifted.
        size: Height and width of the images.
        shift: The shift (dy, dx) in pixels of the images.
        kind: ``"circular"`` or ``"standard"``.

    Returns:
        Root mean square of the difference over that of the output, mean over the images.

    Examples:
        >>> x = torch.randn(1, 1, 4, 4)
        >>> map_error(torch.cat([x, circular_shift(x, 1, 0)]), (4, 4), (1, 0), "circular")
        0.0
    """
    still, moved = y.detach().float().chunk(2)
    if y.ndim == 2:
        return float(_relative(still, moved).mean())
    best: Tensor | None = None
    for steps in itertools.product(*_steps(y.shape[2:], size, shift)):
        if kind == "circular":
            a, b = circular_shift(still, *steps), moved
        else:
            a, b = common_region(still, moved, (0, 0), steps)
        if a.numel():
            error = _relative(a, b)
            best = error if best is None else torch.minimum(best, error)
    return 0.0 if best is None else float(best.mean())


def _steps(grid: Sequence[int], size: tuple[int, int], shift: Offsets) -> list[list[int]]:
    """Return for each axis the one or two whole steps of the grid nearest to the shift."""
    steps = []
    for cells, pixels, offset in zip(grid, size, shift, strict=True):
        stride = max(round(pixels / cells), 1)  # borders that are not padded cost a few cells
        moved = offset * max(round(cells / pixels), 1)
        low = moved // stride
        steps.append([low] if moved % stride == 0 else [low, low + 1])
    return steps


def _relative(a: Tensor, b: Tensor) -> Tensor:
    difference = (a - b).flatten(1).square().mean(1).sqrt()
    scale = a.flatten(1).square().mean(1).sqrt()
    return torch.where(difference == 0, difference, difference / scale.clamp(min=1e-12))


def first_tensor(value: Any) -> Tensor | None:
    """Return the first tensor in nested tuples, lists and dicts; None if there is none."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return next((t for t in map(first_tensor, value) if t is not None), None)
    return None


def as_map(y: Tensor | None, size: tuple[int, int]) -> Tensor | None:
    """View a module's output as ``(B, C, h, w)`` or ``(B, C)``; None if it is neither.

    Channels may come last, and tokens may stand for a grid, possibly after one class token.
    """
    if y is None or not y.is_floating_point():
        return None
    if y.ndim == 2:
        return y
    if y.ndim == 4 and math.prod(y.shape[2:]) == 1:
        return y.flatten(1)
    if y.ndim == 4:
        layouts = (y, y.permute(0, 3, 1, 2))
        return next((z for z in layouts if _is_grid(z.shape[2:], size)), None)
    if y.ndim == 3:
        for extra in (0, 1):
            tokens = y.shape[1] - extra
            rows = math.isqrt(tokens * size[0] // size[1])
            columns = tokens // max(rows, 1)
            if rows and rows * columns == tokens and rows * size[1] == columns * size[0]:
                return y[:, extra:].transpose(1, 2).unflatten(2, (rows, columns))
    return None


def _is_grid(grid: Sequence[int], size: tuple[int, int]) -> bool:
    """Tell whether both axes are sampled by about the same factor."""
    factors = [pixels / cells for pixels, cells in zip(size, grid, strict=True)]
    return max(factors) / min(factors) < 1.35  # small grids are rounded
