"""Check a converted network by numbers: shifted inputs must give shifted outputs."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from torch import Tensor, nn

from trueshift.convert.grids.analysis import Analysis
from trueshift.convert.errors import ConversionError, Refusal
from trueshift.convert.grids.lattice import Space
from trueshift.convert.trace.trees import leaves
from trueshift.convert.grids.values import Value, values_in
from trueshift.shifts import circular_shift

TOLERANCE = 1e-10  # of the spread of the outputs
CAST_TOLERANCE = 1e-5  # where the model itself computes in float32


def shift_error(
    model: nn.Module, analysis: Analysis, *, shifts: int = 8, step: int = 1, seed: int = 0
) -> float:
    """Return the largest difference between outputs of shifted inputs and shifted outputs.

    Everything runs in float64 and eval mode, on the example and on noise of its shape. Inputs that
    never meet move independently.

    Args:
        model: The converted network.
        analysis: Where its inputs and outputs live.
        shifts: How many random shifts to try.
        step: Shifts are multiples of this.
        seed: Seed of the shifts and the noise.

    Returns:
        The difference as a fraction of the outputs' spread.
    """
    generator = torch.Generator().manual_seed(seed)
    twin = copy.deepcopy(model).double().eval()
    device = next(twin.parameters(), torch.empty(0)).device
    examples = {name: _double(x, device) for name, x in analysis.traced.arguments.items()}
    noise = {name: _noise(x, generator) for name, x in examples.items()}
    outputs = values_in(analysis.env[analysis.output])
    worst = 0.0
    with torch.no_grad():
        # A picture that repeats itself has no one seam, so maps of it may differ.
        other = {name: _noise(x, generator) for name, x in examples.items()}
        for inputs in (noise, other) if analysis.seam else (examples, noise):
            expected = run(twin, inputs)
            for _ in range(-(-shifts // 2)):
                offsets = _draw(analysis, step, generator)
                moved = {
                    name: _move(x, offsets.get(_root(analysis, name))) for name, x in inputs.items()
                }
                actual = run(twin, moved)
                for value, before, after in zip(outputs, expected, actual, strict=True):
                    if before.is_floating_point():
                        error = _difference(analysis, value, before, after, offsets)
                        worst = max(worst, error)
    return worst


def check(model: nn.Module, analysis: Analysis, *, step: int = 1) -> None:
    """Raise unless a converted network is as exact as it claims."""
    error = shift_error(model, analysis, step=step)
    methods = {node.target for node in analysis.traced.graph.nodes if node.op == "call_method"}
    casts = not methods.isdisjoint(("float", "half", "bfloat16"))
    if error <= (CAST_TOLERANCE if casts else TOLERANCE):
        return
    reason = (
        f"the converted network is not exact: shifted inputs change its output by {error:.1e} of"
        " its spread."
    )
    advice = "Please report the model; convert(..., verify=False) returns it as it is."
    raise ConversionError(
        type(analysis.traced.root).__name__, [Refusal("output", "verify", reason, advice)]
    )


def difference(model: nn.Module, new: nn.Module, analysis: Analysis) -> float:
    """Return by how much two networks differ on the example, as a fraction of the spread."""
    twins = [copy.deepcopy(net).double().eval() for net in (model, new)]
    device = next(twins[0].parameters(), torch.empty(0)).device
    inputs = {name: _double(x, device) for name, x in analysis.traced.arguments.items()}
    with torch.no_grad():
        before, after = (run(twin, inputs) for twin in twins)
    worst = 0.0
    for one, other in zip(before, after, strict=True):
        spread = max(float(one.std()), 1e-300) if one.numel() > 1 else 1.0
        worst = max(worst, float((one - other).abs().max()) / spread)
    return worst


def _difference(
    analysis: Analysis,
    value: Value,
    before: Tensor,
    after: Tensor,
    offsets: dict[int, tuple[int, ...]],
) -> float:
    """Compare an output with the shifted one; on coarse grids the shift is known up to a step."""
    axes = [(i, kind) for i, kind in enumerate(value.kinds) if isinstance(kind, Space)]
    choices = []
    for _, space in axes:
        offset = offsets[analysis.lattice.root(space.root)][space.axis] * space.fine
        stride = analysis.lattice.stride(space)
        choices.append(
            [offset // stride] if stride == 1 else [offset // stride, -(-offset // stride)]
        )
    spread = float(before.std()) if before.numel() > 1 else float(before.abs().max())
    dims = [i for i, _ in axes]
    flat = tuple(range(1, before.ndim))
    best: Tensor | None = None
    for shifts in itertools.product(*choices):
        moved = torch.roll(before, shifts, dims) if dims else before
        errors = (after - moved).abs()
        errors = errors.amax(flat) if flat else errors  # each image may take its own step
        best = errors if best is None else torch.minimum(best, errors)
    error = 0.0 if best is None or not best.numel() else float(best.max())
    if error != error:
        return float("inf")
    return error / spread if spread > 0 else (0.0 if error == 0 else float("inf"))


def _draw(analysis: Analysis, step: int, generator: torch.Generator) -> dict[int, tuple[int, ...]]:
    lattice = analysis.lattice

    def one(size: int) -> int:
        return int(torch.randint(0, max(size // step, 1), (1,), generator=generator)) * step

    roots = {lattice.root(index) for index in range(len(lattice.sizes))}
    return {root: tuple(one(size) for size in lattice.sizes[root]) for root in sorted(roots)}


def _root(analysis: Analysis, name: str) -> int:
    index = analysis.inputs.get(name)
    return -1 if index is None else analysis.lattice.root(index)


def _move(x: Any, offsets: tuple[int, ...] | None) -> Any:
    return circular_shift(x, *offsets) if offsets and isinstance(x, Tensor) else x


def _double(x: Any, device: torch.device) -> Any:
    if not isinstance(x, Tensor):
        return x
    return (x.double() if x.is_floating_point() else x).to(device)


def _noise(x: Any, generator: torch.Generator) -> Any:
    if not isinstance(x, Tensor) or x.dtype == torch.bool or not x.numel():
        return x
    if not x.is_floating_point():  # numbers that the network takes
        low, high = min(int(x.min()), 0), max(int(x.max()), 1)
        drawn = torch.randint(low, high + 1, x.shape, generator=generator)
        return drawn.to(x.device, x.dtype)
    return torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)


def run(model: nn.Module, inputs: dict[str, Any]) -> list[Tensor]:
    """List the tensors that a network returns for copies of its inputs; it may change them."""
    copies = {name: x.clone() if isinstance(x, Tensor) else x for name, x in inputs.items()}
    return [leaf for leaf in leaves(model(**copies)) if isinstance(leaf, Tensor)]
