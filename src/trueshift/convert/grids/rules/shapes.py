"""What operations on shapes do to grids."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from trueshift.convert.errors import Refused
from trueshift.convert.grids.analysis import Analysis, Rule
from trueshift.convert.grids.lattice import Space
from trueshift.convert.grids.meeting import join
from trueshift.convert.grids.rules.maps import enter_origin
from trueshift.convert.grids.values import (
    BATCH,
    CONSTANT,
    OTHER,
    Kind,
    Plain,
    Tokens,
    Value,
    values_in,
)
from trueshift.convert.trace.calls import Call


def reshape(a: Analysis, call: Call) -> Any:
    """Split and merge axes."""
    value = next(v for v in values_in(call.args) if v.has_space)
    result: Tensor = a.execute(call)
    kinds: list[Kind] = []
    mixed = False
    for own, new in _groups(list(value.data.shape), list(result.shape)):
        part = _regroup(a, value, own, [result.shape[axis] for axis in new])
        mixed = mixed or part is None
        kinds += part or [OTHER] * len(new)
    if mixed:
        kinds = [BATCH if kind is BATCH else OTHER for kind in kinds]
        enter_origin(a, call, value)
    return Value(result, tuple(kinds))


def _groups(old: list[int], new: list[int]) -> list[tuple[list[int], list[int]]]:
    """Pair runs of axes of equal product."""
    groups = []
    i = j = 0
    while i < len(old) or j < len(new):
        first, start = i, j
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while (own := math.prod(old[first:i])) != (other := math.prod(new[start:j])):
            if own < other and i < len(old):
                i += 1
            elif j < len(new):
                j += 1
            else:
                break
        groups.append((list(range(first, i)), list(range(start, j))))
    return groups


def _regroup(a: Analysis, value: Value, own: list[int], sizes: list[int]) -> list[Kind] | None:
    """Return the meaning of the axes that a run of axes turns into; ``None`` if space is mixed."""
    sized = [axis for axis in own if value.data.shape[axis] > 1]
    spatial = [axis for axis in own if not isinstance(value.kinds[axis], Plain)]
    if len(own) == len(sizes) == 1:
        return [value.kinds[own[0]]]
    if not spatial:
        return _plain_kinds([value.kinds[axis] for axis in own], own, sizes)
    kept = [axis for axis in own if axis in sized or axis in spatial]
    if len(kept) == len([size for size in sizes if size > 1]) or len(kept) == len(sizes):
        exact = [value.data.shape[axis] for axis in kept]
        if exact == sizes:
            return [value.kinds[axis] for axis in kept]
        if exact == [size for size in sizes if size > 1]:
            queue = [value.kinds[axis] for axis in kept]
            return [queue.pop(0) if size > 1 else OTHER for size in sizes]
    if all(axis in spatial for axis in sized) and sized:
        return _merge_or_split(a, [value.kinds[axis] for axis in spatial], sizes)
    if not sized:  # a map of one pixel
        a.fixed_sizes = True
        return _plain_kinds(
            [k for k in (value.kinds[i] for i in own) if isinstance(k, Plain)], own, sizes
        )
    if all(value.data.shape[axis] == 1 for axis in spatial):
        a.fixed_sizes = True
        return _plain_kinds([value.kinds[i] for i in own if i not in spatial], own, sizes)
    return None


def _plain_kinds(kinds: list[Kind], own: list[int], sizes: list[int]) -> list[Kind]:
    result: list[Kind] = [OTHER] * len(sizes)
    if 0 in own and BATCH in kinds and sizes and len(kinds) == 1:
        result[0] = BATCH
    elif all(kind is CONSTANT for kind in kinds) and kinds:
        return [CONSTANT] * len(sizes)
    elif BATCH in kinds and sizes:
        result[0] = BATCH if len(sizes) == len(own) else OTHER
    return result


def _merge_or_split(a: Analysis, kinds: list[Kind], sizes: list[int]) -> list[Kind] | None:
    spaces: list[Space] = []
    for kind in kinds:
        if isinstance(kind, Space):
            spaces.append(kind)
        elif isinstance(kind, Tokens):
            spaces.extend(kind.spaces)
        else:
            return None
    result: list[Kind] = []
    for size in sizes:
        run: list[Space] = []
        while spaces and math.prod(a.size_of(space) for space in run) < size:
            run.append(spaces.pop(0))
        if math.prod(a.size_of(space) for space in run) != size:
            break
        result.append(run[0] if len(run) == 1 else Tokens(tuple(run)) if run else OTHER)
    if len(result) == len(sizes) and not spaces:
        return result
    raise Refused(
        "it cuts space into windows or patches.",
        "Use a convolution with a stride, which can choose where to begin.",
    )


def permute(a: Analysis, call: Call) -> Any:
    """Reorder axes; their new order is that of their numbers, permuted alike."""
    value: Value = call.params["input"]
    result: Tensor = a.execute(call)
    ndim = value.data.ndim
    if call.name == "transpose":
        order = list(range(ndim))
        i, j = (call.params[name] % ndim for name in ("dim0", "dim1"))
        order[i], order[j] = order[j], order[i]
    elif call.name == "t":
        order = [1, 0]
    elif call.name == "movedim":
        order = _moved(ndim, *call.args[1:])
    else:
        dims = call.params.get("dims", call.params.get("dim"))
        given = dims if isinstance(dims, list | tuple) else call.args[1:]
        order = [dim % ndim for dim in given]
    return Value(result, tuple(value.kinds[axis] for axis in order), value.fixed)


def _moved(ndim: int, source: Any, target: Any) -> list[int]:
    sources = [source] if isinstance(source, int) else list(source)
    targets = [target] if isinstance(target, int) else list(target)
    sources, targets = [s % ndim for s in sources], [t % ndim for t in targets]
    rest = [axis for axis in range(ndim) if axis not in sources]
    placed = dict(zip(targets, sources, strict=True))
    return [placed[i] if i in placed else rest.pop(0) for i in range(ndim)]


def squeeze(a: Analysis, call: Call) -> Any:
    """Drop axes of size 1."""
    value: Value = call.params["input"]
    result: Tensor = a.execute(call)
    dim = call.get("dim")
    given = range(value.data.ndim) if dim is None else ([dim] if isinstance(dim, int) else dim)
    dims = {d % value.data.ndim for d in given}
    gone = [d for d in dims if value.data.shape[d] == 1]
    if any(not isinstance(value.kinds[d], Plain) for d in gone):
        a.fixed_sizes = True
    kinds = tuple(kind for axis, kind in enumerate(value.kinds) if axis not in gone)
    return Value(result, kinds, value.fixed)


def unsqueeze(a: Analysis, call: Call) -> Any:
    """Add an axis of size 1."""
    value: Value = call.params["input"]
    dim = call.params["dim"] % (value.data.ndim + 1)
    kinds = (*value.kinds[:dim], OTHER, *value.kinds[dim:])
    return Value(a.execute(call), kinds, value.fixed)


def expand(a: Analysis, call: Call) -> Any:
    """Repeat axes of size 1."""
    value: Value = call.params["input"]
    result: Tensor = a.execute(call)
    kinds: list[Kind] = [CONSTANT] * (result.ndim - value.data.ndim)
    for axis, kind in enumerate(value.kinds):
        longer = result.shape[axis - value.data.ndim] > value.data.shape[axis]
        if longer and not isinstance(kind, Plain):
            raise Refused("it repeats a spatial axis.", "Repeat channels, or up-sample.")
        kinds.append(CONSTANT if longer and value.data.shape[axis] == 1 else kind)
    return Value(result, tuple(kinds), value.fixed)


def cat(a: Analysis, call: Call) -> Any:
    """Join maps along an axis that is not spatial."""
    values = values_in(call.params["tensors"])
    result: Tensor = a.execute(call)
    dim = call.get("dim", 0) % result.ndim
    if call.name == "stack":
        values = [
            Value(v.data.unsqueeze(dim), (*v.kinds[:dim], OTHER, *v.kinds[dim:]), v.fixed)
            for v in values
        ]
    if any(not isinstance(value.kinds[dim], Plain) for value in values):
        raise Refused(
            "it joins tensors along a spatial axis (as a class token does).",
            "Join channels, and use global pooling instead of a class token. Or pass padding='seam'"
            " with 'stride' (if no output is a map).",
        )
    kinds = [
        values[0].kinds[axis]
        if axis == dim
        else join(a.lattice, [(value, axis) for value in values])
        for axis in range(result.ndim)
    ]
    return Value(result, tuple(kinds), all(value.fixed for value in values))


def split(a: Analysis, call: Call) -> Any:
    """Cut an axis that is not spatial into parts."""
    value: Value = call.params["input"]
    dim = call.get("dim", 0) % value.data.ndim
    if not isinstance(value.kinds[dim], Plain):
        raise Refused("it cuts a spatial axis into parts.", "Split channels.")
    kinds = value.kinds
    if call.name == "unbind":
        kinds = (*kinds[:dim], *kinds[dim + 1 :])
    return tuple(Value(part, kinds, value.fixed) for part in a.execute(call))


RULES: dict[str, Rule] = {
    **dict.fromkeys(("view", "flatten", "unflatten", "reshape_as"), reshape),
    **dict.fromkeys(("permute", "transpose", "movedim", "moveaxis", "t"), permute),
    **dict.fromkeys(("expand", "expand_as", "repeat", "tile", "broadcast_to"), expand),
    **dict.fromkeys(("cat", "stack"), cat),
    **dict.fromkeys(("chunk", "split", "tensor_split", "unbind"), split),
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
}
