"""Check a converted network by numbers: shifted inputs must give shifted outputs."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trueshift.convert.errors import ConversionError, Refusal
from trueshift.convert.plan import Axis, Plan
from trueshift.convert.trace.trace import Traced, run
from trueshift.shifts import circular_shift

TOLERANCE = 1e-10  # of the spread of the outputs
CAST_TOLERANCE = 1e-5  # where the model itself computes in fewer bits

Offsets = dict[int | None, tuple[int, ...]]  # by group of inputs; None is not in it


def shift_error(
    model: nn.Module,
    plan: Plan,
    arguments: dict[str, Any],
    *,
    shifts: int = 8,
    step: int = 1,
    seed: int = 0,
) -> float:
    """Return the largest difference between outputs of shifted inputs and shifted outputs.

    Everything runs in float64 and eval mode, on the example and on noise of its shape. Inputs that
    never meet move independently.

    Args:
        model: The converted network.
        plan: On which grids its inputs and outputs live.
        arguments: The example.
        shifts: How many random shifts to try.
        step: Shifts are multiples of this.
        seed: Seed of the shifts and the noise.

    Returns:
        The difference as a fraction of the outputs' spread.
    """
    generator = torch.Generator().manual_seed(seed)
    twin = copy.deepcopy(model).double().eval()
    device = next(twin.parameters(), torch.empty(0)).device
    examples = {name: _double(x, device) for name, x in arguments.items()}
    noise = {name: _noise(x, generator) for name, x in examples.items()}
    worst = 0.0
    with torch.no_grad():
        # A picture that repeats itself has no one seam, so maps of it may differ.
        other = {name: _noise(x, generator) for name, x in examples.items()}
        for inputs in (noise, other) if plan.padding == "seam" else (examples, noise):
            expected = run(twin, inputs)
            for _ in range(-(-shifts // 2)):
                offsets = _draw(plan, step, generator)
                moved = {
                    name: _move(x, offsets.get(plan.inputs.get(name))) for name, x in inputs.items()
                }
                actual = run(twin, moved)
                for pieces, before, after in zip(plan.outputs, expected, actual, strict=True):
                    for piece in pieces if before.is_floating_point() else ():
                        pair = piece.of(before), piece.of(after)
                        worst = max(worst, _difference(piece.axes, *pair, offsets))
    return worst


def check(model: nn.Module, plan: Plan, traced: Traced, *, step: int = 1) -> None:
    """Raise unless a converted network is as exact as it claims."""
    with _running(plan.network):
        error = shift_error(model, plan, traced.arguments, step=step)
    if error > _tolerance(traced, "half", "bfloat16"):
        reason = (
            f"the converted network is not exact: shifted inputs change its output by {error:.1e}"
            " of its spread."
        )
        advice = "Please report the model; convert(..., verify=False) returns it as it is."
        raise ConversionError(plan.network, [Refusal("output", "verify", reason, advice)])


def check_phase_0(model: nn.Module, new: nn.Module, traced: Traced) -> None:
    """Raise unless phase 0 with the original padding computes what the original does."""
    network = type(model).__name__
    with _running(network):
        error = difference(model, new, traced.arguments)
    if error > _tolerance(traced, "float", "half", "bfloat16"):
        reason = f"phase 0 does not reproduce the original: it differs by {error:.1e}."
        refusal = Refusal("output", "verify", reason, "Please report the model.")
        raise ConversionError(network, [refusal])


@contextlib.contextmanager
def _running(network: str) -> Iterator[None]:
    """Say that a network does not run, if it does not."""
    try:
        yield
    except Exception as error:
        reason = f"it fails in float64: {type(error).__name__}: {str(error).rstrip('.')}."
        advice = "Make model.double() run, or pass verify=False."
        raise ConversionError(network, [Refusal("output", "verify", reason, advice)]) from error


def _tolerance(traced: Traced, *casts: str) -> float:
    methods = {node.target for node in traced.graph.nodes if node.op == "call_method"}
    return TOLERANCE if methods.isdisjoint(casts) else CAST_TOLERANCE


def difference(model: nn.Module, new: nn.Module, arguments: dict[str, Any]) -> float:
    """Return by how much two networks differ on the example, as a fraction of the spread."""
    twins = [copy.deepcopy(net).double().eval() for net in (model, new)]
    device = next(twins[0].parameters(), torch.empty(0)).device
    inputs = {name: _double(x, device) for name, x in arguments.items()}
    with torch.no_grad():
        before, after = (run(twin, inputs) for twin in twins)
    worst = 0.0
    for one, other in zip(before, after, strict=True):
        spread = max(float(one.std()), 1e-300) if one.numel() > 1 else 1.0
        worst = max(worst, float((one - other).abs().max()) / spread)
    return worst


def _difference(axes: tuple[Axis, ...], before: Tensor, after: Tensor, offsets: Offsets) -> float:
    """Compare an output with the shifted one; on coarse grids the shift is known up to a step."""
    choices = []
    for axis in axes:
        offset = offsets[axis.group][axis.axis] * axis.fine
        choices.append(sorted({offset // axis.stride, -(-offset // axis.stride)}))
    spread = float(before.std()) if before.numel() > 1 else float(before.abs().max())
    dims = [axis.dim for axis in axes]
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


def _draw(plan: Plan, step: int, generator: torch.Generator) -> Offsets:
    """Draw one shift for every group of inputs, along the axes that wrap."""

    def one(size: int, wraps: bool) -> int:
        high = max(size // step, 1) if wraps else 1
        return int(torch.randint(0, high, (1,), generator=generator)) * step

    sizes = {group: plan.sizes[name] for name, group in plan.inputs.items() if group is not None}
    return {group: tuple(map(one, size, plan.wraps)) for group, size in sorted(sizes.items())}


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
