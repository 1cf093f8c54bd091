"""What convolutions, pooling, resizing, padding and slices do to grids; what replaces them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from trueshift.convert.analysis import Action, Analysis, Rule
from trueshift.convert.calls import Call
from trueshift.convert.errors import Refused
from trueshift.convert.lattice import Space
from trueshift.convert.shapes import enter_origin, layout
from trueshift.convert.ups import Grow, Reduce, Transposed, roll
from trueshift.convert.values import CONSTANT, OTHER, Frame, Kind, Plain, Value, values_in
from trueshift.convert.windows import (
    Convolution,
    Every,
    MaxPool,
    MeanPool,
    PowerPool,
    Shrink,
    Unshuffle,
    Window,
)

_MODES = {"zero": "zeros", "constant": "zeros", "reflection": "reflect", "replication": "replicate"}
_HOOKS = "hooks change its weights before it runs (an old weight_norm or spectral_norm?)."


def per_axis(value: Any, dim: int) -> tuple[int, ...]:
    """Return one integer per axis."""
    if isinstance(value, int):
        return (value,) * dim
    numbers = tuple(int(v) for v in value)
    return numbers * dim if len(numbers) == 1 else numbers


def convolution(a: Analysis, call: Call) -> Any:
    """Convolve: circular padding, and a choice of phase where there is a stride."""
    value, weight = call.params["input"], call.params["weight"]
    if not isinstance(value, Value):
        raise Refused("its input is not a tensor.", "Check the call.")
    dim = value.data.ndim - 2
    if weight.has_space:
        raise Refused("its weights depend on space.", "Use weights that are parameters.")
    if not _on_map(value):
        return _original(a, call, value)
    kernel = tuple(weight.data.shape[2:])
    dilation = per_axis(call.get("dilation", 1), dim)
    reach = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
    left, right = _borders(call.get("padding", 0), reach)
    stride = per_axis(call.get("stride", 1), dim)
    if _covers(value, left, right, reach, stride):
        enter_origin(a, call, value)
        result: Tensor = a.execute(call)
        return Value(result, (value.kinds[0], *[OTHER] * (dim + 1)))
    mode = call.get("padding_mode", "zeros")
    module = Convolution(
        stride,
        left,
        reach,
        dilation=dilation,
        groups=int(call.get("groups", 1)),
        keep=a.keep,
        border=tuple(zip(left, right, strict=True)),
        mode=_MODES.get(mode, mode),
    )
    inputs = (call.raw["weight"], call.raw.get("bias"))
    return window(a, call, value, module, weight.data.shape[0], inputs)


def _borders(padding: Any, reach: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if padding == "same":
        return tuple(r // 2 for r in reach), tuple(r - r // 2 for r in reach)
    left = per_axis(0 if padding == "valid" else padding, len(reach))
    return left, left


def _on_map(value: Value) -> bool:
    """Whether the spatial axes of an operation are grids (or constant along them)."""
    kinds = value.kinds[2:]
    return any(isinstance(kind, Space) or kind is CONSTANT for kind in kinds)


def _original(a: Analysis, call: Call, value: Value) -> Any:
    """Leave an operation alone whose axes are no grids: they are counted from an origin."""
    result: Tensor = a.execute(call)
    kinds: list[Kind] = [value.kinds[0], OTHER]
    if not isinstance(value.kinds[1], Plain):
        raise Refused("its channels are a spatial axis.", "Move space behind the channels.")
    for kind in value.kinds[2:]:
        if not isinstance(kind, Plain | Frame):
            raise Refused("it convolves flattened positions.", "Convolve the map itself.")
        kinds.append(kind)
    return Value(result, tuple(kinds))


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
    module: Window,
    channels: int,
    inputs: tuple[Any, ...] = (),
) -> Value:
    """Replace a node by a window operation, with a new phase if it samples."""
    node, steps = call.node, module.stride
    if node.op == "call_module":
        owner = a.traced.root.get_submodule(str(node.target))
        if owner._forward_pre_hooks or owner._forward_hooks:
            raise Refused(_HOOKS, "Use torch.nn.utils.parametrizations, or remove the hooks.")
    spatial = [kind for kind in value.kinds[2:] if isinstance(kind, Space)]
    batch, others = value.data.shape[0], value.data.shape[2:]
    if not spatial:  # the same everywhere: it stays so
        sizes = [-(-n // s) for n, s in zip(others, steps, strict=True)]
        a.actions[node] = Action("window", module, inputs)
        data = _result(a, call, (batch, channels, *sizes))
        return Value(data, (value.kinds[0], OTHER, *value.kinds[2:]))
    if max(steps) == 1:
        a.actions[node] = Action("window", module, inputs)
        data = _result(a, call, (batch, channels, *others))
        return Value(data, (value.kinds[0], OTHER, *value.kinds[2:]))
    spaces = list(layout(value))
    a.check_divisible(spaces, steps)
    phase, coarse = a.lattice.down(a.site(node), spaces, steps)
    a.actions[node] = Action("window", module, inputs, phase, tuple(spaces))
    sizes = [n // s for n, s in zip(others, steps, strict=True)]
    data = _result(a, call, (batch, channels, *sizes))
    return Value(data, (value.kinds[0], OTHER, *coarse))


def _result(a: Analysis, call: Call, shape: tuple[int, ...]) -> Tensor:
    """A tensor of the result's shape; the original's own where its padding is kept."""
    value: Value = call.params["input"]
    result: Tensor = a.execute(call) if a.keep else value.data.new_zeros(shape)
    return result


def pooling(a: Analysis, call: Call) -> Any:
    """Pool windows."""
    value: Value = call.params["input"]
    if not _on_map(value):
        return _original(a, call, value)
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
        symbolic = any(values_in(call.raw)) or not isinstance(call.raw.get("kernel_size"), int)
        a.fixed_sizes = a.fixed_sizes or not symbolic
        return _global(a, call, value, axes)
    common: dict[str, Any] = {
        "keep": a.keep,
        "border": tuple((p, p) for p in padding),
        "ceil": bool(call.get("ceil_mode", False)),
    }
    module: Window
    if call.name == "max_pool":
        module = MaxPool(stride, padding, reach, kernel=kernel, dilation=dilation, **common)
    elif call.name == "lp_pool":
        p = float(call.params["norm_type"])
        module = PowerPool(stride, padding, reach, kernel=kernel, p=p, **common)
    else:
        module = MeanPool(
            stride,
            padding,
            reach,
            kernel=kernel,
            divisor=call.get("divisor_override"),
            counts_border=bool(call.get("count_include_pad", True)),
            **common,
        )
    return window(a, call, value, module, value.data.shape[1])


def _global(a: Analysis, call: Call, value: Value, axes: tuple[int, ...]) -> Value:
    """Pool a whole map."""
    kinds = tuple(OTHER if axis in axes else kind for axis, kind in enumerate(value.kinds))
    if "max" in call.name:
        a.actions[call.node] = Action("call", torch_amax, (axes, True))
        return Value(value.data.amax(axes, keepdim=True), kinds)
    a.actions[call.node] = Action("replace", Reduce("mean", axes, True))
    return Value(value.data.mean(axes, keepdim=True), kinds)


def torch_amax(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    """Largest value over axes."""
    return x.amax(axes, keepdim=keepdim)


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
    note = "bins are counted from an origin that the contents choose"
    index = len(a.origins)
    a.actions[call.node] = Action("origin", spaces=spaces, origin=index, note=note)
    a.origins.append(call.node)
    return Value(result, (*value.kinds[:2], *(Frame(space, index) for space in spaces)))


def interpolate(a: Analysis, call: Call) -> Any:
    """Resize by whole factors."""
    value: Value = call.params["input"]
    if not isinstance(value, Value):
        raise Refused("its input is not a tensor.", "Check the call.")
    sizes = list(value.data.shape[2:])
    wanted = _wanted_sizes(call, sizes)
    options = {
        "mode": call.get("mode", "bilinear" if call.name == "upsample_bilinear" else "nearest"),
        "align_corners": call.get("align_corners"),
        "antialias": bool(call.get("antialias", False)),
    }
    if call.name == "upsample_bilinear":
        options["align_corners"] = True
    kinds = value.kinds[2:]
    if not value.has_space:
        result: Tensor = a.execute(call)
        new = [
            CONSTANT if (kind is CONSTANT or before == 1) and after > 1 else kind
            for kind, before, after in zip(kinds, sizes, result.shape[2:], strict=True)
        ]
        return Value(result, (*value.kinds[:2], *new), value.fixed)
    if any(isinstance(kind, Frame) for kind in kinds):
        return _leave_origin(a, call, value)
    spaces = layout(value)
    if all(w % n == 0 for w, n in zip(wanted, sizes, strict=True)):
        factors = tuple(w // n for w, n in zip(wanted, sizes, strict=True))
        note = (
            "align_corners has no circular form: its limit is used"
            if (options["align_corners"] and max(factors) > 1)
            else ""
        )
        module = None if a.keep else Grow(factors, options)
        return _up(a, call, value, spaces, factors, module, (), value.data.shape[1], note)
    if all(n % w == 0 for w, n in zip(wanted, sizes, strict=True)):
        stride = tuple(n // w for w, n in zip(wanted, sizes, strict=True))
        if options["align_corners"]:
            raise Refused("it shrinks with align_corners=True.", "Use align_corners=False.")
        shrink = Shrink(stride, options=options, keep=a.keep)
        return window(a, call, value, shrink, value.data.shape[1])
    raise Refused(
        f"it resizes {tuple(sizes)} to {tuple(wanted)}, not by a whole factor.",
        "Choose an input size at which the factor is whole, or resize by 2, 3, 4, ...",
    )


def _wanted_sizes(call: Call, sizes: Sequence[int]) -> list[int]:
    dim = len(sizes)
    if call.get("size") is not None:
        return list(per_axis(call.params["size"], dim))
    factor = call.params["scale_factor"]
    factors = [factor] * dim if isinstance(factor, int | float) else list(factor)
    if len(factors) == 1:
        factors = factors * dim
    return [int(n * f) for n, f in zip(sizes, factors, strict=True)]


def _up(
    a: Analysis,
    call: Call,
    value: Value,
    spaces: Sequence[Space],
    factors: tuple[int, ...],
    module: Any,
    inputs: tuple[Any, ...],
    channels: int,
    note: str = "",
) -> Value:
    """Replace an up-sampling: circular borders, then a shift by the phases it undoes."""
    pairs = [a.lattice.up(s, f) for s, f in zip(spaces, factors, strict=True)]
    shift = tuple(tuple(digits) for _, digits in pairs)
    a.actions[call.node] = Action(
        "up", module, inputs, spaces=tuple(spaces), shift=shift, factors=factors, note=note
    )
    sizes = [n * f for n, f in zip(value.data.shape[2:], factors, strict=True)]
    data = _result(a, call, (value.data.shape[0], channels, *sizes))
    return Value(data, (*value.kinds[:2], *(space for space, _ in pairs)))


def _leave_origin(a: Analysis, call: Call, value: Value) -> Value:
    """Resize a map that is counted from an origin back onto its grid."""
    result: Tensor = a.execute(call)
    frames = [kind for kind in value.kinds[2:] if isinstance(kind, Frame)]
    sizes = [a.size_of(frame.space) for frame in frames]
    if len(frames) != result.ndim - 2 or any(
        after % n for after, n in zip(result.shape[2:], sizes, strict=True)
    ):
        raise Refused("pooled bins are resized to another size.", "Resize to the map's own size.")
    factors = tuple(after // n for after, n in zip(result.shape[2:], sizes, strict=True))
    pairs = [a.lattice.up(frame.space, f) for frame, f in zip(frames, factors, strict=True)]
    a.actions[call.node] = Action(
        "leave",
        spaces=tuple(frame.space for frame in frames),
        shift=tuple(tuple(digits) for _, digits in pairs),
        origin=frames[0].origin,
        factors=factors,
    )
    return Value(result, (*value.kinds[:2], *(space for space, _ in pairs)))


def transposed(a: Analysis, call: Call) -> Any:
    """Up-sample by a transposed convolution."""
    value, weight = call.params["input"], call.params["weight"]
    if not _on_map(value):
        return _original(a, call, value)
    spaces = layout(value)
    dim, groups = len(spaces), int(call.get("groups", 1))
    stride = per_axis(call.get("stride", 1), dim)
    dilation = per_axis(call.get("dilation", 1), dim)
    kernel = weight.data.shape[2:]
    reach = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
    padding = per_axis(call.get("padding", 0), dim)
    module = None if a.keep else Transposed(stride, padding, dilation, reach, groups)
    inputs = (call.raw["weight"], call.raw.get("bias"))
    return _up(a, call, value, spaces, stride, module, inputs, weight.data.shape[1] * groups)


def shuffle(a: Analysis, call: Call) -> Any:
    """Channels to blocks of pixels: an up-sampling that reads one position only."""
    value: Value = call.params["input"]
    factor = int(call.params["factor"])
    spaces = layout(value)
    channels = value.data.shape[1] // factor**2
    return _up(a, call, value, spaces, (factor, factor), None, (), channels)


def unshuffle(a: Analysis, call: Call) -> Any:
    """Blocks of pixels to channels."""
    value: Value = call.params["input"]
    factor = int(call.params["factor"])
    steps = (factor, factor)
    module = Unshuffle(steps, (0, 0), (factor - 1, factor - 1), keep=a.keep)
    return window(a, call, value, module, value.data.shape[1] * factor**2)


def padding(a: Analysis, call: Call) -> Any:
    """Pad: on a circle, nothing is added; what follows begins earlier."""
    value: Value = call.params["input"]
    widths = call.params["pad"]
    dim = value.data.ndim - 2
    flat = [widths] * (2 * dim) if isinstance(widths, int) else [int(width) for width in widths]
    pairs = {value.data.ndim - 1 - i: tuple(flat[2 * i : 2 * i + 2]) for i in range(len(flat) // 2)}
    padded = [axis for axis, pair in pairs.items() if any(pair)]
    spatial = [axis for axis in padded if isinstance(value.kinds[axis], Space)]
    if not spatial or a.keep:
        return Value(a.execute(call), value.kinds)
    if len(spatial) != len(padded):
        raise Refused("it pads space and channels at once.", "Pad them one after the other.")
    _shifted(a, call, tuple(pairs[axis][0] for axis in spatial), tuple(spatial))
    return value


def _shifted(a: Analysis, call: Call, shifts: tuple[int, ...], axes: tuple[int, ...]) -> None:
    if any(shifts):
        a.actions[call.node] = Action("call", roll, (shifts, axes), note="becomes a shift")
    else:
        a.actions[call.node] = Action("skip", note="not needed on a circle")


def getitem(a: Analysis, call: Call) -> Any:
    """Take an item of a tuple, or slice a tensor."""
    value, index = call.args[:2]
    if not isinstance(value, Value):
        return value[index]
    if not value.has_space:
        result = a.execute(call)
        return a.wrap(result, values_in(call.args))
    items = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [item for item in items if not isinstance(item, Value)]:
        place = next(i for i, item in enumerate(items) if item is Ellipsis)
        used = sum(item is not None and item is not Ellipsis for item in items)
        items[place : place + 1] = [slice(None)] * (value.data.ndim - used)
    items += [slice(None)] * (value.data.ndim - sum(item is not None for item in items))
    kinds: list[Kind] = []
    cuts: dict[int, slice] = {}
    axis = 0
    for item in items:
        if item is None:
            kinds.append(OTHER)
            continue
        kind = value.kinds[axis]
        if isinstance(item, slice):
            if not isinstance(kind, Plain) and not _is_whole(item, value.data.shape[axis]):
                cuts[axis] = item
            kinds.append(kind)
        elif not isinstance(kind, Plain):
            raise Refused("it picks positions by number.", "Use pooling, or keep the whole map.")
        elif not isinstance(item, int):
            raise Refused("it indexes a map with a tensor.", "Use slices, chunk or split.")
        axis += 1
    if cuts:
        return _cut_space(a, call, value, items, cuts)
    return Value(a.execute(call), tuple(kinds))


def _is_whole(item: slice, size: int) -> bool:
    return item.indices(size) == (0, size, 1)


def _cut_space(
    a: Analysis, call: Call, value: Value, items: list[Any], cuts: dict[int, slice]
) -> Any:
    others = [item for axis, item in enumerate(items) if axis not in cuts]
    if any(item != slice(None) for item in others) or len(items) != value.data.ndim:
        raise Refused("it slices space and other axes at once.", "Slice one after the other.")
    found = {axis: item.indices(value.data.shape[axis]) for axis, item in cuts.items()}
    if any(step > 1 for _, _, step in found.values()):
        layout(value)
        numbers = [found.get(axis, (0, 0, 1)) for axis in range(2, value.data.ndim)]
        stride = tuple(step for _, _, step in numbers)
        left = tuple(-start for start, _, _ in numbers)
        whole = all(found[axis][1] > value.data.shape[axis] - found[axis][2] for axis in found)
        if not whole:
            raise Refused("it takes a part of space only.", "Take every n-th of the whole map.")
        module = Every(stride, left, (0,) * len(stride), keep=a.keep)
        return window(a, call, value, module, value.data.shape[1])
    sizes = [value.data.shape[axis] for axis in found]
    if any(
        2 * (stop - start) <= n for (start, stop, _), n in zip(found.values(), sizes, strict=True)
    ):
        raise Refused("it takes a part of space only.", "Use pooling, or keep the whole map.")
    if not a.keep:
        _shifted(a, call, tuple(-start for start, _, _ in found.values()), tuple(found))
        return value
    return Value(a.execute(call), value.kinds)


def resampling_rules() -> dict[str, Rule]:
    """Return the rules of this file by name."""
    rules: dict[str, Rule] = dict.fromkeys(("max_pool", "avg_pool", "lp_pool"), pooling)
    rules |= dict.fromkeys(("adaptive_avg_pool", "adaptive_max_pool"), adaptive_pooling)
    names = ("interpolate", "upsample", "upsample_nearest", "upsample_bilinear")
    rules |= dict.fromkeys(names, interpolate)
    return rules | {
        "conv": convolution,
        "conv_transpose": transposed,
        "pixel_shuffle": shuffle,
        "pixel_unshuffle": unshuffle,
        "pad": padding,
        "getitem": getitem,
    }
