"""What the analysis knows of a tensor: the meaning of each of its axes."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trueshift.convert.grids.lattice import Space
from trueshift.convert.trace.trees import leaves, map_leaves


class Plain(enum.Enum):
    """Axes that have nothing to do with space."""

    OTHER = "other"
    BATCH = "batch"
    CONSTANT = "constant"  # as long as a spatial axis, but the same everywhere


OTHER, BATCH, CONSTANT = Plain.OTHER, Plain.BATCH, Plain.CONSTANT


@dataclass(frozen=True)
class Tokens:
    """Several spatial axes as one."""

    spaces: tuple[Space, ...]


@dataclass(frozen=True)
class Frame:
    """An axis counted from a chosen origin of a map (phase number ``origin`` of ``space``)."""

    space: Space
    origin: int


Kind = Plain | Space | Tokens | Frame


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
        """Axes that belong to space."""
        return tuple(i for i, kind in enumerate(self.kinds) if not isinstance(kind, Plain))

    @property
    def has_space(self) -> bool:
        """Whether any axis belongs to space."""
        return bool(self.spatial)


def plain(data: Tensor, fixed: bool = False) -> Value:
    """Wrap a tensor without space."""
    return Value(data, (OTHER,) * data.ndim, fixed)


def values_in(tree: Any) -> list[Value]:
    """List the values in a tree."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Value)]


def data_of(tree: Any) -> Any:
    """Replace every value by its tensor."""
    return map_leaves(lambda leaf: leaf.data if isinstance(leaf, Value) else leaf, tree)
