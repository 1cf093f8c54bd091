"""Tensors that meet position by position must live on the same grid."""

from __future__ import annotations

from collections.abc import Sequence

from trueshift.convert.errors import Refused
from trueshift.convert.grids.lattice import Lattice, Space
from trueshift.convert.grids.values import BATCH, CONSTANT, OTHER, Frame, Kind, Plain, Tokens, Value


def same(lattice: Lattice, a: Kind, b: Kind) -> None:
    """Make two axes that meet the same grid."""
    if isinstance(a, Space) and isinstance(b, Space):
        lattice.unify(a, b)
    elif isinstance(a, Tokens) and isinstance(b, Tokens) and len(a.spaces) == len(b.spaces):
        for one, other in zip(a.spaces, b.spaces, strict=True):
            lattice.unify(one, other)
    elif isinstance(a, Frame) and isinstance(b, Frame) and a.origin == b.origin:
        lattice.unify(a.space, b.space)
    elif a != b:
        raise Refused(
            "a spatial axis meets an axis of another meaning.",
            "Keep space and channels on their own axes.",
        )


def join(lattice: Lattice, entries: Sequence[tuple[Value, int]]) -> Kind:
    """Return the meaning of an axis in which several tensors meet, position by position.

    Args:
        lattice: The grids.
        entries: Each tensor, and which axis of it is meant.
    """
    kinds = [value.kinds[axis] for value, axis in entries]
    spatial = [kind for kind in kinds if not isinstance(kind, Plain)]
    for kind in spatial[1:]:
        same(lattice, spatial[0], kind)
    longer = [(value, axis) for value, axis in entries if value.data.shape[axis] > 1]
    if not spatial:
        if BATCH in kinds:
            return BATCH
        others = [value.kinds[axis] for value, axis in longer]
        return CONSTANT if others and all(kind is CONSTANT for kind in others) else OTHER
    for value, axis in longer:
        varies = isinstance(value.kinds[axis], Plain) and not _constant_along(value, axis)
        if varies and not lattice.at_seam:
            raise Refused(
                "a map meets a tensor that differs from position to position (a learned or"
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


def _constant_along(value: Value, axis: int) -> bool:
    if value.kinds[axis] is CONSTANT:
        return True
    data = value.data
    return value.fixed and bool((data == data.narrow(axis, 0, 1)).all())
