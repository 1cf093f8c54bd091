"""What a network must be like to count from the seam of its inputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch

from trueshift.convert.errors import Refusal
from trueshift.convert.grids.analysis import UNKNOWN, Analysis
from trueshift.convert.grids.lattice import Space
from trueshift.convert.grids.values import BATCH, Value, plain, spaces_of, values_in
from trueshift.convert.trace.trace import run


def as_it_is(analysis: Analysis) -> Analysis:
    """Leave every operation as it is, if one picture goes in and no map comes out.

    Then no grid needs to be known: whatever the operations do, they do it to the same picture,
    which begins at its seam.
    """
    traced = analysis.traced
    pictures = [traced.arguments[name] for name in analysis.inputs]
    if len(pictures) > 1 or pictures[0].ndim != 4:
        return _refused(
            analysis,
            "an operation above has no rule, so it must be sure which input is a picture.",
            "Pass one picture (B, C, H, W) and inputs of two axes at most.",
        )
    with torch.no_grad():
        outputs = [plain(x) for x in run(traced.root, traced.arguments)]
    positions = math.prod(pictures[0].shape[2:])
    if any(y.data.ndim > 2 or positions in y.data.shape[1:] for y in outputs):
        return _refused(
            analysis,
            "an operation above has no rule, so the result must not be a map, and it may be one.",
            "Return scores (B, number), or replace the operations above.",
        )
    env = dict.fromkeys(analysis.env, UNKNOWN) | {traced.output: outputs}
    return dataclasses.replace(
        analysis, env=env, actions={}, refusals=[], origins=[], unary=set(), fixed_sizes=True
    )


def _refused(analysis: Analysis, reason: str, advice: str) -> Analysis:
    refusal = Refusal("network", "padding='seam'", reason, advice)
    return dataclasses.replace(analysis, refusals=[*analysis.refusals, refusal])


def seam_refusals(analysis: Analysis) -> Iterator[Refusal]:
    """Say why the outputs of a network cannot be moved back from the seam."""
    lattice = analysis.lattice
    roots = {lattice.root(index) for index in analysis.inputs.values()}
    if len(roots) > 1 and analysis.origins:
        reason = "the network distinguishes positions of several inputs that move independently."
        yield Refusal("inputs", "padding='seam'", reason, "Pass one input, or use global pooling.")
    batch = max(analysis.traced.arguments[name].shape[0] for name in analysis.inputs)
    for value in values_in(analysis.env[analysis.traced.output]):
        problem = _problem(analysis, value, batch) if value.has_space else None
        if problem is not None:
            advice = "Return maps (B, C, *space) of the network's own sizes, or scores."
            yield Refusal("output", "padding='seam'", problem, advice)


def _problem(analysis: Analysis, value: Value, batch: int) -> str | None:
    axes = [axis for axis, kind in enumerate(value.kinds) if kind is BATCH]
    if len(axes) != 1 or value.data.shape[axes[0]] != batch:
        return "it is a map without an axis for the images of the batch."
    for axis, kind in enumerate(value.kinds):
        if not spaces_of(kind):
            continue
        if not isinstance(kind, Space):
            return "it is a map whose positions are one axis, or counted from an origin."
        if value.data.shape[axis] != analysis.size_of(kind):
            size = analysis.size_of(kind)
            return f"it is a map of {value.data.shape[axis]} positions where the grid has {size}."
    return None
