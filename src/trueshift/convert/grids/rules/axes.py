"""What sums, products and attention along axes do to grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from trueshift.convert.errors import Refused
from trueshift.convert.grids.analysis import Action, Analysis, Rule
from trueshift.convert.grids.meeting import broadcast, join, same
from trueshift.convert.grids.rules.biases import without_positions
from trueshift.convert.grids.rules.pointwise import pointwise
from trueshift.convert.grids.values import (
    BATCH,
    OTHER,
    Joined,
    Kind,
    Merged,
    Value,
    spaces_of,
    values_in,
)
from trueshift.convert.parts.part import part
from trueshift.convert.parts.ups import Reduce
from trueshift.convert.trace.calls import Call

REDUCTIONS = """
    mean sum amax amin max min var std logsumexp norm vector_norm argmax argmin any all prod
"""


def halves(a: Analysis, call: Call) -> Any:
    """Gate one half of an axis by the other."""
    value: Value = call.params["input"]
    _refuse_spatial(value, [call.get("dim", -1)], "splits")
    return Value(a.execute(call), value.kinds)


def layer_norm(a: Analysis, call: Call) -> Any:
    """Normalise over the last axes."""
    value: Value = call.params["input"]
    count = len(tuple(call.params["normalized_shape"]))
    spatial = any(axis >= value.data.ndim - count for axis in value.spatial)
    if spatial and call.get("weight") is not None:
        raise Refused(
            "layer norm over space has a weight for every position.",
            "Normalise over channels only, or set elementwise_affine=False.",
        )
    return Value(a.execute(call), value.kinds)


def linear(a: Analysis, call: Call) -> Any:
    """Mix the last axis."""
    value: Value = call.params["input"]
    _refuse_spatial(value, [-1], "mixes positions with separate weights on")
    return Value(a.execute(call), (*value.kinds[:-1], OTHER))


def matmul(a: Analysis, call: Call) -> Any:
    """Contract the last axis of one operand with the last but one of the other."""
    left, right = values_in((a.look(call.node.args), a.look(call.node.kwargs)))[-2:]
    result: Tensor = a.execute(call)
    if left.data.ndim < 2 or right.data.ndim < 2:
        raise Refused("there is no rule for products with vectors.", "Use two or more axes.")
    _contract(a, (left, left.data.ndim - 1), (right, right.data.ndim - 2))
    lead = [Value(v.data[..., 0, 0], v.kinds[:-2]) for v in (left, right)]
    kinds = broadcast(a.lattice, lead, result.ndim - 2)
    return Value(result, (*kinds, left.kinds[-2], right.kinds[-1]))


def _contract(a: Analysis, one: tuple[Value, int], other: tuple[Value, int]) -> None:
    kinds = [value.kinds[axis] for value, axis in (one, other)]
    if not any(map(spaces_of, kinds)):
        return
    if not all(map(spaces_of, kinds)):
        raise Refused(
            "positions are mixed with separate weights.",
            "Use a convolution, or attention without position embeddings.",
        )
    same(a.lattice, kinds[0], kinds[1])


def einsum(a: Analysis, call: Call) -> Any:
    """Contract by letters."""
    equation, *operands = call.args
    values = values_in(operands)
    if "." in equation or "->" not in equation:
        raise Refused("einsum with '...' or without '->' has no rule.", "Name every axis.")
    inputs, output = equation.replace(" ", "").split("->")
    places: dict[str, list[tuple[Value, int]]] = {}
    for letters, value in zip(inputs.split(","), values, strict=True):
        for axis, letter in enumerate(letters):
            places.setdefault(letter, []).append((value, axis))
    kinds = {}
    for letter, entries in places.items():
        if letter not in output and len(entries) > 1:
            for entry in entries[1:]:
                _contract(a, entries[0], entry)
        kinds[letter] = join(a.lattice, entries) if letter in output else OTHER
    return Value(a.execute(call), tuple(kinds[letter] for letter in output))


def attention(a: Analysis, call: Call) -> Any:
    """Attend from the positions of the query to those of key and value."""
    query, key, value = (call.params[name] for name in ("query", "key", "value"))
    result: Tensor = a.execute(call)
    same(a.lattice, key.kinds[-2], value.kinds[-2])
    lead = [Value(v.data[..., 0, 0], v.kinds[:-2]) for v in (query, key, value)]
    kinds = broadcast(a.lattice, lead, result.ndim - 2)
    mask = call.get("attn_mask")
    if isinstance(mask, Value):
        shape = (*result.shape[:-1], key.data.shape[-2])
        scores = Value(result.new_zeros(shape), (*kinds, query.kinds[-2], key.kinds[-2]))
        if not without_positions(a, call, scores, call.raw["attn_mask"]):
            broadcast(a.lattice, [scores, mask], scores.data.ndim)
    return Value(result, (*kinds, query.kinds[-2], value.kinds[-1]))


def encoder(a: Analysis, call: Call) -> Any:
    """Attend and mix channels with the modules of torch."""
    value, *rest = call.args
    masks = [mask for mask in (*rest, *call.node.kwargs.values()) if mask not in (None, False)]
    if masks:
        raise Refused("attention with a mask of positions.", "Drop the mask.")
    _refuse_spatial(value, [-1], "mixes")
    return Value(a.execute(call), value.kinds)


def multi_head_attention(a: Analysis, call: Call) -> Any:
    """Attend with the module of torch."""
    query, key, value = call.args[:3]
    if len(call.args) > 3 or call.node.kwargs.get("attn_mask") is not None:
        raise Refused("attention with a mask of positions.", "Drop attn_mask.")
    _refuse_spatial(query, [-1], "mixes")
    for one, other in zip(key.kinds, value.kinds, strict=True):
        same(a.lattice, one, other)
    output, weights = a.execute(call)
    if weights is None:
        return Value(output, query.kinds), None
    batch, tokens = (0, 1) if query.kinds[0] is BATCH else (1, 0)
    kinds: list[Kind] = [query.kinds[batch], query.kinds[tokens], key.kinds[tokens]]
    heads: list[Kind] = [OTHER] * (weights.ndim - 3)
    return Value(output, query.kinds), Value(weights, (kinds[0], *heads, *kinds[1:]))


def reduce(a: Analysis, call: Call) -> Any:
    """Sum over axes; sums over space become independent of the order of their terms."""
    value: Value = call.params["input"]
    if isinstance(call.get("dim"), Value):  # torch.max(a, b)
        return pointwise(a, call)
    dims = _dims(call.get("dim"), value.data.ndim)
    spatial = [dim for dim in dims if spaces_of(value.kinds[dim])]
    if spatial and call.name in ("argmax", "argmin"):
        raise Refused("it returns positions.", "Return values, or a map of scores.")
    result = a.execute(call)
    keepdim = bool(call.get("keepdim", False))
    kinds = [
        OTHER if axis in dims else kind
        for axis, kind in enumerate(value.kinds)
        if keepdim or axis not in dims
    ]
    two_norm = call.get("p", call.get("ord", 2)) in (2, "fro")
    order_free = call.name in ("mean", "sum") or ("norm" in call.name and two_norm)
    plain_call = not set(call.params) - {"input", "dim", "keepdim", "p", "ord"}
    if spatial and order_free and plain_call and value.data.is_floating_point():
        kind = "norm" if "norm" in call.name else call.name
        new = part(Reduce, kind=kind, dims=tuple(dims), keepdim=keepdim)
        a.actions[call.node] = Action("replace", new)
    if isinstance(result, tuple):  # values and indices of max and min
        where = UNPLACED if spatial else Value(result[1], tuple(kinds))
        return Value(result[0], tuple(kinds)), where
    return Value(result, tuple(kinds))


class _Unplaced:
    """Indices into space; nothing may be done with them."""


UNPLACED = _Unplaced()


def sorts(a: Analysis, call: Call) -> Any:
    """Order, accumulate or index along an axis that is not spatial."""
    value: Value = call.params["input"]
    numbers = [arg for arg in call.args[1:] if isinstance(arg, int)]
    dim = call.get("dim", numbers[-1] if numbers else -1)
    _refuse_spatial(value, [dim], "depends on the order of positions on")
    result = a.execute(call)
    if isinstance(result, Tensor):
        return Value(result, value.kinds)
    return tuple(Value(item, value.kinds) for item in result)


def tokens_shift(a: Analysis, call: Call) -> Any:
    """Shift by a constant."""
    value: Value = call.params["input"]
    dims = call.get("dims", call.get("dim"))
    axes = _dims(dims, value.data.ndim)
    merged = [k for k in (value.kinds[axis] for axis in axes) if isinstance(k, Merged | Joined)]
    if any(map(spaces_of, merged)):
        raise Refused("flattened positions are rolled.", "Roll the map itself.")
    return Value(a.execute(call), value.kinds)


def _dims(dim: Any, ndim: int) -> list[int]:
    if dim is None:
        return list(range(ndim))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return [d % ndim for d in dims] or list(range(ndim))


def _refuse_spatial(value: Value, dims: Sequence[int], what: str) -> None:
    if any(spaces_of(value.kinds[dim]) for dim in dims):
        raise Refused(f"it {what} a spatial axis.", "Use a convolution or a pooling instead.")


RULES: dict[str, Rule] = {
    **dict.fromkeys(("matmul", "bmm", "baddbmm"), matmul),
    **dict.fromkeys(REDUCTIONS.split(), reduce),
    **dict.fromkeys(("cumsum", "cumprod", "sort", "topk", "argsort", "gather", "flip"), sorts),
    "glu": halves,
    "layer_norm": layer_norm,
    "linear": linear,
    "einsum": einsum,
    "scaled_dot_product_attention": attention,
    "encoder": encoder,
    "multi_head_attention": multi_head_attention,
    "roll": tokens_shift,
}
