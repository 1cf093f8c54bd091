"""What the rules of operations on maps ``(B, C, *spatial)`` share."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from trueshift.convert.errors import Refused
from trueshift.convert.grids.analysis import Action, Analysis
from trueshift.convert.grids.lattice import Space
from trueshift.convert.grids.values import CONSTANT, OTHER, Kind, Value, as_map, resized, spaces_of
from trueshift.convert.parts.part import AsMap
from trueshift.convert.trace.calls import Call


def per_axis(value: Any, dim: int) -> tuple[int, ...]:
    """Return one integer per axis."""
    if isinstance(value, int):
        return (value,) * dim
    numbers = tuple(int(v) for v in value)
    return numbers * dim if len(numbers) == 1 else numbers


def layout(value: Value) -> tuple[Space, ...]:
    """Return the spatial axes of a map ``(B, C, *spatial)``, or refuse another layout."""
    spaces, view = as_map(value)
    if view != AsMap(tuple(range(value.data.ndim))):
        raise Refused(
            "it samples a tensor that is not laid out as (batch, channels, *space).",
            "Move batch and channels to the first two axes before it.",
        )
    return spaces


def on_map(value: Value) -> bool:
    """Whether the spatial axes of an operation are grids (or constant along them)."""
    kinds = value.kinds[2:]
    return any(isinstance(kind, Space) or kind is CONSTANT for kind in kinds)


def original(a: Analysis, call: Call, value: Value, pointwise: bool = False) -> Any:
    """Leave an operation alone whose axes are no grids: they are counted from an origin.

    One that treats every position alone may have axes of any meaning.
    """
    result: Tensor = a.execute(call)
    kinds: list[Kind] = [value.kinds[0], OTHER]
    check_channels(value)
    for kind in value.kinds[2:]:
        if spaces_of(kind) and not pointwise:
            raise Refused("it convolves flattened positions.", "Convolve the map itself.")
    for kind, before, after in zip(
        value.kinds[2:], value.data.shape[2:], result.shape[2:], strict=True
    ):
        kinds.append(resized(kind, before, after))
    return Value(result, tuple(kinds))


def check_channels(value: Value) -> None:
    """Refuse a map whose channels are a spatial axis, as those of the frames of a film are."""
    if spaces_of(value.kinds[1]):
        raise Refused("its channels are a spatial axis.", "Move space behind the channels.")


def new_data(a: Analysis, call: Call, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor of the result's shape; the original's own where its padding is kept."""
    value: Value = call.params["input"]
    if a.own_padding is False:
        return value.data.new_zeros(shape)
    result: Tensor = a.execute(call)
    if a.own_padding is True:
        return result
    axes = zip(a.keeps(value), result.shape[2:], shape[2:], strict=True)  # type: ignore[arg-type]
    return result.new_zeros(*shape[:2], *(own if kept else size for kept, own, size in axes))


def add_origin(a: Analysis, call: Call, spaces: tuple[Space, ...], note: str) -> int:
    """Choose an origin of a map before an operation; return its number."""
    index = a.new_origin(call.node)
    a.actions[call.node] = Action("origin", spaces=spaces, origin=index, note=note)
    return index
