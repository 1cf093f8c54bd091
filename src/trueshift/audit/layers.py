"""Where inside a network shifts stop being shifts: the equivariance error of every module."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trueshift.audit.probes import observe_maps
from trueshift.audit.shifting import Offsets
from trueshift.shifts import circular_shift, common_region


@dataclass(frozen=True)
class LayerError:
    """By how much a module's output for a shifted image is not the shifted output.

    Errors are root mean squares of the difference as fractions of that of the output, averaged
    over images and shifts. On a coarser grid a shift may become either of the two nearest steps,
    depending on the phase that a layer chose: the one that fits best counts. No step at all counts
    too, since positions may be counted from an origin that moves with the image.

    Attributes:
        name: The module, with the number of the call if it is called again.
        kind: Its class.
        shape: Shape of its output without the batch axis.
        input_error: Error of the map that it was given; NaN if that is no map.
        error: Error of its output.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    input_error: float
    error: float

    @property
    def added(self) -> float:
        """How much the module adds to the error of its input."""
        return self.error - (0.0 if math.isnan(self.input_error) else self.input_error)


class LayerRecorder:
    """Compares maps inside a network while it runs on images and, in the same batch, shifted ones.

    Maps are compared as they come and not kept, but for those of modules that take a batch in
    parts.

    Args:
        model: The network.
        kind: ``"circular"`` or ``"standard"``.
    """

    def __init__(self, model: nn.Module, kind: str) -> None:
        self.model, self.kind = model, kind
        self._errors: dict[str, _Errors] = {}

    @contextlib.contextmanager
    def recording(self, rows: int, size: tuple[int, int], shift: Offsets) -> Iterator[None]:
        """Record one call of the model on ``torch.cat([images, shifted images])``.

        Args:
            rows: Length of that batch.
            size: Height and width of the images.
            shift: By how much the second half is shifted.
        """
        calls: dict[str, int] = {}
        parts: dict[str, _Parts] = {}

        def record(name: str, module: nn.Module, args: Any, result: Any) -> None:
            given, out = first_tensor(args), first_tensor(result)
            if out is None or out.ndim == 0 or len(out) > rows:  # windows are no pictures
                return
            if len(out) < rows:
                given, out = parts.setdefault(name, _Parts(rows)).add(given, out)
            before, after = as_map(given, size), as_map(out, size)
            if after is None or len(after) % 2:
                return
            calls[name] = calls.get(name, 0) + 1
            key = name if calls[name] == 1 else f"{name} (call {calls[name]})"
            new = _Errors(type(module).__name__, tuple(after.shape[1:]), [], [])
            errors = self._errors.setdefault(key, new)
            if before is not None and len(before) == len(after):
                errors.inputs.append(map_error(before, size, shift, self.kind))
            errors.outputs.append(map_error(after, size, shift, self.kind))

        with observe_maps(self.model, record):
            yield

    def errors(self) -> tuple[LayerError, ...]:
        """Return the mean errors in the order of the first call."""
        return tuple(
            LayerError(name, one.kind, one.shape, _mean(one.inputs), _mean(one.outputs))
            for name, one in self._errors.items()
        )


class _Errors(NamedTuple):
    kind: str
    shape: tuple[int, ...]
    inputs: list[float]
    outputs: list[float]


class _Parts:
    """Collects what a module takes and returns until it has seen the whole batch."""

    def __init__(self, rows: int) -> None:
        self.rows, self.pairs = rows, list[tuple[Tensor, Tensor]]()

    def add(self, given: Tensor | None, out: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Add a part; return inputs and outputs of the batch if it is complete."""
        given = out[:0] if given is None or given.shape[:1] != out.shape[:1] else given
        shapes = (given.shape[1:], out.shape[1:])
        if any((a.shape[1:], b.shape[1:]) != shapes for a, b in self.pairs):
            self.pairs.clear()  # these were not parts of one batch
        self.pairs.append((given.clone(), out.clone()))  # later modules may overwrite them
        num_rows = sum(len(part) for _, part in self.pairs)
        if num_rows < self.rows:
            return None, None
        before, after = zip(*self.pairs, strict=True)
        self.pairs.clear()
        return (torch.cat(before), torch.cat(after)) if num_rows == self.rows else (None, None)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


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
    for steps in {(0, 0), *itertools.product(*_steps(y.shape[2:], size, shift))}:
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
