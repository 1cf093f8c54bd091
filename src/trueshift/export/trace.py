"""Trace a network for ranges of batches and sizes, narrowed to what one graph can serve."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

MAX_SIZE = 4096  # pixels along an axis up to which an exported graph breaks ties
_ATTEMPTS = 4
Range = tuple[int, int | None]


def full_ranges(
    example: Tensor, multiples: tuple[int, ...], dynamic: Sequence[str]
) -> dict[str, Range]:
    """Range of everything that may change, sizes in multiples."""
    ranges: dict[str, Range] = {}
    if "batch" in dynamic:
        if len(example) < 2:
            raise ValueError("export: a dynamic batch needs an example of at least 2 images.")
        ranges["batch"] = (1, None)
    if "size" in dynamic:
        for axis, multiple in enumerate(multiples):
            ranges[f"size{axis}"] = (1, MAX_SIZE // multiple)
    return ranges


def trace(
    model: nn.Module, example: Tensor, ranges: dict[str, Range], multiples: tuple[int, ...]
) -> tuple[ExportedProgram, dict[str, Range]]:
    """Trace with the argument ``x``; return the program and the ranges that it serves."""
    for _ in range(_ATTEMPTS):
        try:
            with quick_tracing():
                program = torch.export.export(
                    model, (example,), dynamic_shapes=_dims(ranges, multiples)
                )
        except Exception as error:  # torch raises many kinds, and the network may raise its own
            narrower = _narrower(str(error), ranges)
            if narrower == ranges:
                raise ValueError(f"export: torch cannot trace the network. {error}") from error
            ranges = narrower
            continue
        return program, _served(program.module(), example, ranges, multiples)
    raise ValueError("export: no range of sizes works with one graph. Leave out 'size' in dynamic.")


@contextlib.contextmanager
def quick_tracing() -> Iterator[None]:
    """Trace without gradients and without torch's cache of traced operations.

    With symbols for sizes the cache hardly ever hits, and filling it takes a third of the time.
    Without gradients the selectors need no subgraphs that switch them off.
    """
    from torch._dynamo import config  # takes long to import, and only tracing needs it

    with torch.no_grad(), config.patch(fake_tensor_cache_enabled=False):
        yield


def _dims(ranges: dict[str, Range], multiples: tuple[int, ...]) -> dict[str, Any]:
    """Write ranges as torch.export wants them."""
    dims: dict[int, Any] = {}
    for name, (low, high) in ranges.items():
        dim: Any = Dim(name, min=low, max=high)
        axis = _axis(name)
        factor = (1, 1, *multiples)[axis]
        dims[axis] = dim if factor == 1 else factor * dim
    return {"x": dims}


def _axis(name: str) -> int:
    """Return which axis of the input a range is about."""
    return 0 if name == "batch" else int(name.removeprefix("size")) + 2


def _served(
    program: nn.Module, example: Tensor, ranges: dict[str, Range], multiples: tuple[int, ...]
) -> dict[str, Range]:
    """Leave out what a program refuses when it runs: ones are special to torch, in sizes of maps.

    Its refusals name an axis of the input, and it is asked with the smallest input that is left.
    """
    factors = (1, 1, *multiples)
    axes = {name: _axis(name) for name in ranges}
    for _ in range(_ATTEMPTS):
        shape = list(example.shape)
        for name, (low, _) in ranges.items():
            shape[axes[name]] = low * factors[axes[name]]
        try:
            with torch.no_grad():
                program(example.new_zeros(shape))
            return ranges
        except AssertionError as error:
            named = set(map(int, re.findall(r"\.size\(\)\[(\d+)\]", str(error))))
            if "Guard failed" not in str(error) or named.isdisjoint(axes.values()):
                raise
        ranges = {name: (low + (axes[name] in named), high) for name, (low, high) in ranges.items()}
    raise ValueError("export: the graph refuses every small size. Leave out 'size' in dynamic.")


def _narrower(message: str, ranges: dict[str, Range]) -> dict[str, Range]:
    """Read what torch suggests; raise where it wants a fixed number."""
    narrower = dict(ranges)
    for name, low, high, rest in _suggestions(message):
        if name not in ranges:
            continue
        if rest is not None:
            what = "batch" if name == "batch" else "size"
            raise ValueError(
                f"export: the {what} of this network cannot change from call to call: torch says"
                f" {name} = {rest}. Leave out {what!r} in dynamic (--dynamic)."
            )
        known = narrower[name]
        narrower[name] = (int(low or known[0]), int(high) if high else known[1])
    return narrower


def _suggestions(message: str) -> Iterator[tuple[str, str | None, str | None, str | None]]:
    _, _, fixes = message.partition("Suggested fixes:")
    for line in fixes.splitlines():
        name, equals, value = line.strip().partition(" = ")
        if not equals:
            continue
        if not value.startswith("Dim("):
            yield name, None, None, value
            continue
        low, high = re.search(r"min=(\d+)", value), re.search(r"max=(\d+)", value)
        yield name, low and low[1], high and high[1], None
