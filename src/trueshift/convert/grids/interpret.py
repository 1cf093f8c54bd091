"""Trace a network on an example and find out on which grids its tensors live."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from trueshift._validate import check_choice
from trueshift.convert.errors import Refusal, SizeError, wrong_size
from trueshift.convert.grids.analysis import COUNT, Analysis, NeedsOrigin, TooSmall
from trueshift.convert.grids.lattice import Lattice
from trueshift.convert.grids.rules import RULES
from trueshift.convert.parts.windows import Axes
from trueshift.convert.plan import Padding
from trueshift.convert.trace.trace import Traced, trace

_CUSTOM: dict[Any, str] = {}


def register_rule(op: Callable[..., Any] | str | type[nn.Module], rule: str) -> None:
    """Tell the analysis what an operation of yours does to space.

    Args:
        op: A function, the name of a tensor's method, or a module class (then it is not traced
            into).
        rule: ``"equivariant"``: every position of the result depends on the inputs in the same way
            (circularly, at the same size), so that shifting the inputs shifts the result. Several
            inputs must be on one grid. ``"invariant"``: shifting the inputs changes nothing, as
            with global pooling.

    Examples:
        >>> class Wobble(nn.Module):
        ...     def forward(self, x):
        ...         return torch.special.i0(x)
        >>> register_rule(Wobble, "equivariant")
    """
    check_choice("register_rule", "rule", rule, ("equivariant", "invariant"))
    if not (callable(op) or isinstance(op, str)):
        raise TypeError(
            f"register_rule: op must be a function, a method's name or a class, got {op!r}."
        )
    _CUSTOM[op] = rule


def analyse(
    model: nn.Module, example: Any, flatten: str, positions: str, padding: Padding
) -> Analysis:
    """Trace and interpret a network; raise if the example's size does not fit."""
    traced = trace(model, example, _CUSTOM)
    tensors = [value for value in traced.arguments.values() if isinstance(value, Tensor)]
    if not any(map(_is_map, tensors)):
        raise ValueError(
            "convert: example_input holds no map (B, C, *spatial) with 1 to 3 spatial axes, got"
            f" shapes {[tuple(value.shape) for value in tensors]}."
        )
    for name, value in traced.arguments.items():
        if _is_map(value) and not isinstance(padding, str) and value.ndim - 2 != len(padding):
            raise ValueError(
                f"convert: padding={padding} names {len(padding)} axes, got {name} of shape"
                f" {tuple(value.shape)} with {value.ndim - 2}. Pass one padding, or one per axis."
            )
    return _interpret(traced, flatten, positions, padding)


def _interpret(traced: Traced, flatten: str, positions: str, padding: Padding) -> Analysis:
    """Interpret at the example's size, or at larger ones until every stride divides them."""
    arguments, grown = traced.arguments, dict(traced.arguments)
    at_seam = padding in ("seam", "keep")
    if at_seam:  # positions are counted from the seam, or the corner
        flatten, positions = "canonical", "canonical" if padding == "keep" else positions
    if isinstance(padding, str):
        own_padding: Axes = padding != "circular"
    else:
        own_padding = tuple(axis == "keep" for axis in padding)
    multiples: dict[int, int] = {}
    counted: frozenset[str] = frozenset()
    first: TooSmall | None = None
    for _ in range(64):
        at_size = dataclasses.replace(traced, arguments=grown)
        lattice = Lattice(at_seam=at_seam)
        try:
            analysis = Analysis(
                at_size, RULES, _CUSTOM, flatten, positions, own_padding, lattice, counted
            ).run()
        except NeedsOrigin as found:
            counted |= {found.node.name}
            continue
        except TooSmall as small:
            first = first or small
            for axis, multiple in small.multiples.items():
                multiples[axis] = math.lcm(multiples.get(axis, 1), multiple)
            grown = {name: _grow(value, multiples) for name, value in arguments.items()}
            continue
        place = first.map_before if first is not None else None
        if place is None or positions != "canonical" or isinstance(own_padding, tuple):
            break
        # It serves its own size only: where that is not a multiple, count from an origin.
        counted |= {place.name}
        first, multiples, grown = None, {}, dict(arguments)
    _check_sizes(analysis, arguments, multiples, first, own_padding is False)
    return analysis


def _check_sizes(
    analysis: Analysis,
    arguments: dict[str, Any],
    multiples: dict[int, int],
    small: TooSmall | None,
    may_count: bool,
) -> None:
    """Raise if inputs are no multiples of all strides; name the first operation that needs it.

    Where the original's padding makes them fit, the network serves this size only.
    """
    for name, value in arguments.items():
        if not _is_map(value):
            continue
        least = analysis.required_multiple(value.ndim - 2)
        needed = tuple(math.lcm(n, multiples.get(axis, 1)) for axis, n in enumerate(least))
        problem = wrong_size(name, value, needed)
        analysis.fixed_sizes = analysis.fixed_sizes or problem is not None
        if problem is not None and small is not None:
            reason, advice = problem
            advice += COUNT if may_count and small.map_before is not None else ""
            refusal = Refusal(*small.operation, reason, advice)
            raise SizeError(type(analysis.traced.root).__name__, [refusal])


def _is_map(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim in (3, 4, 5)


def _grow(value: Any, multiples: dict[int, int]) -> Any:
    """Enlarge an input to multiples."""
    if not _is_map(value):
        return value
    widths: list[int] = []
    for axis in reversed(range(value.ndim - 2)):
        widths += [0, -value.shape[2 + axis] % multiples.get(axis, 1)]
    return F.pad(value, widths)
