"""Apply an analysis: build the converted network's graph and its new parts."""

from __future__ import annotations

import copy
import functools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from trueshift.convert.grids.analysis import Action, Analysis
from trueshift.convert.parts.choices import Lead, Origin
from trueshift.convert.build.converted import PREFIX
from trueshift.convert.grids.lattice import Phase, Space
from trueshift.convert.trace.nodes import changes_something, is_activation, is_view
from trueshift.convert.build.order import in_order, narrowest
from trueshift.convert.parts.phases import Compose, FromOrigin, Unshift
from trueshift.convert.grids.recipes import Weighted, offset_of, recipe_of, steps_of, weighted
from trueshift.convert.parts.seam import FromSeam, Seam
from trueshift.convert.grids.values import BATCH, Value
from trueshift.layers.activations import Elementwise
from trueshift.layers.antialias import build_antialias
from trueshift.layers.selectors import NormSelector
from trueshift.layers.spec import Sampling

_SHAPE_METHODS = ("contiguous", "permute", "reshape", "transpose", "view", "movedim")


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
        self.images: dict[str, fx.Node] = {}
        self.seam_nodes: dict[int, fx.Node] = {}
        self.returned: dict[fx.Node, Any] = {}
        zero = self.analysis.keep and not self.analysis.seam  # phase 0 is to be seen at work
        self.samples = not self.spec.is_plain or zero  # plain strides need no phases at all
        self.selects = self.spec.method != "stride" or zero
        self.border = "circular"
        if self.analysis.keep:
            self.border, self.spec = "replicate", self.spec.replace(padding_mode="zeros")
        leaders = sum(phase.leads for phase in self.lattice.phases)
        self.specs = iter(self.spec.per_layer(leaders))
        self.order = in_order(self.analysis, self.leads_on_output, self.selects)

    def run(self) -> tuple[fx.Graph, nn.Module]:
        """Return the graph and the module of new parts."""
        inputs = [node for node in self.order.nodes if node.op == "placeholder"]
        for node in inputs:
            self.images[str(node.target)] = self.env[node] = self.graph.placeholder(
                str(node.target)
            )
        if self.analysis.seam:
            self._find_seams(inputs)
        for node in self.order.nodes:
            if node.op == "output":
                self.graph.output(fx.node.map_arg(node.args[0], self._returned))
            elif node.op != "placeholder":
                self._emit(node)
        self.graph.eliminate_dead_code(changes_something)
        for node in self.graph.nodes:
            if is_view(node):
                node.target = "reshape"  # the same for maps of any layout
        self.graph.lint()
        used = {str(node.target) for node in self.graph.nodes}
        for name in list(self.parts._modules):
            if f"{PREFIX}.{name}" not in used:
                del self.parts._modules[name]
        return self.graph, self.parts

    def _module(self, node: fx.Node) -> nn.Module | None:
        """Return the module that a node of the old or the new graph calls, if it does."""
        if node.op != "call_module":
            return None
        name = str(node.target)
        if name.startswith(f"{PREFIX}."):
            return self.parts.get_submodule(name.removeprefix(f"{PREFIX}."))
        return self.analysis.traced.root.get_submodule(name)

    def leads_on_output(self, action: Action) -> bool:
        """Whether a window operation runs dense and is sampled afterwards."""
        phase = action.phase
        if phase is None or not phase.leads or not self.samples:
            return False
        return self.select == "output" and bool(action.module.has_dense)

    # Nodes

    def _emit(self, node: fx.Node) -> None:
        action = self.analysis.actions.get(node)
        if action is None:
            new = self._activation(node) if is_activation(node) else self._copied(node)
        else:
            new = getattr(self, f"_{action.kind}")(node, action)
        if node in self.order.ends:
            new = self._sampled(node, new)
        self.env[node] = new

    def _copied(self, node: fx.Node) -> fx.Node:
        return self.graph.node_copy(node, self.env.__getitem__)

    def _activation(self, node: fx.Node) -> fx.Node:
        """Emit a steady activation for a function or a method of a model's code."""
        target: Any = node.target
        function = getattr(torch.Tensor, target) if isinstance(target, str) else target
        inplace = function.__name__.endswith("_") or bool(node.kwargs.get("inplace"))
        module = Elementwise(function, node.args[1:], dict(node.kwargs), inplace)
        return self._part(self.analysis.site(node), module, self._input(node))

    def _find_seams(self, inputs: Sequence[fx.Node]) -> None:
        """Move inputs to begin at their seam; those that move together have one."""
        together: dict[int, list[fx.Node]] = {}
        for node in inputs:
            index = self.analysis.inputs.get(str(node.target))
            if index is not None:
                together.setdefault(self.lattice.root(index), []).append(node)
        for root, nodes in together.items():
            found = self._part("seam", Seam(), *(self.env[node] for node in nodes))
            item = functools.partial(self.graph.call_function, operator.getitem)
            for i, node in enumerate(nodes):
                self.images[str(node.target)] = self.env[node] = item((found, i))
            self.seam_nodes[root] = item((found, len(nodes)))

    def _returned(self, node: fx.Node) -> Any:
        """Return what the network gives for a node: maps are moved back to their seams."""
        if not self.analysis.seam:
            return self.env[node]
        if node not in self.returned:
            self.returned[node] = self._moved_back(self.analysis.env[node], self.env[node])
        return self.returned[node]

    def _moved_back(self, value: Any, new: fx.Node) -> Any:
        if isinstance(value, list | tuple):
            items = enumerate(value)
            get = functools.partial(self.graph.call_function, operator.getitem)
            return tuple(self._moved_back(item, get((new, i))) for i, item in items)
        kinds = value.kinds if isinstance(value, Value) else ()
        spaces = {axis: kind for axis, kind in enumerate(kinds) if isinstance(kind, Space)}
        if not spaces:
            return new
        places = tuple((s.axis, s.fine, self.lattice.stride(s)) for s in spaces.values())
        offsets = self.seam_nodes[self.lattice.root(next(iter(spaces.values())).root)]
        back = FromSeam(kinds.index(BATCH), tuple(spaces), places)
        return self._part("from_seam", back, new, offsets)

    def _input(self, node: fx.Node) -> fx.Node:
        return self.env[node.all_input_nodes[0]]

    def _arguments(self, inputs: Iterable[Any]) -> list[Any]:
        def new(item: Any) -> Any:
            if isinstance(item, fx.Node):
                return self.env[item]
            return self.graph.get_attr(item) if isinstance(item, str) else item

        return [new(item) for item in inputs]

    def _window(self, node: fx.Node, action: Action) -> fx.Node:
        x, module, phase = self._input(node), action.module, action.phase
        arguments = self._arguments(action.inputs)
        name = self.analysis.site(node)
        if phase is None or not self.samples:
            return self._part(name, module, x, None, *arguments)
        if self.leads_on_output(action):
            module.dense = True
            return self._part(name, module, x, None, *arguments)
        channels = self._channels(node.all_input_nodes[0])
        if phase.leads and self.selects:
            seen = node.all_input_nodes[0]
            if self.spec.method == "lps":
                seen = narrowest(self.analysis, seen)
            lead = self._lead(phase, self._channels(seen), keep=False)
            if isinstance(lead.selector, NormSelector) and self._is_normalised(node):
                # After a layer norm all positions have one 2-norm: it cannot tell phases apart.
                lead.selector = NormSelector(1)
            images, sources = self._witness(action.spaces)
            chosen = self._part(f"{name}_phase", lead, self.env[seen], images, sources)
            self.phase_nodes[phase.index] = chosen
        if self.spec.antialias is not None:
            dense = self.analysis.env[node].data.shape[1]
            module.antialias = self._antialias(channels if module.linear else dense, module.stride)
        return self._part(name, module, x, self._phase_of(phase), *arguments)

    def _sampled(self, end: fx.Node, dense: fx.Node) -> fx.Node:
        """Choose a phase of a dense map and keep it."""
        start, phase = self.order.ends[end]
        action = self.analysis.actions[start]
        channels = self.analysis.env[end].data.shape[1]
        lead = self._lead(phase, channels, keep=True)
        images, sources = self._witness(action.spaces)
        name = f"{self.analysis.site(start)}_phase"
        both = self._part(name, lead, dense, images, sources)
        if self.selects:
            chosen = self.graph.call_function(operator.getitem, (both, 1))
            self.phase_nodes[phase.index] = chosen
        return self.graph.call_function(operator.getitem, (both, 0))

    def _lead(self, phase: Phase, channels: int, *, keep: bool) -> Lead:
        stride = steps_of(phase)
        spec = next(self.specs).replace(dim=len(stride))
        recipe, strides, _ = offset_of(self.lattice, tuple(phase.parents.values()))
        blur = self._antialias(channels, stride) if keep else None
        axes = tuple(sorted(phase.parents))
        selector = spec.selector(channels)
        return Lead(selector, stride, blur, spec.select_on, keep, recipe, strides, axes)

    def _antialias(self, channels: int, stride: tuple[int, ...]) -> nn.Module | None:
        groups = math.gcd(channels, self.spec.groups)
        return build_antialias(
            self.spec.antialias, channels, self.border, dim=len(stride), groups=groups
        )

    def _up(self, node: fx.Node, action: Action) -> fx.Node:
        name = self.analysis.site(node)
        if action.module is None:
            grown = self._copied(node)
        else:
            arguments = self._arguments(action.inputs)
            grown = self._part(name, action.module, self._input(node), *arguments)
        return self._unshift(name, grown, action.shift)

    def _unshift(self, name: str, x: fx.Node, shift: Sequence[Weighted]) -> fx.Node:
        if not self.selects or not any(shift):
            return x
        recipe, sources = recipe_of(self.lattice, shift)
        phases = [self.phase_nodes[index] for index in sources]
        return self._part(f"{name}_shift", Unshift(recipe, self.border), x, *phases)

    def _origin(self, node: fx.Node, action: Action) -> fx.Node:
        name = self.analysis.site(node)
        chooses = self.spec.method != "stride" and not self.analysis.seam
        norm = self.spec.norm if chooses else None
        recipe, strides, _ = offset_of(self.lattice, action.spaces)
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
        grown = self._copied(node)
        phase = self.origin_nodes[action.origin]
        moved = self._part(f"{name}_origin", FromOrigin(action.factors), grown, phase)
        return self._unshift(name, moved, action.shift)

    def _replace(self, node: fx.Node, action: Action) -> fx.Node:
        return self._part(self.analysis.site(node), action.module, self._input(node))

    def _call(self, node: fx.Node, action: Action) -> fx.Node:
        return self.graph.call_function(action.module, (self._input(node), *action.inputs))

    def _skip(self, node: fx.Node, action: Action) -> fx.Node:
        return self._input(node)

    def _channels(self, node: fx.Node) -> int:
        return int(self.analysis.env[node].data.shape[1])

    def _is_normalised(self, node: fx.Node) -> bool:
        """Whether a layer norm made the input of a node, up to its shape."""
        source = node.all_input_nodes[0]
        while source.op == "call_method" and str(source.target) in _SHAPE_METHODS:
            source = source.all_input_nodes[0]
        return isinstance(self._module(source), nn.LayerNorm) or source.target is F.layer_norm

    # Phases

    def _phase_of(self, phase: Phase) -> fx.Node | None:
        """Return the phase that an operation samples at: its leader's, or several combined."""
        if not self.selects:
            return None
        if phase.leads:
            return self.phase_nodes[phase.index]
        steps = steps_of(phase)
        made_of = [phase.digits.get(axis, ()) for axis in sorted(phase.parents)]
        shift = [weighted(self.lattice.expand(digits)) for digits in made_of]
        recipe, sources = recipe_of(self.lattice, shift)
        nodes = [self.phase_nodes[index] for index in sources]
        if len(nodes) == 1 and steps_of(self.lattice.phases[sources[0]]) == steps:
            return nodes[0]
        name = f"{phase.site}_phase"
        return self._part(name, Compose(recipe, steps), *nodes)

    def _witness(self, spaces: Sequence[Space]) -> tuple[list[fx.Node], list[fx.Node]]:
        """Images and phases from which ties at a map are broken."""
        root = self.lattice.root(spaces[0].root)
        names = [n for n, index in self.analysis.inputs.items() if self.lattice.root(index) == root]
        _, _, sources = offset_of(self.lattice, spaces)
        phases = [self.phase_nodes[index] for index in sources] if self.selects else []
        return [self.images[name] for name in names], phases

    # Parts

    def _part(self, name: str, module: nn.Module, *args: Any) -> fx.Node:
        unique, count = name, 1
        while hasattr(self.parts, unique):
            unique, count = f"{name}_{count}", count + 1
        self.parts.add_module(unique, copy.copy(module))
        return self.graph.call_module(f"{PREFIX}.{unique}", args)
