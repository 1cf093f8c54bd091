"""What converting a network would do: readable, printable, testable; nothing is changed."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn
from torch.nn import functional as F

from trueshift._validate import check_choice
from trueshift.convert.grids.analysis import Action, Analysis, TooSmall
from trueshift.convert.build.converted import PREFIX, check_multiple
from trueshift.convert.errors import ConversionError, Refusal
from trueshift.convert.grids.lattice import Lattice, Phase
from trueshift.convert.grids.rules import RULES
from trueshift.convert.trace.trace import Traced, trace
from trueshift.layers.spec import Sampling

SELECT = ("output", "input")
FLATTEN = ("refuse", "canonical")
PADDING = ("circular", "seam", "keep")
_CUSTOM: dict[Any, str] = {}


@dataclass(frozen=True)
class Site:
    """One place that conversion changes.

    Args:
        name: The module, or the module and the operation in its code.
        op: The operation.
        stride: Its sampling factor; ``None`` if it does not sample.
        role: ``"leads"``, ``"follows"``, ``"up"``, ``"padding"``, ``"mean"``, ``"origin"`` or
            ``"seam"``.
        detail: Whom it follows, or what changes.
        flops: Multiplications and additions of the original operation.
        flops_after: The same after conversion.
    """

    name: str
    op: str
    stride: tuple[int, ...] | None
    role: str
    detail: str = ""
    flops: int = 0
    flops_after: int = 0


@dataclass(frozen=True)
class Plan:
    """What converting a network does; ``print`` it.

    Args:
        network: Name of the network's class.
        sites: The places that change, in the order of the network.
        refusals: Places that cannot be converted; the network converts if there are none.
        multiples: Of what number each axis of the inputs must be a multiple.
        sizes: Spatial sizes of the example, by input.
        fixed_sizes: Whether the converted network serves the example's size only.
        padding: ``"circular"`` or ``"their own"``.
        flops: Multiplications and additions of the whole network on the example.
        flops_after: The same after conversion, selectors included.
    """

    network: str
    sites: tuple[Site, ...]
    refusals: tuple[Refusal, ...]
    multiples: tuple[int, ...]
    sizes: dict[str, tuple[int, ...]]
    fixed_sizes: bool
    padding: str = "circular"
    flops: int = 0
    flops_after: int = 0

    @property
    def required_multiple(self) -> int | tuple[int, ...]:
        """Of what number the sizes of inputs must be multiples (one per axis if they differ)."""
        return self.multiples[0] if len(set(self.multiples)) == 1 else self.multiples

    @property
    def converts(self) -> bool:
        """Whether nothing was refused."""
        return not self.refusals

    def __str__(self) -> str:
        head = f"{self.network}: {len(self.sites)} sites, inputs in multiples of"
        lines = [f"{head} {self.required_multiple}"]
        if self.fixed_sizes:
            lines[0] += f", for size {', '.join(map(str, self.sizes.values()))} only"
        shown = [s for s in self.sites if s.role not in ("padding", "mean") or s.detail]
        names = max([4, *(len(site.name) for site in shown)])
        ops = max([2, *(len(site.op) for site in shown)])
        for site in shown:
            stride = "x".join(map(str, site.stride)) if site.stride else ""
            flops = f"{_short(site.flops)} -> {_short(site.flops_after)}" if site.flops else ""
            row = f"  {site.name:{names}}  {site.op:{ops}}  {stride:5}  {site.role:8}"
            lines.append(f"{row}  {flops:17}  {site.detail}".rstrip())
        quiet = len(self.sites) - len(shown)
        if quiet:
            lines.append(f"  and {quiet} with {self.padding} padding or exact means only")
        if self.flops:
            ratio = self.flops_after / self.flops
            total = f"{_short(self.flops)} -> {_short(self.flops_after)}"
            lines.append(f"FLOPs on the example: {total} ({ratio:.2f}x)")
        lines += [f"refused: {refusal}" for refusal in self.refusals]
        return "\n".join(lines)


def _short(number: int) -> str:
    for limit, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return str(number)


def register_rule(op: Callable[..., Any] | str | type[nn.Module], rule: str) -> None:
    """Tell the analysis what an operation of yours does to space.

    Args:
        op: A function, the name of a tensor's method, or a module class (then it is not looked
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


def analyse(model: nn.Module, example: Any, flatten: str, padding: str) -> Analysis:
    """Trace and interpret a copy of a network; raise if the example's size does not fit."""
    check_choice("convert", "flatten", flatten, FLATTEN)
    check_choice("convert", "padding", padding, PADDING)
    if not isinstance(model, nn.Module):
        raise TypeError(f"convert: model must be an nn.Module, got {type(model).__name__}.")
    if hasattr(model, PREFIX):
        raise ValueError(f"convert: the model has an attribute {PREFIX!r} already. Rename it.")
    root = _copied(model).eval()
    leaves = tuple(op for op in _CUSTOM if isinstance(op, type) and issubclass(op, nn.Module))
    traced = trace(root, example, leaves)
    own = {name: value for name, value in traced.arguments.items() if isinstance(value, Tensor)}
    if not any(value.ndim in (3, 4, 5) for value in own.values()):
        raise ValueError(
            "convert: example_input holds no map (B, C, *spatial) with 1 to 3 spatial axes, got"
            f" shapes {[tuple(value.shape) for value in own.values()]}."
        )
    return _interpret(traced, flatten, padding)


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        reason = f"the model cannot be copied: {error}"
        advice = "Use torch.nn.utils.parametrizations in place of old weight_norm hooks."
        refusal = Refusal("model", "copy.deepcopy", reason, advice)
        raise ConversionError(type(model).__name__, [refusal]) from error


def _interpret(traced: Traced, flatten: str, padding: str) -> Analysis:
    arguments, grown = traced.arguments, dict(traced.arguments)
    multiples: dict[int, int] = {}
    for _ in range(16):
        at_size = Traced(traced.root, traced.graph, grown, traced.fixed_sizes)
        try:
            seam = padding == "seam"
            counts = "canonical" if seam else flatten  # positions are counted from the seam
            keep = padding != "circular"
            lattice = Lattice(anchored=seam)
            analysis = Analysis(at_size, RULES, _CUSTOM, counts, keep, seam, lattice).run()
        except TooSmall as small:
            for axis, multiple in small.multiples.items():
                multiples[axis] = math.lcm(multiples.get(axis, 1), multiple)
            grown = {name: _grow(value, multiples) for name, value in arguments.items()}
            continue
        break
    if multiples:
        for name, value in arguments.items():
            if isinstance(value, Tensor) and value.ndim in (3, 4, 5):
                dim = value.ndim - 2
                check_multiple("convert", name, value, analysis.required_multiple(dim))
    return analysis


def _grow(value: Any, multiples: dict[int, int]) -> Any:
    """Enlarge an input to multiples."""
    if not isinstance(value, Tensor) or value.ndim not in (3, 4, 5):
        return value
    widths: list[int] = []
    for axis in reversed(range(value.ndim - 2)):
        widths += [0, -value.shape[2 + axis] % multiples.get(axis, 1)]
    return F.pad(value, widths)


def describe(analysis: Analysis, leads_on_output: Callable[[Action], bool] | None = None) -> Plan:
    """Write down what an analysis found."""
    arguments = analysis.traced.arguments
    maps = {name: value for name, value in arguments.items() if name in analysis.inputs}
    dim = max(value.ndim - 2 for value in maps.values())
    sites: list[Site | None] = []
    if analysis.seam:
        sites += [Site(name, "input", None, "seam", "begins at its seam") for name in maps]
    sites += [
        _site(analysis, node, action, leads_on_output) for node, action in analysis.actions.items()
    ]
    return Plan(
        type(analysis.traced.root).__name__,
        tuple(site for site in sites if site is not None),
        tuple(analysis.refusals),
        analysis.required_multiple(dim),
        {name: tuple(value.shape[2:]) for name, value in maps.items()},
        analysis.fixed_sizes,
        "their own" if analysis.keep else "circular",
    )


def _site(
    analysis: Analysis,
    node: fx.Node,
    action: Action,
    leads_on_output: Callable[[Action], bool] | None,
) -> Site | None:
    name = analysis.place(node) if node.op == "call_module" else analysis.site(node)
    op = getattr(node.target, "__name__", str(node.target))
    if node.op == "call_module":
        op = type(analysis.traced.root.get_submodule(str(node.target))).__name__
    if action.kind == "window":
        flops = _flops(analysis, node, action)
        stride = action.module.stride
        if action.phase is None:
            return Site(name, op, stride if max(stride) > 1 else None, "padding", "", flops, flops)
        dense = leads_on_output is not None and leads_on_output(action)
        after = flops * math.prod(stride) if dense else flops
        role = "leads" if action.phase.leads else "follows"
        return Site(name, op, stride, role, _leaders(analysis, action.phase), flops, after)
    if action.kind in ("up", "leave"):
        removed = {digit.phase for axis in action.shift for digit, _ in axis}
        undone = ", ".join(analysis.lattice.phases[index].site for index in sorted(removed))
        detail = "; ".join(
            text for text in (f"undoes {undone}" if undone else "", action.note) if text
        )
        return Site(name, op, action.factors, "up", detail)
    roles = {"origin": "origin", "replace": "mean", "call": "padding", "skip": "padding"}
    return Site(name, op, None, roles[action.kind], action.note)


def _leaders(analysis: Analysis, phase: Phase) -> str:
    digits = tuple(digit for axis in phase.digits.values() for digit in axis)
    found = {digit.phase for digit in analysis.lattice.expand(digits)}
    return ", ".join(analysis.lattice.phases[index].site for index in sorted(found))


def _flops(analysis: Analysis, node: fx.Node, action: Action) -> int:
    if not action.inputs:
        return 0
    raw = action.inputs[0]
    weight = analysis.attribute(raw) if isinstance(raw, str) else analysis.env[raw]
    result: Tensor = analysis.env[node].data
    return 2 * result.numel() * math.prod(weight.data.shape[1:])


def as_spec(spec: Sampling | str) -> Sampling:
    """Return a spec, given one or the name of a method."""
    if isinstance(spec, str):
        spec = Sampling(spec)
    if not isinstance(spec, Sampling):
        raise TypeError(f"convert: spec must be a Sampling or a method's name, got {spec!r}.")
    return spec
