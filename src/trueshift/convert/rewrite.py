"""Apply an analysis: build the converted network's graph and its new parts."""

from __future__ import annotations

import copy
import heapq
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx, nn
from torch.nn import functional as F

from trueshift.convert.analysis import Action, Analysis
from trueshift.convert.converted import PREFIX
from trueshift.convert.errors import ConversionError, Refusal
from trueshift.convert.lattice import Digit, Phase, Space
from trueshift.convert.phases import Compose, FromOrigin, Lead, Origin, Recipe, Unshift
from trueshift.layers.antialias import build_antialias
from trueshift.layers.selectors import NormSelector
from trueshift.layers.spec import Sampling

_SHAPE_METHODS = ("contiguous", "permute", "reshape", "transpose", "view", "movedim")
Weighted = Sequence[tuple[Digit, int]]


@dataclass
class Rewriter:
    """Builds the new graph.

    Args:
        analysis: What each node becomes.
        spec: How to sample.
        select: ``"output"`` or ``"input"``.
    """

    analysis: Analysis
    spec: Sampling
    select: str

    def __post_init__(self) -> None:
        self.lattice = self.analysis.lattice
        self.parts = nn.Module()
        self.graph = fx.Graph()
        self.env: dict[fx.Node, fx.Node] = {}
        self.phase_nodes: dict[int, fx.Node] = {}
        self.origin_nodes: dict[int, fx.Node] = {}
        self.ends: dict[fx.Node, tuple[fx.Node, Phase]] = {}
        plain = self.spec.is_plain and not self.analysis.keep
        self.samples = not plain  # plain strides need no phases at all
        self.selects = self.spec.method != "stride" or self.analysis.keep
        leaders = sum(phase.leads for phase in self.lattice.phases)
        self.specs = self.spec.per_layer(leaders)
        self.number = 0

    def run(self) -> tuple[fx.Graph, nn.Module]:
        """Return the graph and the module of new parts."""
        for node in self._ordered():
            if node.op == "output":
                self.graph.output(fx.node.map_arg(node.args[0], self.env.__getitem__))
            else:
                self._emit(node)
        self.graph.eliminate_dead_code(_changes_something)
        self.graph.lint()
        used = {node.target.split(".")[1] for node in self.graph.nodes if self._is_part(node)}
        for name in [name for name in self.parts._modules if name not in used]:
            del self.parts._modules[name]
        return self.graph, self.parts

    def leads_on_output(self, action: Action) -> bool:
        """Whether a window operation runs dense and is sampled afterwards."""
        phase = action.phase
        if phase is None or not phase.leads or not self.samples:
            return False
        return self.select == "output" and bool(action.module.has_dense)

    def chain_end(self, node: fx.Node) -> fx.Node:
        """Follow the pointwise operations after a node, up to where its phase is chosen."""
        while len(node.users) == 1:
            (user,) = node.users
            if user not in self.analysis.unary or user in self.ends:
                break
            node = user
        return node

    # Order

    def _ordered(self) -> list[fx.Node]:
        """Nodes in the original order, except that followers wait for their leader."""
        nodes = list(self.analysis.traced.graph.nodes)
        place = {node: i for i, node in enumerate(nodes)}
        provider: dict[int, fx.Node] = {}
        for node, action in self.analysis.actions.items():
            if action.kind == "window" and action.phase is not None and action.phase.leads:
                end = self.chain_end(node) if self.leads_on_output(action) else node
                provider[action.phase.index] = end
                if self.leads_on_output(action):
                    self.ends[end] = (node, action.phase)
        needs = {node: set(node.all_input_nodes) for node in nodes}
        if self.selects:
            for node, action in self.analysis.actions.items():
                target = next((e for e, (n, _) in self.ends.items() if n is node), node)
                sources = {provider[index] for index in self._sources(action)}
                needs[target] |= sources - {node, target}
        waiting = {node: len(needs[node]) for node in nodes}
        users: dict[fx.Node, list[fx.Node]] = {node: [] for node in nodes}
        for node, inputs in needs.items():
            for source in inputs:
                users[source].append(node)
        ready = [place[node] for node in nodes if not waiting[node]]
        heapq.heapify(ready)
        order = []
        while ready:
            node = nodes[heapq.heappop(ready)]
            order.append(node)
            for user in users[node]:
                waiting[user] -= 1
                if not waiting[user]:
                    heapq.heappush(ready, place[user])
        if len(order) < len(nodes):
            raise ConversionError(
                type(self.analysis.traced.root).__name__,
                [
                    Refusal(
                        "branches",
                        "meet",
                        "a branch must follow a phase that is chosen from its own result.",
                        "Down-sample both branches by the same strides in the same order.",
                    )
                ],
            )
        return order

    def _sources(self, action: Action) -> set[int]:
        """Leading phases that a node needs."""
        digits = [digit for axis in action.shift for digit, _ in axis]
        digits += [digit for space in action.spaces for digit in space.digits]
        if action.phase is not None and not action.phase.leads:
            digits += [digit for axis in action.phase.digits.values() for digit in axis]
        return {digit.phase for digit in self.lattice.expand(tuple(digits))}

    # Nodes

    def _emit(self, node: fx.Node) -> None:
        action = self.analysis.actions.get(node)
        if action is None:
            if node.op == "placeholder":
                new = self.graph.placeholder(str(node.target))
            else:
                new = self.graph.node_copy(node, self.env.__getitem__)
        else:
            new = getattr(self, f"_{action.kind}")(node, action)
        if node in self.ends:
            new = self._sampled(node, new)
        self.env[node] = new

    def _input(self, node: fx.Node) -> fx.Node:
        return self.env[node.all_input_nodes[0]]

    def _arguments(self, inputs: Iterable[Any]) -> list[Any]:
        found: list[Any] = []
        for item in inputs:
            if isinstance(item, fx.Node):
                found.append(self.env[item])
            else:
                found.append(self.graph.get_attr(item) if isinstance(item, str) else item)
        return found

    def _window(self, node: fx.Node, action: Action) -> fx.Node:
        x, module, phase = self._input(node), action.module, action.phase
        arguments = self._arguments(action.inputs)
        name = self.analysis.site(node)
        if phase is None or not self.samples:
            return self._part(name, module, x, None, *arguments)
        if self.leads_on_output(action):
            module.dense = True
            return self._part(name, module, x, None, *arguments)
        channels = self.analysis.env[node.all_input_nodes[0]].data.shape[1]
        if phase.leads and self.selects:
            lead = self._lead(phase, channels, antialias=False, keep=False)
            if isinstance(lead.selector, NormSelector) and self._is_normalised(node):
                # After a layer norm all positions have one 2-norm: it cannot tell phases apart.
                lead.selector = NormSelector(1)
            images, sources = self._witness(action.spaces)
            chosen = self._part(f"{name}_phase", lead, x, images, sources)
            self.phase_nodes[phase.index] = chosen
        if self.spec.antialias is not None:
            dense = self.analysis.env[node].data.shape[1]
            module.antialias = self._antialias(channels if module.linear else dense, module.stride)
        return self._part(name, module, x, self._phase_of(phase), *arguments)

    def _sampled(self, end: fx.Node, dense: fx.Node) -> fx.Node:
        """Choose a phase of a dense map and keep it."""
        start, phase = self.ends[end]
        action = self.analysis.actions[start]
        channels = self.analysis.env[end].data.shape[1]
        lead = self._lead(phase, channels, antialias=True, keep=True)
        images, sources = self._witness(action.spaces)
        name = f"{self.analysis.site(start)}_phase"
        both = self._part(name, lead, dense, images, sources)
        if self.selects:
            chosen = self.graph.call_function(operator.getitem, (both, 1))
            self.phase_nodes[phase.index] = chosen
        return self.graph.call_function(operator.getitem, (both, 0))

    def _lead(self, phase: Phase, channels: int, *, antialias: bool, keep: bool) -> Lead:
        stride = _steps(phase)
        spec = self.specs[self.number].replace(dim=len(stride))
        self.number += 1
        space = next(iter(phase.parents.values()))
        recipe, strides, _ = self._offset(tuple(phase.parents.values()), space.root)
        blur = self._antialias(channels, stride) if antialias else None
        axes = tuple(sorted(phase.parents))
        selector = spec.selector(channels)
        return Lead(selector, stride, blur, spec.select_on, keep, recipe, strides, axes)

    def _antialias(self, channels: int, stride: tuple[int, ...]) -> nn.Module | None:
        groups = math.gcd(channels, self.spec.groups)
        return build_antialias(
            self.spec.antialias, channels, "circular", dim=len(stride), groups=groups
        )

    def _up(self, node: fx.Node, action: Action) -> fx.Node:
        name = self.analysis.site(node)
        if action.module is None:
            grown = self.graph.node_copy(node, self.env.__getitem__)
        else:
            arguments = self._arguments(action.inputs)
            grown = self._part(name, action.module, self._input(node), *arguments)
        return self._unshift(name, grown, action.shift)

    def _unshift(self, name: str, x: fx.Node, shift: Sequence[Weighted]) -> fx.Node:
        if not self.selects or not any(shift):
            return x
        recipe, sources = self._recipe(shift)
        phases = [self.phase_nodes[index] for index in sources]
        return self._part(f"{name}_shift", Unshift(recipe), x, *phases)

    def _origin(self, node: fx.Node, action: Action) -> fx.Node:
        name = self.analysis.site(node)
        norm = self.spec.norm if self.spec.method != "stride" else None
        root = action.spaces[0].root
        recipe, strides, _ = self._offset(action.spaces, root)
        images, sources = self._witness(action.spaces)
        source = node.all_input_nodes[0]
        both = self._part(
            f"{name}_origin", Origin(norm, recipe, strides), self.env[source], images, sources
        )
        moved = self.graph.call_function(operator.getitem, (both, 0))
        self.origin_nodes[action.origin] = self.graph.call_function(operator.getitem, (both, 1))
        return self.graph.node_copy(node, lambda n: moved if n is source else self.env[n])

    def _leave(self, node: fx.Node, action: Action) -> fx.Node:
        name = self.analysis.site(node)
        grown = self.graph.node_copy(node, self.env.__getitem__)
        phase = self.origin_nodes[action.origin]
        moved = self._part(f"{name}_origin", FromOrigin(action.factors), grown, phase)
        return self._unshift(name, moved, action.shift)

    def _replace(self, node: fx.Node, action: Action) -> fx.Node:
        return self._part(self.analysis.site(node), action.module, self._input(node))

    def _call(self, node: fx.Node, action: Action) -> fx.Node:
        return self.graph.call_function(action.module, (self._input(node), *action.inputs))

    def _skip(self, node: fx.Node, action: Action) -> fx.Node:
        return self._input(node)

    def _is_normalised(self, node: fx.Node) -> bool:
        """Whether a layer norm made the input of a node, up to its shape."""
        source = node.all_input_nodes[0]
        while source.op == "call_method" and str(source.target) in _SHAPE_METHODS:
            source = source.all_input_nodes[0]
        if source.op == "call_module":
            module = self.analysis.traced.root.get_submodule(str(source.target))
            return isinstance(module, nn.LayerNorm)
        return source.target is F.layer_norm

    # Phases

    def _phase_of(self, phase: Phase) -> fx.Node | None:
        """Return the phase that an operation samples at: its leader's, or several combined."""
        if not self.selects:
            return None
        if phase.leads:
            return self.phase_nodes[phase.index]
        steps = _steps(phase)
        shift: list[Weighted] = []
        for axis in sorted(phase.parents):
            shift.append(_weighted(self.lattice.expand(phase.digits.get(axis, ()))))
        recipe, sources = self._recipe(shift)
        nodes = [self.phase_nodes[index] for index in sources]
        if len(nodes) == 1 and _steps(self.lattice.phases[sources[0]]) == steps:
            return nodes[0]
        name = f"{phase.site}_phase"
        return self._part(name, Compose(recipe, steps), *nodes)

    def _witness(self, spaces: Sequence[Space]) -> tuple[list[fx.Node], list[fx.Node]]:
        """Images and phases from which ties at a map are broken."""
        root = self.lattice.root(spaces[0].root)
        names = [n for n, index in self.analysis.inputs.items() if self.lattice.root(index) == root]
        images = [node for node in self.graph.nodes if node.op == "placeholder"]
        _, _, sources = self._offset(spaces, spaces[0].root)
        phases = [self.phase_nodes[index] for index in sources] if self.selects else []
        return [node for node in images if node.target in names], phases

    def _offset(
        self, spaces: Sequence[Space], root: int
    ) -> tuple[Recipe, tuple[int, ...], list[int]]:
        """Return recipe, strides and phases of the offset of a map, on each axis of its input."""
        dim = len(self.lattice.sizes[root])
        by_axis = {space.axis: self.lattice.expand(space.digits) for space in spaces}
        recipe, sources = self._recipe([_weighted(by_axis.get(axis, ())) for axis in range(dim)])
        strides = [1] * dim
        for space in spaces:
            strides[space.axis] = self.lattice.stride(space)
        return recipe, tuple(strides), sources

    def _recipe(self, axes: Sequence[Weighted]) -> tuple[Recipe, list[int]]:
        sources = sorted({digit.phase for axis in axes for digit, _ in axis})
        terms = []
        for axis in axes:
            own = []
            for digit, weight in axis:
                order = sorted(self.lattice.phases[digit.phase].parents)
                place = order.index(digit.axis)
                number = sources.index(digit.phase)
                own.append((number, place, digit.div, digit.base, weight))
            terms.append(tuple(own))
        strides = tuple(_steps(self.lattice.phases[index]) for index in sources)
        return (tuple(terms), strides), sources

    # Parts

    def _part(self, name: str, module: nn.Module, *args: Any) -> fx.Node:
        unique, count = name, 1
        while hasattr(self.parts, unique):
            unique, count = f"{name}_{count}", count + 1
        self.parts.add_module(unique, copy.copy(module))
        return self.graph.call_module(f"{PREFIX}.{unique}", args)

    def _is_part(self, node: fx.Node) -> bool:
        return node.op == "call_module" and str(node.target).startswith(f"{PREFIX}.")


def _changes_something(node: fx.Node) -> bool:
    """Whether a node matters though nobody uses its result."""
    in_place = node.op == "call_method" and str(node.target).endswith("_")
    return node.op in ("placeholder", "output") or in_place or node.target is operator.setitem


def _steps(phase: Phase) -> tuple[int, ...]:
    return tuple(phase.steps.get(axis, 1) for axis in sorted(phase.parents))


def _weighted(digits: Sequence[Digit]) -> list[tuple[Digit, int]]:
    weighted, weight = [], 1
    for digit in digits:
        weighted.append((digit, weight))
        weight *= digit.base
    return weighted
