"""What the analysis knows of a tensor: the meaning of each of its axes."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from trueshift.convert.errors import Refused
from trueshift.convert.grids.lattice import Digit, Space
from trueshift.convert.parts.part import AsMap
from trueshift.convert.trace.trees import leaves, map_leaves


class Plain(enum.Enum):
    """Axes that have nothing to do with space."""

    OTHER = "other"
    BATCH = "batch"
    CONSTANT = "constant"  # as long as a spatial axis, but the same everywhere


OTHER, BATCH, CONSTANT = Plain.OTHER, Plain.BATCH, Plain.CONSTANT


@dataclass(frozen=True)
class Within:
    """Positions of a window, counted from its corner; ``digit`` says where windows begin."""

    digit: Digit


@dataclass(frozen=True)
class Frame:
    """An axis counted from a chosen origin of a map, sampled by ``stride`` from there on."""

    space: Space
    origin: int
    stride: int = 1


@dataclass(frozen=True)
class InFrame:
    """Positions of a window of such an axis."""

    frame: Frame


@dataclass(frozen=True)
class Merged:
    """Several axes as one, the last one fastest: the positions of a map, or windows of a batch."""

    kinds: tuple[Kind, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Joined:
    """Axes one after the other: a class token and the positions of a map."""

    kinds: tuple[Kind, ...]
    sizes: tuple[int, ...]


Kind = Plain | Space | Within | Frame | InFrame | Merged | Joined


def parts_of(kind: Kind) -> tuple[Kind, ...]:
    """List what an axis holds."""
    if not isinstance(kind, Merged | Joined):
        return (kind,)
    return tuple(part for inner in kind.kinds for part in parts_of(inner))


def spaces_of(kind: Kind) -> tuple[Space, ...]:
    """List the grids of an axis: those along which all positions must be treated alike."""
    return tuple(part for part in parts_of(kind) if isinstance(part, Space))


def resized(kind: Kind, before: int, after: int) -> Kind:
    """Return the meaning of an axis that is no grid after an operation that changed its size."""
    if before == after:
        return kind
    if isinstance(kind, Frame) and before * kind.stride % after == 0:
        return replace(kind, stride=before * kind.stride // after)
    return OTHER


@dataclass(frozen=True)
class Value:
    """A tensor of the converted network at the example's size.

    Args:
        data: A tensor of the right shape and type; its values matter for constants only.
        kinds: The meaning of each axis.
        fixed: Whether ``data`` holds the values that the network will always see.
    """

    data: Tensor
    kinds: tuple[Kind, ...]
    fixed: bool = False

    @property
    def spatial(self) -> tuple[int, ...]:
        """Axes that hold grids."""
        return tuple(i for i, kind in enumerate(self.kinds) if spaces_of(kind))

    @property
    def has_space(self) -> bool:
        """Whether any axis has to do with space: holds a grid, or positions of a window or frame.

        Rules follow these axes; values without any are computed as they are.
        """
        return not all(isinstance(kind, Plain) for kind in self.kinds)


def plain(data: Tensor, fixed: bool = False) -> Value:
    """Wrap a tensor without space."""
    return Value(data, (OTHER,) * data.ndim, fixed)


def is_counted(value: Value) -> bool:
    """Whether all positions of a tensor are counted from an origin."""
    parts = [part for kind in value.kinds for part in parts_of(kind)]
    return all(isinstance(part, Plain | Frame | InFrame) for part in parts)


def as_map(value: Value) -> tuple[tuple[Space, ...], AsMap]:
    """Return the grids of a tensor and how it becomes a map ``(B, C, *spatial)``, or refuse."""
    axes = [axis for axis, kind in enumerate(value.kinds) if spaces_of(kind)]
    rest = [axis for axis, kind in enumerate(value.kinds) if kind is not BATCH and axis not in axes]
    spaces = tuple(space for axis in axes for space in spaces_of(value.kinds[axis]))
    order = [space.axis for space in spaces]
    tokens = value.kinds[axes[0]] if len(axes) == 1 else None
    sizes = tokens.sizes if isinstance(tokens, Merged) else ()
    if (
        value.kinds.count(BATCH) != 1
        or len(rest) != 1
        or not spaces
        or order != sorted(set(order))
        or len(spaces) != max(len(axes), len(sizes))
        or any(isinstance(kind, Joined) for kind in value.kinds)
    ):
        raise Refused(
            "it samples a tensor that is not laid out as (batch, channels, *space).",
            "Move batch and channels to the first two axes before it.",
        )
    return spaces, AsMap((value.kinds.index(BATCH), *rest, *axes), sizes)


def from_frame(value: Value) -> Value:
    """Return a value whose axes that are counted from an origin are grids again."""

    def grid(kind: Kind) -> Kind:
        if isinstance(kind, Merged):
            return Merged(tuple(map(grid, kind.kinds)), kind.sizes)
        return kind.space if isinstance(kind, Frame) else kind

    return Value(value.data, tuple(map(grid, value.kinds)), value.fixed)


def values_in(tree: Any) -> list[Value]:
    """List the values in a tree."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Value)]


def data_of(tree: Any) -> Any:
    """Replace every value by its tensor."""
    return map_leaves(lambda leaf: leaf.data if isinstance(leaf, Value) else leaf, tree)
