"""Tensors that meet position by position must live on the same grid."""

from __future__ import annotations

from collections.abc import Sequence

from trueshift.convert.errors import Refused
from trueshift.convert.grids.lattice import Lattice, Space
from trueshift.convert.grids.values import (
    BATCH,
    CONSTANT,
    OTHER,
    Kind,
    Plain,
    Value,
    parts_of,
    spaces_of,
)

_OTHER_MEANING = "a spatial axis is combined with an axis that is not spatial."
_OWN_AXES = "Keep space and channels on their own axes."


def same(lattice: Lattice, a: Kind, b: Kind) -> None:
    """Make two axes that meet the same grid."""
    one, other = parts_of(a), parts_of(b)
    if not (spaces_of(a) or spaces_of(b)):
        return
    if len(one) != len(other):
        raise Refused(_OTHER_MEANING, _OWN_AXES)
    for left, right in zip(one, other, strict=True):
        if isinstance(left, Space) and isinstance(right, Space):
            lattice.unify(left, right)
        elif isinstance(left, Space) or isinstance(right, Space):
            raise Refused(_OTHER_MEANING, _OWN_AXES)


def join(lattice: Lattice, entries: Sequence[tuple[Value, int]]) -> Kind:
    """Return the meaning of an axis in which several tensors meet, position by position.

    Args:
        lattice: The grids.
        entries: Each tensor, and which axis of it is meant.
    """
    kinds = [value.kinds[axis] for value, axis in entries]
    spatial = [kind for kind in kinds if spaces_of(kind)]
    for kind in spatial[1:]:
        same(lattice, spatial[0], kind)
    longer = [(value, axis) for value, axis in entries if value.data.shape[axis] > 1]
    if not spatial:
        known = [kind for kind in kinds if not isinstance(kind, Plain)]
        if BATCH in kinds or known:
            return BATCH if BATCH in kinds else known[0]
        others = [value.kinds[axis] for value, axis in longer]
        return CONSTANT if others and all(kind is CONSTANT for kind in others) else OTHER
    if any(varies(value, axis) for value, axis in longer) and not lattice.at_seam:
        raise Refused(
            "a map is combined with a tensor that differs from position to position (a learned or"
            " fixed position embedding, coordinates, or a bias of relative positions).",
            "Remove it, or make it depend on the image, or pass padding='seam'.",
        )
    return spatial[0]


def broadcast(lattice: Lattice, values: Sequence[Value], ndim: int) -> tuple[Kind, ...]:
    """Join tensors axis by axis, as broadcasting does."""
    kinds: list[Kind] = []
    for axis in range(-ndim, 0):
        entries = [(v, v.data.ndim + axis) for v in values if v.data.ndim + axis >= 0]
        kinds.append(join(lattice, entries) if entries else OTHER)
    return tuple(kinds)


def varies(value: Value, axis: int) -> bool:
    """Whether a tensor without space there may differ along an axis."""
    kind, data = value.kinds[axis], value.data
    if spaces_of(kind) or data.shape[axis] == 1:
        return False
    if value.fixed:  # the code may have written into what was constant
        return not bool((data == data.narrow(axis, 0, 1)).all())
    return kind is not CONSTANT
