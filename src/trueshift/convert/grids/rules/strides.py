"""What convolutions and pooling do to grids; what replaces them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from trueshift.convert.errors import Flattened, Refused
from trueshift.convert.grids.analysis import Action, Analysis, Rule
from trueshift.convert.grids.lattice import Space
from trueshift.convert.grids.rules.maps import (
    add_origin,
    check_channels,
    layout,
    new_data,
    on_map,
    original,
    per_axis,
)
from trueshift.convert.grids.values import OTHER, Frame, Kind, Value
from trueshift.convert.parts.part import Part, part
from trueshift.convert.parts.ups import Reduce
from trueshift.convert.parts.windows import Convolution, MaxPool, MeanPool, PowerPool, Unshuffle
from trueshift.convert.trace.calls import Call
from trueshift.convert.trace.nodes import label_of

_MODES = {"zero": "zeros", "constant": "zeros", "reflection": "reflect", "replication": "replicate"}
_HOOKS = "hooks change its weights before it runs (an old weight_norm or spectral_norm?)."


def convolution(a: Analysis, call: Call) -> Any:
    """Convolve: circular padding, and a choice of phase where there is a stride."""
    value, weight = call.params["input"], call.params["weight"]
    if not isinstance(value, Value):
        raise Refused("its input is not a tensor.", "Check the call.")
    dim = value.data.ndim - 2
    if weight.has_space:
        raise Refused("its weights depend on space.", "Use weights that are parameters.")
    kernel = tuple(weight.data.shape[2:])
    dilation = per_axis(call.get("dilation", 1), dim)
    reach = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
    left, right = _borders(call.get("padding", 0), reach)
    stride = per_axis(call.get("stride", 1), dim)
    if not on_map(value):
        mixes_channels_only = not any((*left, *right, *reach)) and max(stride) == 1
        return original(a, call, value, mixes_channels_only)
    check_channels(value)
    if _covers(value, left, right, reach, stride):
        raise Flattened
    mode = call.get("padding_mode", "zeros")
    new = part(
        Convolution,
        stride=stride,
        left=left,
        reach=reach,
        dilation=dilation,
        groups=int(call.get("groups", 1)),
        own_padding=a.keeps(value),
        border=tuple(zip(left, right, strict=True)),
        mode=_MODES.get(mode, mode),
    )
    tensors = (call.raw["weight"], call.raw.get("bias"))
    return window(a, call, value, new, weight.data.shape[0], tensors)


def _borders(padding: Any, reach: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if padding == "same":
        return tuple(r // 2 for r in reach), tuple(r - r // 2 for r in reach)
    left = per_axis(0 if padding == "valid" else padding, len(reach))
    return left, left


def _covers(
    value: Value,
    left: tuple[int, ...],
    right: tuple[int, ...],
    reach: tuple[int, ...],
    stride: tuple[int, ...],
) -> bool:
    """Whether a convolution without padding is as large as its map."""
    sizes = value.data.shape[2:]
    return (
        not any(left)
        and not any(right)
        and max(sizes) > 1
        and all(r + 1 == n for r, n in zip(reach, sizes, strict=True))
        and any(s < n for s, n in zip(stride, sizes, strict=True))
    )


def window(
    a: Analysis,
    call: Call,
    value: Value,
    new: Part,
    channels: int,
    tensors: tuple[Any, ...] = (),
) -> Value:
    """Replace a node by a window operation, with a new phase if it samples."""
    node, stride = call.node, new.options["stride"]
    owner = a.traced.module(node)
    if owner is not None and (owner._forward_hooks or owner._forward_pre_hooks):
        raise Refused(_HOOKS, "Use torch.nn.utils.parametrizations, or remove the hooks.")
    kinds: Sequence[Kind] = value.kinds[2:]
    if max(stride) == 1 or not any(isinstance(kind, Space) for kind in kinds):
        a.actions[node] = Action("window", new, tensors)  # what is the same everywhere stays so
    else:
        spaces = list(layout(value))
        a.check_divisible(spaces, stride)
        phase, kinds = a.lattice.down(label_of(node), spaces, stride)
        a.actions[node] = Action("window", new, tensors, phase=phase, spaces=tuple(spaces))
    sizes = [-(-n // s) for n, s in zip(value.data.shape[2:], stride, strict=True)]
    data = new_data(a, call, (value.data.shape[0], channels, *sizes))
    return Value(data, (value.kinds[0], OTHER, *kinds))


def pooling(a: Analysis, call: Call) -> Any:
    """Pool windows."""
    value: Value = call.params["input"]
    if not on_map(value):
        return original(a, call, value)
    if call.get("return_indices"):
        raise Refused("it returns positions.", "Up-sample by interpolation, not by unpooling.")
    dim = value.data.ndim - 2
    kernel = per_axis(call.params["kernel_size"], dim)
    stride = per_axis(call.get("stride") or kernel, dim)
    dilation = per_axis(call.get("dilation", 1), dim)
    padding = per_axis(call.get("padding", 0), dim)
    reach = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
    if kernel == tuple(value.data.shape[2:]) and not any(padding) and call.name != "lp_pool":
        axes = tuple(range(2, 2 + dim))
        a.fixed_sizes = a.fixed_sizes or isinstance(call.raw.get("kernel_size"), int)
        return _global(a, call, value, axes)
    common: dict[str, Any] = {
        "stride": stride,
        "left": padding,
        "reach": reach,
        "kernel": kernel,
        "own_padding": a.keeps(value),
        "border": tuple((p, p) for p in padding),
        "ceil": bool(call.get("ceil_mode", False)),
    }
    if call.name == "max_pool":
        new = part(MaxPool, dilation=dilation, **common)
    elif call.name == "lp_pool":
        new = part(PowerPool, p=float(call.params["norm_type"]), **common)
    else:
        counts_border = bool(call.get("count_include_pad", True))
        divisor = call.get("divisor_override")
        new = part(MeanPool, divisor=divisor, counts_border=counts_border, **common)
    return window(a, call, value, new, value.data.shape[1])


def _global(a: Analysis, call: Call, value: Value, axes: tuple[int, ...]) -> Value:
    """Pool a whole map."""
    kinds = tuple(OTHER if axis in axes else kind for axis, kind in enumerate(value.kinds))
    kind = "max" if "max" in call.name else "mean"
    a.actions[call.node] = Action("replace", part(Reduce, kind=kind, dims=axes, keepdim=True))
    return Value(value.data.amax(axes, keepdim=True), kinds)


def adaptive_pooling(a: Analysis, call: Call) -> Any:
    """Pool to a given size: 1 is global, more bins are counted from an origin."""
    value: Value = call.params["input"]
    dim = value.data.ndim - 2
    size = call.params["output_size"]
    wanted = [size] * dim if isinstance(size, int) or size is None else list(size)
    if len(wanted) == 1:
        wanted = wanted * dim
    spatial = [i for i, kind in enumerate(value.kinds) if isinstance(kind, Space)]
    if all(w == 1 for w in wanted) and call.get("return_indices") is not True:
        return _global(a, call, value, tuple(range(2, 2 + dim)))
    if not spatial or all(w is None for w in wanted):
        result: Tensor = a.execute(call)
        return Value(result, value.kinds)
    if any(not isinstance(size, int | type(None)) for size in wanted):
        raise Refused("its output size is not a number.", "Pass integers.")
    spaces = layout(value)
    result = a.execute(call)
    note = "bins are counted from an origin that the content chooses"
    index = add_origin(a, call, spaces, note)
    return Value(result, (*value.kinds[:2], *(Frame(space, index) for space in spaces)))


def unshuffle(a: Analysis, call: Call) -> Any:
    """Blocks of pixels to channels."""
    value: Value = call.params["input"]
    factor = int(call.params["factor"])
    new = part(
        Unshuffle,
        stride=(factor, factor),
        left=(0, 0),
        reach=(factor - 1, factor - 1),
        own_padding=a.keeps(value),
    )
    return window(a, call, value, new, value.data.shape[1] * factor**2)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("max_pool", "avg_pool", "lp_pool"), pooling),
    **dict.fromkeys(("adaptive_avg_pool", "adaptive_max_pool"), adaptive_pooling),
    "conv": convolution,
    "pixel_unshuffle": unshuffle,
}
