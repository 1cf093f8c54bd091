"""Abstract interpretation of a traced network: which tensor lives on which grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from trueshift.convert.errors import Flattened, Refusal, Refused
from trueshift.convert.grids.lattice import Digit, Lattice, Phase, Space
from trueshift.convert.grids.values import (
    BATCH,
    OTHER,
    Frame,
    Kind,
    Merged,
    Value,
    as_map,
    data_of,
    is_counted,
    plain,
    spaces_of,
    values_in,
)
from trueshift.convert.parts.part import AsMap, Part
from trueshift.convert.parts.windows import Axes
from trueshift.convert.trace.calls import Call, read_call
from trueshift.convert.trace.nodes import dominators, place_of
from trueshift.convert.trace.trace import Traced
from trueshift.convert.trace.trees import leaves, map_leaves

Rule = Callable[["Analysis", Call], Any]

_SOME_WRAP = (
    "it distinguishes positions, and only some axes wrap.",
    "Use global pooling, or pass padding='circular' or 'seam'.",
)
COUNT = (
    " Or pass positions='canonical': positions are then counted from an origin that the content"
    " chooses."
)


class _Unknown:
    """The value of anything after a refused operation; it raises no further complaints."""


UNKNOWN = _Unknown()


class TooSmall(Exception):
    """The example's size is not a multiple of a stride.

    Carries the multiple known so far, the operation, and the last map that may have any size.
    """

    def __init__(self, multiples: dict[int, int]) -> None:
        super().__init__()
        self.multiples = multiples
        self.operation = ("", "")
        self.map_before: fx.Node | None = None


class NeedsOrigin(Exception):
    """An operation tells positions apart; carries the map before it that all of its input is."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__()
        self.node = node


@dataclass
class Action:
    """What becomes of one node.

    Args:
        kind: ``"window"``, ``"up"``, ``"replace"``, ``"skip"``, ``"origin"`` or ``"leave"``.
        part: The module that takes its place; ``None`` keeps the operation.
        tensors: Further arguments of the module: nodes or names of attributes.
        on: The input that the module changes before the operation, which stays; ``None``: the
            module takes the place of the operation.
        view: How the module's input becomes a map; ``None`` if it is one.
        phase: The phase that a window operation samples at.
        spaces: Spatial axes of the operation's input.
        shift: For every axis, the digits that an up-sampling undoes, with weights.
        origin: Which origin is chosen or left.
        factors: By how much an operation that leaves an origin enlarges the map.
        note: What the plan should say.
    """

    kind: str
    part: Part | None = None
    tensors: tuple[Any, ...] = ()
    on: fx.Node | None = None
    view: AsMap | None = None
    phase: Phase | None = None
    spaces: tuple[Space, ...] = ()
    shift: tuple[tuple[tuple[Digit, int], ...], ...] = ()
    origin: int = -1
    factors: tuple[int, ...] = ()
    note: str = ""


@dataclass
class Analysis:
    """The interpreter: walks the graph once and fills ``actions`` and ``refusals``.

    Args:
        traced: The network.
        rules: What each operation does to grids, by name.
        custom: Rules of the user, by function, method name or module class.
        flatten: ``"refuse"`` or ``"canonical"``.
        positions: ``"refuse"`` or ``"canonical"``.
        own_padding: Whether the original padding stays, along all axes or for each of the inputs'.
    """

    traced: Traced
    rules: dict[str, Rule]
    custom: dict[Any, str]
    flatten: str = "refuse"
    positions: str = "refuse"
    own_padding: Axes = False
    lattice: Lattice = field(default_factory=Lattice)
    counted: frozenset[str] = frozenset()
    env: dict[fx.Node, Any] = field(default_factory=dict)
    actions: dict[fx.Node, Action] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    unary: set[fx.Node] = field(default_factory=set)
    inputs: dict[str, int] = field(default_factory=dict)
    origins: list[fx.Node] = field(default_factory=list)
    moved: dict[fx.Node, Action] = field(default_factory=dict)
    windows: dict[Any, list[Space]] = field(default_factory=dict)
    fixed_sizes: bool = False

    def run(self) -> Analysis:
        """Interpret every node."""
        self.fixed_sizes = self.traced.fixed_sizes
        with torch.no_grad():
            for node in self.traced.graph.nodes:
                self.env[node] = self._visit(node)
                if node.name in self.counted and _is_map(self.env[node]):
                    self.env[node] = self._counted(node, self.env[node])
            try:
                self.lattice.settle()
            except Refused as refused:
                self.refusals.append(Refusal("branches", "meet", refused.reason, refused.advice))
        return self

    def _visit(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._input(node)
        if node.op == "get_attr":
            return self.attribute(str(node.target))
        args, kwargs = self.look(node.args), self.look(node.kwargs)
        if node.op == "output":
            return args[0]
        if any(leaf is UNKNOWN for leaf in leaves((args, kwargs))):
            return UNKNOWN
        module = self.traced.module(node)
        call = read_call(node, module, args, kwargs, self.attribute)
        try:
            return self._apply(call, module, args, kwargs)
        except TooSmall as small:
            small.operation = (place_of(node), _shown(node, module))
            small.map_before = self._map_before(node)
            raise
        except Refused as error:
            values = values_in((args, kwargs))
            if self.positions == "canonical" and all(map(is_counted, values)):
                return self.wrap(self.execute(call), values)  # as it is
            refused = error
        except Exception as error:
            why = f"{type(error).__name__}: {error}".rstrip(".")
            fails = f"it fails at the converted network's sizes, to which padding adds none: {why}."
            refused = Refused(fails, "Pass an example of the size that the network is made for.")
        self._look_for_origin(node, refused)
        what = (place_of(node), _shown(node, module))
        self.refusals.append(Refusal(*what, refused.reason, refused.advice))
        return UNKNOWN

    def _apply(self, call: Call, module: nn.Module | None, args: Any, kwargs: Any) -> Any:
        custom = self._custom_rule(call.node, module)
        if custom is not None:
            return self.rules[custom](self, call)
        values = values_in((args, kwargs))
        spaced = [value for value in values if value.has_space]
        if call.name in ALWAYS or spaced:
            rule = self.rules.get(call.name)
            if rule is None and _same_in_eval(module) and len(values) == 1:
                rule = self.rules["pointwise"]
            if rule is None and not any(value.spatial for value in spaced):
                return self.wrap(self.execute(call), values)
            if rule is None:
                raise Refused(
                    f"no rule says what {_shown(call.node, module)} does to grids.",
                    "If it treats all positions the same, say so with"
                    " trueshift.convert.register_rule(op, 'equivariant'); see its docstring.",
                )
            return rule(self, call)
        return self.wrap(self.execute(call), values)

    def _custom_rule(self, node: fx.Node, module: nn.Module | None) -> str | None:
        if module is None:
            return self.custom.get(node.target)
        return next((self.custom[t] for t in type(module).__mro__ if t in self.custom), None)

    # Reading and running nodes

    def look(self, tree: Any) -> Any:
        """Replace nodes by their values."""
        return map_leaves(lambda leaf: self.env[leaf] if isinstance(leaf, fx.Node) else leaf, tree)

    def attribute(self, name: str) -> Any:
        """Return a parameter or buffer of the network."""
        value = self.traced.attribute(name)
        if not isinstance(value, Tensor):
            return value
        return plain(value.detach(), fixed=not isinstance(value, nn.Parameter))

    def execute(self, call: Call) -> Any:
        """Run the original operation on the data of its values."""
        node = call.node
        args, kwargs = data_of(self.look(node.args)), data_of(self.look(node.kwargs))
        module = self.traced.module(node)
        if module is not None:
            return module(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def wrap(self, result: Any, values: Sequence[Value]) -> Any:
        """Turn tensors of a result without space into values."""
        fixed = all(value.fixed for value in values)
        if isinstance(result, Tensor):
            kinds: list[Kind] = [OTHER] * result.ndim
            size = result.shape[:1]
            if any(v.kinds[:1] == (BATCH,) and v.data.shape[:1] == size for v in values):
                kinds[0] = BATCH
            return Value(result, tuple(kinds), fixed)
        if isinstance(result, tuple) and type(result) is not torch.Size:
            return tuple(self.wrap(item, values) for item in result)
        return [self.wrap(item, values) for item in result] if isinstance(result, list) else result

    def _input(self, node: fx.Node) -> Any:
        data = self.traced.arguments[str(node.target)]
        if not isinstance(data, Tensor):
            return data
        data = data.clone()  # the model may change it in place
        if data.ndim not in (3, 4, 5):
            return Value(data, (BATCH, *[OTHER] * (data.ndim - 1)) if data.ndim else ())
        self.inputs[str(node.target)] = len(self.lattice.sizes)
        spaces = self.lattice.add_root(tuple(data.shape[2:]))
        return Value(data, (BATCH, OTHER, *spaces))

    # Origins

    def _look_for_origin(self, node: fx.Node, refused: Refused) -> None:
        """Raise ``NeedsOrigin`` if positions may be distinguished and there is a map before."""
        flattened = isinstance(refused, Flattened)
        if "canonical" not in (self.flatten if flattened else self.positions, self.positions):
            if not flattened and self.own_padding is False and self._map_before(node) is not None:
                refused.advice += COUNT
            return
        if not isinstance(self.own_padding, bool):
            refused.reason, refused.advice = _SOME_WRAP
            return
        place = self._map_before(node)
        if place is not None:
            raise NeedsOrigin(place)

    def _map_before(self, node: fx.Node) -> fx.Node | None:
        """Return the last map that everything comes through on its way to the result.

        If there is none, the last one on the way to a node.
        """
        before = dominators(self.traced.graph, node)
        always = set(dominators(self.traced.graph, self.traced.output))
        maps = [n for n in before if n.name not in self.counted and _is_map(self.env.get(n))]
        return next((n for n in maps if n in always), maps[0] if maps else None)

    def new_origin(self, node: fx.Node) -> int:
        """Number an origin."""
        if not isinstance(self.own_padding, bool):
            raise Refused(*_SOME_WRAP)
        self.origins.append(node)
        return len(self.origins) - 1

    def _counted(self, node: fx.Node, value: Value) -> Value:
        """Count the positions of a node's map from an origin, from here on."""
        spaces, view = as_map(value)
        index, self.fixed_sizes = self.new_origin(node), True
        note = "counted from the corner" if self.own_padding else "origin chosen by contents"
        self.moved[node] = Action("origin", view=view, spaces=spaces, origin=index, note=note)

        def framed(kind: Kind) -> Kind:
            if isinstance(kind, Merged):
                return Merged(tuple(map(framed, kind.kinds)), kind.sizes)
            return Frame(kind, index) if isinstance(kind, Space) else kind

        return Value(value.data, tuple(map(framed, value.kinds)))

    # Borders

    def keeps(self, value: Value) -> Axes:
        """Tell along which spatial axes of a map ``(B, C, *spatial)`` the original padding stays.

        A single answer if that is the same for all axes.
        """
        if isinstance(self.own_padding, bool):
            return self.own_padding
        if len(value.kinds) - 2 != len(self.own_padding):
            raise Refused(
                "it works on some axes of the input only, and they differ in padding.",
                "Pass one padding for all axes.",
            )
        return self.own_padding

    # Sizes

    def size_of(self, space: Space) -> int:
        """Length of an axis in the converted network."""
        total = self.lattice.sizes[space.root][space.axis] * space.fine
        return total // self.lattice.stride(space)

    def check_divisible(self, spaces: Sequence[Space], strides: Sequence[int]) -> None:
        """Stop if a stride does not divide an axis, telling the multiple needed so far."""
        bad = {
            space.axis: self.lattice.stride(space) * step
            for space, step in zip(spaces, strides, strict=True)
            if self.size_of(space) % step
        }
        if bad:
            raise TooSmall(bad)

    def required_multiple(self, dim: int) -> tuple[int, ...]:
        """Of what number each axis of the inputs must be a multiple."""
        multiple = [1] * dim
        for value in values_in(list(self.env.values())):
            for space in (space for kind in value.kinds for space in spaces_of(kind)):
                if space.axis < dim:
                    stride = self.lattice.stride(space)
                    multiple[space.axis] = math.lcm(multiple[space.axis], stride)
        return tuple(multiple)


ALWAYS = {
    *("conv", "interpolate", "upsample", "getitem", "setitem", "getattr", "dropout"),
    *("zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "expand", "expand_as"),
}


def _is_map(value: Any) -> bool:
    try:
        return isinstance(value, Value) and bool(as_map(value))
    except Refused:
        return False


def _same_in_eval(module: nn.Module | None) -> bool:
    """Tell whether a module without parts does nothing in eval mode, as drop-path layers do."""
    if module is None or any(True for _ in module.children()):
        return False
    probe = torch.arange(1.0, 17.0).view(2, 2, 2, 2)
    try:
        return bool(torch.equal(module(probe), probe))
    except Exception:
        return False


def _shown(node: fx.Node, module: nn.Module | None) -> str:
    name = getattr(node.target, "__name__", str(node.target))
    name = name if module is None else type(module).__name__
    line = node.meta.get("line")
    return f"{name}, {line}" if line and module is None else name
