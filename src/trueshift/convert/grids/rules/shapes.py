"""What operations on shapes do to grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from trueshift.convert.errors import Refused
from trueshift.convert.grids.analysis import Analysis, Rule
from trueshift.convert.grids.lattice import Space
from trueshift.convert.grids.meeting import join
from trueshift.convert.grids.values import (
    CONSTANT,
    OTHER,
    Joined,
    Kind,
    Plain,
    Value,
    spaces_of,
    values_in,
)
from trueshift.convert.trace.calls import Call


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
    if any(spaces_of(value.kinds[d]) for d in gone):
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
        if longer and spaces_of(kind):
            raise Refused("it repeats a spatial axis.", "Repeat channels, or up-sample.")
        kinds.append(CONSTANT if longer and value.data.shape[axis] == 1 else kind)
    return Value(result, tuple(kinds), value.fixed)


def cat(a: Analysis, call: Call) -> Any:
    """Join maps along an axis; other tokens may come before or after the positions of a map."""
    values = values_in(call.params["tensors"])
    result: Tensor = a.execute(call)
    dim = call.get("dim", 0) % result.ndim
    if call.name == "stack":
        values = [
            Value(v.data.unsqueeze(dim), (*v.kinds[:dim], OTHER, *v.kinds[dim:]), v.fixed)
            for v in values
        ]
    kinds = [
        joined([(value.kinds[axis], value.data.shape[axis]) for value in values])
        if axis == dim
        else join(a.lattice, [(value, axis) for value in values])
        for axis in range(result.ndim)
    ]
    return Value(result, tuple(kinds), all(value.fixed for value in values))


def joined(pieces: Sequence[tuple[Kind, int]]) -> Kind:
    """Return the meaning of an axis in which pieces come one after the other."""
    pieces = [(kind, size) for kind, size in pieces if size > 0]
    if any(isinstance(kind, Space) for kind, _ in pieces):
        raise Refused(
            "it joins tensors along a spatial axis.",
            "Concatenate channels, or flattened positions. Or pass padding='seam' with 'stride'"
            " (if no output is a map).",
        )
    if all(isinstance(kind, Plain) for kind, _ in pieces):
        return pieces[0][0] if len({kind for kind, _ in pieces}) == 1 else OTHER
    together: list[tuple[Kind, int]] = []  # tokens without space that follow each other are one
    for kind, size in pieces:
        if together and isinstance(kind, Plain) and isinstance(together[-1][0], Plain):
            together[-1] = (OTHER, together[-1][1] + size)
        else:
            together.append((kind, size))
    kinds, sizes = zip(*together, strict=True)
    return Joined(kinds, sizes)


def piece(kind: Kind, start: int, stop: int) -> Kind | None:
    """Return the meaning of a slice of an axis; ``None`` if it cuts positions of a map apart."""
    if not isinstance(kind, Joined):
        return None if spaces_of(kind) else OTHER
    pieces, place = [], 0
    for inner, size in zip(kind.kinds, kind.sizes, strict=True):
        first, last = max(start, place), min(stop, place + size)
        place += size
        if last - first == size:
            pieces.append((inner, size))
        elif first < last:
            if spaces_of(inner):
                return None
            pieces.append((OTHER, last - first))
    return pieces[0][0] if len(pieces) == 1 else joined(pieces) if pieces else OTHER


def split(a: Analysis, call: Call) -> Any:
    """Cut an axis into parts, not through the positions of a map."""
    value: Value = call.params["input"]
    dim = call.get("dim", 0) % value.data.ndim
    results, start = [], 0
    for part in a.execute(call):
        size = 1 if call.name == "unbind" else part.shape[dim]
        kind = piece(value.kinds[dim], start, start + size)
        if kind is None:
            raise Refused("it cuts a spatial axis into parts.", "Split channels.")
        if isinstance(value.kinds[dim], Plain):
            kind = value.kinds[dim]
        own = () if call.name == "unbind" else (kind,)
        kinds = (*value.kinds[:dim], *own, *value.kinds[dim + 1 :])
        results.append(Value(part, kinds, value.fixed))
        start += size
    return tuple(results)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("permute", "transpose", "movedim", "moveaxis", "t"), permute),
    **dict.fromkeys(("expand", "expand_as", "repeat", "tile", "broadcast_to"), expand),
    **dict.fromkeys(("cat", "stack"), cat),
    **dict.fromkeys(("chunk", "split", "tensor_split", "unbind"), split),
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
}
