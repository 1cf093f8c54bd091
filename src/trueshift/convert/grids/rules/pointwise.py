"""What operations that treat every position alone, or all of them alike, do to grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from trueshift.convert.errors import Refused
from trueshift.convert.grids.analysis import Action, Analysis, Rule
from trueshift.convert.grids.meeting import broadcast, varies
from trueshift.convert.grids.rules.biases import without_positions
from trueshift.convert.grids.values import BATCH, CONSTANT, OTHER, Value, values_in
from trueshift.convert.parts.part import part
from trueshift.convert.parts.ups import FunctionalDropout
from trueshift.convert.trace.calls import Call

POINTWISE = """
    abs add addcdiv addcmul and atan atan2 batch_norm bernoulli bfloat16 bitwise_and bitwise_not
    bitwise_or ceil celu channel_shuffle clamp clamp_max clamp_min clone contiguous cos cpu cuda
    detach div double elu eq erf exp exp2 expm1 float floor floor_divide floordiv ge gelu gt
    half hardshrink hardsigmoid hardswish hardtanh hypot iadd imul int invert isfinite isinf
    isnan isub itruediv le leaky_relu lerp local_response_norm log log10 log1p log2 logical_and
    logical_not logical_or logical_xor logit logsigmoid long lt masked_fill maximum minimum mish
    mod mul multiply nan_to_num ne neg negative or pointwise positive pow prelu radd rdiv
    reciprocal relu relu6 remainder rmul round rrelu rsqrt rsub rtruediv selu sigmoid sign silu
    sin sinh softplus softshrink softsign sqrt square sub subtract tan tanh tanhshrink threshold
    to true_divide truediv type type_as where xor
"""
FIRST_ONLY = {"batch_norm", "prelu"}
SHAPES = """
    size dim numel is_floating_point stride data_ptr is_contiguous element_size ndimension getattr
    assert
"""
CREATED = """
    zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full
"""
ALIKE = """
    group_norm instance_norm over_space normalize softmax log_softmax softmin
"""


def pointwise(a: Analysis, call: Call) -> Any:
    """Treat every position alone; several maps meet."""
    result = a.execute(call)
    node = call.node
    values = values_in((a.look(node.args), a.look(node.kwargs)))
    nodes = node.all_input_nodes
    if call.name in ("add", "iadd") and len(values) == len(nodes) == 2:
        for one, other in (nodes, nodes[::-1]):
            scores, plain = a.env[one], not a.env[other].has_space
            if scores.spatial and plain and without_positions(a, call, scores, other):
                return Value(result, scores.kinds)
    if call.name in FIRST_ONLY or node.op == "call_module":
        values = values[:1]
    maps = [value for value in values if value.has_space]
    if len(maps) == 1 and all(v is maps[0] or _alike_everywhere(v, maps[0]) for v in values):
        a.unary.add(node)
    return _with(a, result, values)


def _alike_everywhere(value: Value, beside: Value) -> bool:
    """Whether a tensor without space is the same for all images and positions of a map."""
    behind = beside.data.ndim - value.data.ndim
    places = any(axis >= behind and varies(value, axis - behind) for axis in beside.spatial)
    return value.data.numel() == 1 or not (value.kinds[:1] == (BATCH,) or places)


def _with(a: Analysis, result: Any, values: Sequence[Value]) -> Any:
    if not isinstance(result, Tensor):
        return result
    fixed = all(value.fixed for value in values)
    return Value(result, broadcast(a.lattice, values, result.ndim), fixed)


def alike(a: Analysis, call: Call) -> Any:
    """Normalise along axes, by statistics that do not change with a shift."""
    return _with(a, a.execute(call), values_in(call.params["input"])[:1])


def shape_of(a: Analysis, call: Call) -> Any:
    """Ask for sizes and types."""
    result = a.execute(call)
    if isinstance(result, Tensor):
        raise Refused(f"no rule for the attribute {call.args[1]}.", "Use a method with a rule.")
    return result


def dropout(a: Analysis, call: Call) -> Any:
    """Switch a functional dropout on while training."""
    value: Value = call.params["input"]
    p = call.get("p", 0.5)
    if p > 0:
        new = part(FunctionalDropout, function=call.node.target, p=p)
        a.actions[call.node] = Action("replace", new)
    a.unary.add(call.node)
    return value


def created(a: Analysis, call: Call) -> Any:
    """Make a tensor that is the same everywhere."""
    result: Tensor = a.execute(call)
    return Value(result, (CONSTANT,) * result.ndim, fixed=True)


def write(a: Analysis, call: Call) -> None:
    """Write into a part of a tensor without space, which is then not the same everywhere."""
    target, *rest = values_in(call.args)
    if target.spatial or any(value.spatial for value in rest):
        raise Refused("it writes into a part of a map.", "Use torch.where, cat or pad.")
    a.execute(call)
    kinds = tuple(OTHER if kind is CONSTANT else kind for kind in target.kinds)
    fixed = target.fixed and all(value.fixed for value in rest)
    a.env[call.node.all_input_nodes[0]] = Value(target.data, kinds, fixed)


def invariant(a: Analysis, call: Call) -> Any:
    """A user's operation whose result does not depend on where things are."""
    result = a.execute(call)
    return a.wrap(result, values_in((a.look(call.node.args), a.look(call.node.kwargs))))


RULES: dict[str, Rule] = {
    **dict.fromkeys(POINTWISE.split(), pointwise),
    **dict.fromkeys(ALIKE.split(), alike),
    **dict.fromkeys(SHAPES.split(), shape_of),
    **dict.fromkeys(CREATED.split(), created),
    "dropout": dropout,
    "setitem": write,
    "equivariant": pointwise,
    "invariant": invariant,
}
