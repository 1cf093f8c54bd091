"""Where inside a network shifts stop being shifts: the equivariance error of every module."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trueshift.audit.maps import as_map, first_tensor, map_error
from trueshift.audit.probes import observe_maps
from trueshift.audit.shifting import Offsets


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
            if out is not None and out.ndim > 0 and len(out) < rows:
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
