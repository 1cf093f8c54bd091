"""What is added to attention scores: masks of windows and biases of relative positions."""

from __future__ import annotations

from torch import fx

from trueshift.convert.grids.analysis import Action, Analysis
from trueshift.convert.grids.lattice import Space
from trueshift.convert.grids.meeting import same, varies
from trueshift.convert.grids.values import Kind, Merged, Value, spaces_of
from trueshift.convert.parts.part import part
from trueshift.convert.parts.partition import CircularBias
from trueshift.convert.trace.calls import Call

_MASKED = -50.0  # what is smaller leaves nothing of a softmax


def without_positions(a: Analysis, call: Call, scores: Value, node: fx.Node) -> bool:
    """Make a tensor that is added to scores the same for all shifts; tell whether that was needed.

    On a circle no window lies at the border, so masks of windows are dropped. The bias (or mask) of
    two positions is that of their shortest way around.
    """
    bias: Value = a.env[node]
    behind = scores.data.ndim - bias.data.ndim
    if a.lattice.at_seam or behind < 0:
        return False
    axes = [
        axis + behind
        for axis in range(bias.data.ndim)
        if spaces_of(scores.kinds[axis + behind]) and varies(bias, axis)
    ]
    if not axes:
        return False
    grids = [_grid(scores.kinds[axis], scores.data.shape[axis]) for axis in axes]
    (rows, row_sizes), (columns, column_sizes) = grids if len(grids) == 2 else (((), ()),) * 2
    if not rows or [row.axis for row in rows] != [column.axis for column in columns]:
        # It differs from window to window, or along the axes of a map, not between two positions.
        if not (bias.fixed and bool(((bias.data == 0) | (bias.data < _MASKED)).all())):
            return False
        a.actions[call.node] = Action("mask", on=node, note="no window is at a border of a circle")
        return True
    shift = []
    for row, column, n, m in zip(rows, columns, row_sizes, column_sizes, strict=True):
        if m % n:
            return False
        fine, digits = a.lattice.up(row, m // n)
        same(a.lattice, fine, column)
        shift.append(tuple(digits))
    new = part(
        CircularBias,
        dims=tuple(axis - scores.data.ndim for axis in axes),
        rows=row_sizes,
        columns=column_sizes,
    )
    note = "distances become circular"
    a.actions[call.node] = Action("bias", new, on=node, spaces=rows, shift=tuple(shift), note=note)
    a.fixed_sizes = True
    return True


def _grid(kind: Kind, size: int) -> tuple[tuple[Space, ...], tuple[int, ...]]:
    """Return the grids and sizes of an axis of positions; empty if it holds anything else."""
    if isinstance(kind, Space):
        return (kind,), (size,)
    if isinstance(kind, Merged) and all(isinstance(k, Space) for k in kind.kinds):
        return spaces_of(kind), kind.sizes
    return (), ()
