"""Where inside a network shifts stop being shifts: the equivariance error of every module."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trueshift.shifts import circular_shift, common_region

Offsets = tuple[int, int]


@dataclass(frozen=True)
class LayerError:
    """By how much a module's output for a shifted image is not the shifted output.

    Errors are root mean squares of the difference as fractions of that of the output, averaged
    over images and shifts. On a coarser grid the shift is known up to one step, as a polyphase
    layer may begin anywhere: the best of the neighbouring steps counts.

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
        """How much larger the error is behind the module than before it."""
        return self.error - (0.0 if math.isnan(self.input_error) else self.input_error)


class LayerRecorder:
    """Compares maps inside a network while it runs on images and, behind them, shifted ones.

    Both halves are in one batch, so that maps are compared when they are made and none is kept.

    Args:
        model: The network.
        kind: ``"circular"`` or ``"standard"``.
    """

    def __init__(self, model: nn.Module, kind: str) -> None:
        self.model, self.kind = model, kind
        self._sums: dict[str, list[Any]] = {}  # kind, shape, input errors, errors
        self._calls: dict[str, int] = {}

    @contextlib.contextmanager
    def recording(self, size: tuple[int, int], shift: Offsets) -> Iterator[None]:
        """Record one call of the model on ``torch.cat([images, shifted images])``.

        Args:
            size: Height and width of the images.
            shift: By how much the second half is shifted.
        """
        self._calls = {}
        handles = [
            module.register_forward_hook(self._hook(name, size, shift))
            for name, module in _units(self.model)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def errors(self) -> tuple[LayerError, ...]:
        """Return the mean errors in the order of the first call."""
        return tuple(
            LayerError(name, kind, shape, _mean(inputs), _mean(outputs))
            for name, (kind, shape, inputs, outputs) in self._sums.items()
        )

    def _hook(
        self, name: str, size: tuple[int, int], shift: Offsets
    ) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, result: Any) -> None:
            out = _as_map(_first_tensor(result), size)
            if out is None or len(out) % 2:
                return
            number = self._calls[name] = self._calls.get(name, 0) + 1
            key = name if number == 1 else f"{name} (call {number})"
            given = _as_map(_first_tensor(args), size)
            entry = self._sums.setdefault(
                key, [type(module).__name__, tuple(out.shape[1:]), [], []]
            )
            if given is not None and given.shape[0] == out.shape[0]:
                entry[2].append(map_error(given, size, shift, self.kind))
            entry[3].append(map_error(out, size, shift, self.kind))

        return hook


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
    found = []
    for cells, pixels, offset in zip(grid, size, shift, strict=True):
        stride = max(round(pixels / cells), 1)  # borders that are not padded cost a few cells
        moved = offset * max(round(cells / pixels), 1)
        low = moved // stride
        found.append([low] if moved % stride == 0 else [low, low + 1])
    return found


def _relative(a: Tensor, b: Tensor) -> Tensor:
    difference = (a - b).flatten(1).square().mean(1).sqrt()
    scale = a.flatten(1).square().mean(1).sqrt()
    return torch.where(difference == 0, difference, difference / scale.clamp(min=1e-12))


def _units(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that are not looked into: leaves, and layers with a selector."""
    if isinstance(model, torch.jit.ScriptModule):  # compiled: calls inside it cannot be seen
        return
    for name, child in model.named_children():
        full = f"{prefix}{name}"
        leaf = hasattr(child, "selector") or next(child.children(), None) is None
        if leaf and not isinstance(child, torch.jit.ScriptModule):
            yield full, child
        else:
            yield from _units(child, f"{full}.")


def _first_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return next((t for t in map(_first_tensor, value) if t is not None), None)
    return None


def _as_map(y: Tensor | None, size: tuple[int, int]) -> Tensor | None:
    """View a module's output as ``(B, C, h, w)`` or ``(B, C)``; None if it is neither.

    Channels may come last, and tokens may stand for a grid, possibly behind one class token.
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


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
