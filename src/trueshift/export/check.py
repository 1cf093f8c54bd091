"""Compare an exported file with the network that was exported."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trueshift.bench.meters import medians
from trueshift.export.write import Exported, load
from trueshift.shifts import circular_shift

TOLERANCE = 1e-3  # of the largest output; beyond it, more than rounding differs
SHIFTS = ((0, 1), (1, 0), (1, 1), (3, 5), (-2, 7), (10, -3))
Run = Callable[[Tensor], list[Tensor]]


@dataclass(frozen=True)
class Exactness:
    """How outputs of shifted images compare, bit by bit.

    Attributes:
        equal: How many shifts give the same outputs (moved along, if they are maps).
        total: How many were tried.
        largest: Largest difference, relative to the largest output.
    """

    equal: int
    total: int
    largest: float


@dataclass(frozen=True)
class Check:
    """How an exported file compares with torch.

    Attributes:
        differences: Shape of a batch to the largest difference from torch, relative to the largest
            output.
        torch_exactness: Shifts in torch; ``None`` if outputs are neither scores nor maps.
        exactness: Shifts in the file's own runtime.
        size_mb: Megabytes of the file.
        torch_ms: Median time of torch on ``timed_shape``.
        ms: Median time of the file's runtime, the runs taking turns.
        timed_shape: The batch that was timed.
    """

    differences: dict[tuple[int, ...], float]
    torch_exactness: Exactness | None
    exactness: Exactness | None
    size_mb: float
    torch_ms: float
    ms: float
    timed_shape: tuple[int, ...]

    @property
    def agrees(self) -> bool:
        """Whether all outputs are torch's up to rounding."""
        return max(self.differences.values()) <= TOLERANCE


def check(
    model: nn.Module, exported: Exported, example: Tensor, *, repeats: int = 5, seed: int = 0
) -> Check:
    """Compare an exported file with torch, at other batches and sizes too.

    Args:
        model: The network that was exported.
        exported: What :func:`export` returned.
        example: The batch it was exported with.
        repeats: Timed runs of each.
        seed: Of the images.

    Returns:
        Numbers; nothing is raised if they are bad.
    """
    runs = {"torch": _runner(model), "exported": _runner(load(exported.path))}
    generator = torch.Generator().manual_seed(seed)
    differences = {}
    for shape in _shapes(exported, example):
        x = torch.randn(shape, generator=generator).to(example.dtype)
        differences[shape] = _difference(runs["exported"](x), runs["torch"](x))
    exact = {name: _exactness(run, example) for name, run in runs.items()}
    calls = {name: functools.partial(run, example) for name, run in runs.items()}
    times = medians(calls, repeats, warmup=0)  # the checks have warmed up
    size = exported.path.stat().st_size / 1e6
    return Check(
        differences,
        exact["torch"],
        exact["exported"],
        size,
        times["torch"],
        times["exported"],
        tuple(example.shape),
    )


def _runner(model: nn.Module) -> Run:
    def run(x: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return list(_tensors(model(x)))

    return run


def _tensors(outputs: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested outputs, in order."""
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, dict):
        for one in outputs.values():
            yield from _tensors(one)
    elif isinstance(outputs, Sequence):
        for one in outputs:
            yield from _tensors(one)


def _shapes(exported: Exported, example: Tensor) -> list[tuple[int, ...]]:
    """Shape of the example, and others that the file takes."""
    batch, channels, *sizes = example.shape
    low, high = exported.batch
    batches = sorted({n for n in (1, batch, batch + 1) if low <= n and (high is None or n <= high)})
    shapes = [(n, channels, *sizes) for n in batches]
    for axis, multiple in enumerate(exported.multiples):
        for size in (sizes[axis] - multiple, sizes[axis] + multiple):
            smallest, largest = exported.sizes[axis]
            if smallest <= size and (largest is None or size <= largest):
                other = [*sizes[:axis], size, *sizes[axis + 1 :]]
                shapes.append((batch, channels, *other))
    return shapes


def _difference(ours: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Largest difference, relative to the largest expected value; infinite if shapes differ."""
    worst = 0.0
    if len(ours) != len(expected):
        return float("inf")
    for mine, other in zip(ours, expected, strict=True):
        if mine.shape != other.shape:
            return float("inf")
        apart = (mine.double() - other.double()).abs().max().item()
        worst = max(worst, apart / max(other.double().abs().max().item(), 1e-30))
    return worst


def _exactness(run: Run, x: Tensor) -> Exactness | None:
    outputs = run(x)
    maps = [out.shape[2:] == x.shape[2:] for out in outputs]
    if not all(is_map or out.ndim == 2 for is_map, out in zip(maps, outputs, strict=True)):
        return None
    equal, worst = 0, 0.0
    shifts = [shift[: x.ndim - 2] for shift in SHIFTS] if x.ndim < 5 else [(*s, 2) for s in SHIFTS]
    for shift in shifts:
        moved = run(circular_shift(x, *shift))
        wanted = [
            circular_shift(out, *shift) if is_map else out
            for is_map, out in zip(maps, outputs, strict=True)
        ]
        equal += all(torch.equal(a, b) for a, b in zip(moved, wanted, strict=True))
        worst = max(worst, _difference(moved, wanted))
    return Exactness(equal, len(shifts), worst)
