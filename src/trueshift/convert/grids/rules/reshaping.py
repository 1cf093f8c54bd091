"""What splitting and merging axes does to grids: tokens, and windows that begin at a phase.

The axes of a tensor are read as one list of factors. A new shape regroups them. A grid that is cut
in two is cut into windows: the first part counts them and is a coarser grid, with a phase that says
where they begin; the second one counts positions in a window. Where both meet again, they are the
grid that was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from trueshift.convert.errors import Flattened, Refused
from trueshift.convert.grids.analysis import Action, Analysis, Rule
from trueshift.convert.grids.lattice import Digit, Space
from trueshift.convert.grids.values import (
    BATCH,
    CONSTANT,
    OTHER,
    Frame,
    InFrame,
    Kind,
    Merged,
    Plain,
    Value,
    Within,
    as_map,
)
from trueshift.convert.parts.part import part
from trueshift.convert.parts.partition import Partition
from trueshift.convert.trace.calls import Call
from trueshift.convert.trace.nodes import label_of
from trueshift.convert.trace.trees import leaves

Factor = tuple[Kind, int]  # meaning and size


def reshape(a: Analysis, call: Call) -> Any:
    """Split and merge axes."""
    node = next(n for n in call.node.all_input_nodes if _has_space(a.env[n]))
    value, result = a.env[node], a.execute(call)
    axes = zip(value.kinds, value.data.shape, strict=True)
    factors = [factor for kind, size in axes for factor in _factors(kind, size)]
    groups, windows = _dealt(factors, tuple(result.shape), len(a.lattice.phases))
    if windows:
        _partition(a, call, node, windows)
    undone: dict[int, Any] = {}
    kinds = tuple(_merged(a, _fused(a, group, undone)) for group in groups)
    new = Value(result, kinds, value.fixed)
    if undone:
        spaces, view = as_map(new)
        shift = tuple(undone.get(space.axis, ()) for space in spaces)
        a.actions[call.node] = Action("up", spaces=spaces, view=view, shift=shift)
    _note_fixed_sizes(a, call, groups)
    return new


def _has_space(value: Any) -> bool:
    return isinstance(value, Value) and value.has_space


def _factors(kind: Kind, size: int) -> list[Factor]:
    if isinstance(kind, Merged):
        return list(zip(kind.kinds, kind.sizes, strict=True))
    return [(kind, size)]


def _dealt(
    factors: list[Factor], sizes: tuple[int, ...], phase: int
) -> tuple[list[list[Factor]], dict[Space, int]]:
    """Deal factors out to new axes; return also the window of every grid that is cut.

    Factors and axes of size 1 are paired in order; factors that are left over go with the axis
    before them.
    """
    queue = list(factors)
    groups: list[list[Factor]] = []
    windows: dict[Space, int] = {}
    for place, rest in enumerate(sizes):
        group: list[Factor] = [queue.pop(0)] if rest == 1 and queue and queue[0][1] == 1 else []
        while rest > 1:
            kind, size = queue.pop(0)
            if rest % size:
                if size % rest:
                    raise Refused("it cuts an axis into parts of unequal size.", "Pad the axis.")
                kind, tail = _cut(kind, size // rest, phase, windows)
                queue.insert(0, (tail, size // rest))
                size = rest
            group.append((kind, size))
            rest //= size
        units = _leading_ones([size for _, size in queue])
        for _ in range(units - _leading_ones(sizes[place + 1 :])):
            group.append(queue.pop(0))
        groups.append(group)
    return groups, windows


def _leading_ones(sizes: Sequence[int]) -> int:
    return next((place for place, size in enumerate(sizes) if size > 1), len(sizes))


def _cut(kind: Kind, window: int, phase: int, windows: dict[Space, int]) -> tuple[Kind, Kind]:
    if isinstance(kind, Frame):
        return replace(kind, stride=kind.stride * window), InFrame(kind)
    if not isinstance(kind, Space):
        return (kind, kind) if kind in (OTHER, CONSTANT) else (OTHER, OTHER)
    if kind in windows or kind.fine > 1:
        raise Refused("it cuts a map into windows of windows.", "Cut it once.")
    windows[kind] = window
    digit = Digit(phase, kind.axis, 1, window)
    return replace(kind, digits=(*kind.digits, digit)), Within(digit)


def _partition(a: Analysis, call: Call, node: fx.Node, windows: dict[Space, int]) -> None:
    """Let windows begin at a phase; those of one size on one grid share it."""
    spaces, view = as_map(a.env[node])
    stride = tuple(windows.get(space, 1) for space in spaces)
    phase, coarse = a.lattice.down(label_of(call.node), list(spaces), stride)
    new = part(Partition, stride=stride)
    a.actions[call.node] = Action("window", new, on=node, view=view, phase=phase, spaces=spaces)
    key = tuple((s.root, s.axis, a.lattice.expand(s.digits)) for s in spaces), stride
    for one, other in zip(coarse, a.windows.setdefault(key, coarse), strict=True):
        a.lattice.unify(one, other)


def _fused(a: Analysis, group: list[Factor], undone: dict[int, Any]) -> list[Factor]:
    """Join windows and their positions to the grid that was cut; note the digits to undo."""
    result: list[Factor] = []
    for kind, size in group:
        last, count = result[-1] if result else (OTHER, 1)
        if isinstance(kind, InFrame) and last == replace(
            kind.frame, stride=kind.frame.stride * size
        ):
            result[-1] = (kind.frame, count * size)
            continue
        if isinstance(kind, Within) and isinstance(last, Space):
            digits, own = a.lattice.expand(last.digits), a.lattice.expand((kind.digit,))
            if digits[-len(own) :] == own:
                fine, undone[last.axis] = a.lattice.up(last, size)
                result[-1] = (fine, count * size)
                continue
        result.append((kind, size))
    return result


def _merged(a: Analysis, group: list[Factor]) -> Kind:
    """Return the meaning of an axis of several factors."""
    if not group:
        return OTHER
    long = [(kind, size) for kind, size in group if size > 1 or kind is BATCH]
    if len(long) < 2:
        return (long or group)[0][0]
    kinds, sizes = zip(*long, strict=True)
    if all(kind is kinds[0] for kind in kinds) and isinstance(kinds[0], Plain):
        return kinds[0]
    refused = Space if "canonical" in (a.flatten, a.positions) else Space | Frame
    if OTHER in kinds and BATCH not in kinds and any(isinstance(kind, refused) for kind in kinds):
        raise Flattened
    return Merged(kinds, sizes)


def _note_fixed_sizes(a: Analysis, call: Call, groups: list[list[Factor]]) -> None:
    """Remember that a map of one pixel, or one window, loses its axis: a larger one would not."""
    pixels = [group for group in groups if any(isinstance(k, Space) and n == 1 for k, n in group)]
    sizes = list(leaves(call.node.args[1:]))
    computed = [isinstance(size, fx.Node) for size in sizes] if len(sizes) == len(groups) else []
    empty = any(
        is_computed and not group for is_computed, group in zip(computed, groups, strict=False)
    )
    a.fixed_sizes = a.fixed_sizes or empty or any(len(group) > 1 for group in pixels)


RULES: dict[str, Rule] = dict.fromkeys(("view", "flatten", "unflatten", "reshape_as"), reshape)
