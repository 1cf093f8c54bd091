"""What padding and slices do to grids; what replaces them."""

from __future__ import annotations

from typing import Any

from trueshift.convert.errors import Refused
from trueshift.convert.grids.analysis import Action, Analysis, Rule
from trueshift.convert.grids.lattice import Space
from trueshift.convert.grids.rules.shapes import joined, piece
from trueshift.convert.grids.values import (
    OTHER,
    Frame,
    Kind,
    Plain,
    Value,
    as_map,
    resized,
    values_in,
)
from trueshift.convert.parts.part import part
from trueshift.convert.parts.ups import PadAndRoll, Roll
from trueshift.convert.parts.windows import Every
from trueshift.convert.trace.calls import Call
from trueshift.convert.trace.nodes import label_of


def padding(a: Analysis, call: Call) -> Any:
    """Pad: on a circle, nothing is added; what follows begins earlier."""
    value: Value = call.params["input"]
    widths = call.params["pad"]
    dim = value.data.ndim - 2
    flat = [widths] * (2 * dim) if isinstance(widths, int) else [int(width) for width in widths]
    pairs = {value.data.ndim - 1 - i: tuple(flat[2 * i : 2 * i + 2]) for i in range(len(flat) // 2)}
    padded = [axis for axis, pair in pairs.items() if any(pair)]
    spatial = [axis for axis in padded if isinstance(value.kinds[axis], Space)]
    wrapping = [axis for axis in spatial if not _kept(a, value, axis)]
    if not wrapping:
        result = a.execute(call)
        kinds = [
            joined(
                [(OTHER, pairs[axis][0]), (kind, value.data.shape[axis]), (OTHER, pairs[axis][1])]
            )
            if axis in padded and axis not in spatial
            else kind
            for axis, kind in enumerate(value.kinds)
        ]
        return Value(result, tuple(kinds))
    if len(spatial) != len(padded):
        raise Refused("it pads space and channels at once.", "Pad them one after the other.")
    shifts = tuple(pairs[axis][0] for axis in wrapping)
    if len(wrapping) == len(spatial):
        _shifted(a, call, shifts, tuple(wrapping))
        return value
    own = [0 if axis in wrapping else width for axis, pair in pairs.items() for width in pair]
    how = {"mode": call.get("mode", "constant"), "value": call.get("value")}
    new = part(PadAndRoll, shifts=shifts, dims=tuple(wrapping), widths=own, **how)
    a.actions[call.node] = Action("replace", new, note="becomes a shift where the map wraps")
    return Value(new.build()(value.data), value.kinds)


def _kept(a: Analysis, value: Value, axis: int) -> bool:
    kept = a.keeps(value)
    return kept if isinstance(kept, bool) else kept[value.kinds[axis].axis]  # type: ignore[union-attr]


def _shifted(a: Analysis, call: Call, shifts: tuple[int, ...], axes: tuple[int, ...]) -> None:
    if any(shifts):
        roll = part(Roll, shifts=shifts, dims=axes)
        a.actions[call.node] = Action("replace", roll, note="becomes a shift")
    else:
        a.actions[call.node] = Action("skip", note="not needed on a circle")


def getitem(a: Analysis, call: Call) -> Any:
    """Take an item of a tuple, or slice a tensor."""
    value, index = call.args[:2]
    if not isinstance(value, Value):
        return value[index]
    if not value.has_space:
        result = a.execute(call)
        return a.wrap(result, values_in(call.args))
    items = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [item for item in items if not isinstance(item, Value)]:
        place = next(i for i, item in enumerate(items) if item is Ellipsis)
        used = sum(item is not None and item is not Ellipsis for item in items)
        items[place : place + 1] = [slice(None)] * (value.data.ndim - used)
    items += [slice(None)] * (value.data.ndim - sum(item is not None for item in items))
    kinds: list[Kind] = []
    cuts: dict[int, slice] = {}
    axis = 0
    for item in items:
        if item is None:
            kinds.append(OTHER)
            continue
        kind, size = value.kinds[axis], value.data.shape[axis]
        if isinstance(item, slice):
            start, stop, step = item.indices(size)
            if isinstance(kind, Frame) and step > 1:
                kind = resized(kind, size, len(range(start, stop, step)))
            elif not isinstance(kind, Plain) and not _is_whole(item, size):
                part = piece(kind, start, stop) if step == 1 else None
                if part is None:
                    cuts[axis] = item
                kind = part or kind
            kinds.append(kind)
        elif isinstance(item, int) and piece(kind, item % size, item % size + 1) is None:
            raise Refused("it picks positions by number.", "Use pooling, or keep the whole map.")
        elif not isinstance(item, int):
            raise Refused("it indexes a map with a tensor.", "Use slices, chunk or split.")
        axis += 1
    if cuts:
        return _cut_space(a, call, value, items, cuts)
    return Value(a.execute(call), tuple(kinds))


def _is_whole(item: slice, size: int) -> bool:
    return item.indices(size) == (0, size, 1)


def _cut_space(
    a: Analysis, call: Call, value: Value, items: list[Any], cuts: dict[int, slice]
) -> Any:
    others = [item for axis, item in enumerate(items) if axis not in cuts]
    if any(not isinstance(value.kinds[axis], Space) for axis in cuts):
        raise Refused("it keeps only a part of the map.", "Use pooling, or keep the whole map.")
    if any(item != slice(None) for item in others) or len(items) != value.data.ndim:
        raise Refused("it slices space and other axes at once.", "Slice one after the other.")
    ranges = {axis: item.indices(value.data.shape[axis]) for axis, item in cuts.items()}
    if any(step > 1 for _, _, step in ranges.values()):
        spaces, view = as_map(value)
        numbers = [ranges.get(axis, (0, 0, 1)) for axis in view.dims[2:]]
        stride = tuple(step for _, _, step in numbers)
        left = tuple(-start for start, _, _ in numbers)
        whole = all(ranges[axis][1] > value.data.shape[axis] - ranges[axis][2] for axis in ranges)
        if not whole:
            raise Refused("it keeps only a part of the map.", "Take every n-th of the whole map.")
        reach = (0,) * len(stride)
        new = part(Every, stride=stride, left=left, reach=reach, own_padding=a.keeps(value))
        a.check_divisible(spaces, stride)
        phase, coarse = a.lattice.down(label_of(call.node), list(spaces), stride)
        a.actions[call.node] = Action("window", new, view=view, phase=phase, spaces=spaces)
        kinds = dict(zip(view.dims[2:], coarse, strict=True))
        return Value(
            a.execute(call), tuple(kinds.get(axis, kind) for axis, kind in enumerate(value.kinds))
        )
    sizes = [value.data.shape[axis] for axis in ranges]
    if any(
        2 * (stop - start) <= n for (start, stop, _), n in zip(ranges.values(), sizes, strict=True)
    ):
        raise Refused("it keeps only a part of the map.", "Use pooling, or keep the whole map.")
    kept = {_kept(a, value, axis) for axis in ranges}
    if len(kept) > 1:
        raise Refused("it crops axes that wrap together with others.", "Crop one after the other.")
    if kept == {False}:
        _shifted(a, call, tuple(-start for start, _, _ in ranges.values()), tuple(ranges))
        return value
    return Value(a.execute(call), value.kinds)


RULES: dict[str, Rule] = {"pad": padding, "getitem": getitem}
