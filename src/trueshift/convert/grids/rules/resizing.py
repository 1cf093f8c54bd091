"""What interpolation and other up-sampling do to grids; what replaces them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from trueshift.convert.errors import Refused
from trueshift.convert.grids.analysis import Action, Analysis, Rule
from trueshift.convert.grids.lattice import Space
from trueshift.convert.grids.rules.maps import layout, new_data, on_map, original, per_axis
from trueshift.convert.grids.rules.strides import window
from trueshift.convert.grids.values import CONSTANT, Frame, Value
from trueshift.convert.parts.part import Part, part
from trueshift.convert.parts.ups import Grow, Repeat, Transposed
from trueshift.convert.parts.windows import Shrink
from trueshift.convert.trace.calls import Call


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
        if set(sizes) == {1}:
            a.actions[call.node] = Action("replace", part(Repeat), _size(call, wanted))
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
        kept = a.keeps(value)
        grown = part(Grow, factors=factors, resizing=options, own_padding=kept)
        grow = None if kept is True else grown
        return _up(a, call, value, spaces, factors, grow, (), value.data.shape[1], note)
    if all(n % w == 0 for w, n in zip(wanted, sizes, strict=True)):
        stride = tuple(n // w for w, n in zip(wanted, sizes, strict=True))
        if options["align_corners"]:
            raise Refused("it shrinks with align_corners=True.", "Use align_corners=False.")
        shrink = part(Shrink, stride=stride, resizing=options, own_padding=a.keeps(value))
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


def _size(call: Call, wanted: Sequence[int]) -> tuple[Any, ...]:
    """Return the size that a call asks for, as one node or one number or node per axis."""
    size = call.raw.get("size")
    if size is None:
        return tuple(wanted)
    return tuple(size) if isinstance(size, list | tuple) else (size,)


def _up(
    a: Analysis,
    call: Call,
    value: Value,
    spaces: Sequence[Space],
    factors: tuple[int, ...],
    new: Part | None,
    tensors: tuple[Any, ...],
    channels: int,
    note: str = "",
) -> Value:
    """Replace an up-sampling: circular borders, then a shift by the phases it undoes."""
    pairs = [a.lattice.up(s, f) for s, f in zip(spaces, factors, strict=True)]
    shift = tuple(tuple(digits) for _, digits in pairs)
    a.actions[call.node] = Action(
        "up", new, tensors, spaces=tuple(spaces), shift=shift, factors=factors, note=note
    )
    sizes = [n * f for n, f in zip(value.data.shape[2:], factors, strict=True)]
    data = new_data(a, call, (value.data.shape[0], channels, *sizes))
    return Value(data, (*value.kinds[:2], *(space for space, _ in pairs)))


def _leave_origin(a: Analysis, call: Call, value: Value) -> Value:
    """Resize a map that is counted from an origin back onto its grid."""
    if any(isinstance(kind, Frame) and kind.stride > 1 for kind in value.kinds):
        return original(a, call, value)
    result: Tensor = a.execute(call)
    frames = [kind for kind in value.kinds[2:] if isinstance(kind, Frame)]
    sizes = [a.size_of(frame.space) for frame in frames]
    if len(frames) != result.ndim - 2 or any(
        after % n for after, n in zip(result.shape[2:], sizes, strict=True)
    ):
        if a.positions == "canonical":
            return original(a, call, value)
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
    if not on_map(value):
        return original(a, call, value)
    spaces = layout(value)
    dim, groups = len(spaces), int(call.get("groups", 1))
    stride = per_axis(call.get("stride", 1), dim)
    dilation = per_axis(call.get("dilation", 1), dim)
    kernel = weight.data.shape[2:]
    reach = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
    padding = per_axis(call.get("padding", 0), dim)
    geometry: dict[str, Any] = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "reach": reach,
    }
    kept, beyond = a.keeps(value), per_axis(call.get("output_padding", 0), dim)
    geometry |= {"output_padding": beyond, "own_padding": kept}
    new = None if kept is True else part(Transposed, groups=groups, **geometry)
    tensors = (call.raw["weight"], call.raw.get("bias"))
    return _up(a, call, value, spaces, stride, new, tensors, weight.data.shape[1] * groups)


def shuffle(a: Analysis, call: Call) -> Any:
    """Channels to blocks of pixels: an up-sampling that reads one position only."""
    value: Value = call.params["input"]
    factor = int(call.params["factor"])
    spaces = layout(value)
    channels = value.data.shape[1] // factor**2
    return _up(a, call, value, spaces, (factor, factor), None, (), channels)


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("interpolate", "upsample", "upsample_nearest", "upsample_bilinear"), interpolate
    ),
    "conv_transpose": transposed,
    "pixel_shuffle": shuffle,
}
