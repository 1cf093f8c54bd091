"""Do what a plan says: build the converted network's graph and its new parts."""

from __future__ import annotations

import copy
import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx, nn

from trueshift.convert.build.converted import PREFIX, Converted, own_constants
from trueshift.convert.build.order import in_order
from trueshift.convert.errors import ConversionError, Refusal
from trueshift.convert.parts.choices import Lead, ToOrigin
from trueshift.convert.parts.part import AsMap
from trueshift.convert.parts.phases import Compose, FromOrigin, Recipe, Unshift
from trueshift.convert.parts.seam import Seam
from trueshift.convert.plan import Plan, Result, Selection, Site, borders
from trueshift.convert.trace.nodes import changes_something, is_activation, is_view, label_of
from trueshift.convert.trace.trace import Traced
from trueshift.layers.activations import Elementwise, make_exact
from trueshift.layers.resample import PolyphaseDown
from trueshift.layers.selectors import FixedSelector


@torch.inference_mode(False)  # the new network must be able to train
def rewrite(plan: Plan) -> Converted:
    """Build the network that a plan describes; it does only what the plan says.

    What is no site of the plan stays as it is, but for activations: each becomes one whose rounding
    does not depend on the position. The weights are copies of what the model has now.

    Args:
        plan: What :func:`trueshift.plan` returned, edited or not.

    Raises:
        ConversionError: If the plan has refusals, or the model cannot be copied.
        ValueError: If the plan is that of a converted network, which holds no original.

    Examples:
        >>> import trueshift as ts
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        >>> plan = ts.plan(net, torch.randn(1, 3, 8, 8)).edit("0", spec=ts.Sampling("lps"))
        >>> type(rewrite(plan).sampling.get_submodule("0_phase").down.selector).__name__
        'ConvSelector'
    """
    if plan.refusals:
        raise ConversionError(plan.network, plan.refusals)
    if plan.traced is None:
        raise ValueError(
            "rewrite: this is the plan of a converted network, without the original. Pass the"
            " result of trueshift.plan(model, example_input)."
        )
    graph, parts = Rewriter(plan, plan.traced).run()
    root = _copied(plan.traced.root)
    make_exact(root)
    for name, value in plan.traced.constants.items():
        root.__dict__[name] = value.clone()
    first = next((p for p in root.parameters() if p.is_floating_point()), None)
    if first is not None:
        parts.to(device=first.device, dtype=first.dtype)
    root.add_module(PREFIX, parts.train(root.training))
    own_constants(root, graph)
    return Converted(root, graph, plan)


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        reason = f"the model cannot be copied: {error}"
        advice = "Use torch.nn.utils.parametrizations in place of old weight_norm hooks."
        refusal = Refusal("model", "copy.deepcopy", reason, advice)
        raise ConversionError(type(model).__name__, [refusal]) from error


class Rewriter:
    """Builds the new graph.

    Args:
        plan: What is done at every site.
        traced: The network.
    """

    def __init__(self, plan: Plan, traced: Traced) -> None:
        self.plan, self.traced = plan, traced
        self.sites = {s.node: s for s in plan.sites if s.role not in ("seam", "counted")}
        self.counted = {site.node: site for site in plan.sites if site.role == "counted"}
        self.sampled = {site.sampled_at: site for site in plan.sites if site.sampled_at}
        self.parts, self.graph = nn.Module(), fx.Graph()
        self.env: dict[str, fx.Node] = {}  # new nodes, by the names of the old ones
        self.phases: dict[int, fx.Node] = {}
        self.origins: dict[int, fx.Node] = {}
        self.seams: dict[int, fx.Node] = {}
        self.returned: dict[str, Any] = {}
        self.border = borders(plan.padding, "replicate")
        self.item = functools.partial(self.graph.call_function, operator.getitem)

    def run(self) -> tuple[fx.Graph, nn.Module]:
        """Return the graph and the module of new parts."""
        order = in_order(self.plan, self.traced.graph)
        for node in order:
            if node.op == "placeholder":
                self.env[node.name] = self.graph.placeholder(str(node.target))
        self.images = {str(n.target): self.env[n.name] for n in order if n.op == "placeholder"}
        if self.plan.padding == "seam":
            self._find_seams([node for node in order if node.op == "placeholder"])
        for node in order:
            if node.op == "output":
                self.graph.output(fx.node.map_arg(node.args[0], self._returned))
            else:
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

    # Sites

    def _emit(self, node: fx.Node) -> None:
        site = self.sites.get(node.name)
        if node.op == "placeholder":
            new = self.env[node.name]
        elif site is None:
            new = self._activation(node) if is_activation(node) else self._copied(node)
        elif site.role == "up":
            new = self._up(node, site)
        elif site.role == "origin":
            new = self._origin(node, site)
        elif site.role == "mask":
            new = self._without(node, site)
        elif site.role == "bias":
            new = self._bias(node, site)
        else:
            new = self._replaced(node, site)
        if node.name in self.sampled:
            new = self._sampled(self.sampled[node.name], new)
        self.env[node.name] = new
        if node.name in self.counted:
            self.env[node.name] = self._moved(self.counted[node.name])

    def _replaced(self, node: fx.Node, site: Site) -> fx.Node:
        """Emit the part of a leader, of a follower or of what does not sample."""
        x = self._as_map(self.env[site.on] if site.on else self._input(node), site.view)
        if site.part is None:
            return x
        module, phase = site.part.build(), None
        if not site.sampled_at:
            if site.antialias is not None:
                module.down = self._down(site, FixedSelector(0))
            if site.selection is not None:
                phase = self.phases[site.number] = self._lead(site)
            elif site.recipe is not None:
                phase = self._followed(site, site.recipe)
        tensors = self._tensors(site)
        arguments = (x, phase, *tensors) if tensors or phase is not None else (x,)
        new = self._from_map(self._part(site.label, module, *arguments), site.view)
        return self._with(node, site.on, new) if site.on else new

    def _bias(self, node: fx.Node, site: Site) -> fx.Node:
        """Emit an operation that adds what depends on distances only."""
        phases = [self.phases[number] for number in site.recipe.phases] if site.recipe else []
        module = site.part.build()  # type: ignore[union-attr]
        return self._with(node, site.on, self._part(site.label, module, self.env[site.on], *phases))

    def _without(self, node: fx.Node, site: Site) -> fx.Node:
        """Emit an operation without its mask."""
        rest = [n for n in node.all_input_nodes if n.name != site.on]
        return self.env[rest[0].name] if len(rest) == 1 else self._with(node, site.on, None)

    def _sampled(self, site: Site, dense: fx.Node) -> fx.Node:
        """Choose a phase of a dense map and keep it."""
        self.env[site.sampled_at] = dense
        selection: Any = site.selection
        both = self._lead(site)
        self.phases[site.number] = self.item((both, 1))
        return self._from_map(self.item((both, 0)), selection.view)

    def _followed(self, site: Site, recipe: Recipe) -> fx.Node:
        """Return the phase of the leader, or several combined."""
        phases = [self.phases[number] for number in recipe.phases]
        if recipe.strides == (site.stride,):
            return phases[0]
        return self._part(f"{site.label}_phase", Compose(recipe, site.stride), *phases)

    def _up(self, node: fx.Node, site: Site) -> fx.Node:
        if site.part is None:
            new = self._copied(node)
        else:
            new = self._part(site.label, site.part.build(), self._input(node), *self._tensors(site))
        if site.number in self.origins:
            back = FromOrigin(site.stride)
            new = self._part(f"{site.label}_origin", back, new, self.origins[site.number])
        if site.recipe is None:
            return new
        phases = [self.phases[number] for number in site.recipe.phases]
        unshift, new = Unshift(site.recipe, self.border), self._as_map(new, site.view)
        return self._from_map(self._part(f"{site.label}_shift", unshift, new, *phases), site.view)

    def _origin(self, node: fx.Node, site: Site) -> fx.Node:
        if site.selection is None:
            return self._copied(node)
        return self._with(node, site.selection.reads, self._moved(site))

    def _moved(self, site: Site) -> fx.Node:
        """Return a map moved to its origin."""
        selection = site.selection
        if selection is None:
            return self.env[site.node]
        selector = selection.spec.selector(selection.channels)
        chooser = ToOrigin(selector, selection.offset, selection.strides, selection.axes)
        both = self._choice(f"{site.label}_origin", chooser, selection)
        self.origins[site.number] = self.item((both, 1))
        return self._from_map(self.item((both, 0)), selection.view)

    # Choices

    def _lead(self, site: Site) -> fx.Node:
        """Emit the choice of a phase, and of the component if the map is sampled there."""
        selection: Any = site.selection
        selector = selection.spec.selector(selection.channels)
        down = self._down(site, selector, filters=selection.samples)
        where = (selection.offset, selection.strides, selection.axes)
        lead = Lead(down, selection.samples, *where)
        return self._choice(f"{site.label}_phase", lead, selection)

    def _down(self, site: Site, selector: nn.Module, *, filters: bool = True) -> PolyphaseDown:
        blur = site.antialias.build() if filters and site.antialias is not None else None
        mode = borders(self.plan.padding, "zeros")
        filtered = site.selection.spec.score_filtered if site.selection else True
        return PolyphaseDown(
            selector, site.stride, blur, score_filtered=filtered, padding_mode=mode
        )

    def _choice(self, name: str, chooser: nn.Module, selection: Selection) -> fx.Node:
        images = [self.images[image] for image in selection.images]
        phases = [self.phases[number] for number in selection.offset.phases] if images else []
        x = self._as_map(self.env[selection.reads], selection.view)
        return self._part(name, chooser, x, images, phases)

    # Seams

    def _find_seams(self, inputs: Sequence[fx.Node]) -> None:
        """Move inputs to begin at their seam; those of a group share one."""
        groups: dict[int, list[fx.Node]] = {}
        for node in inputs:
            group = self.plan.inputs[str(node.target)]
            if group is not None:
                groups.setdefault(group, []).append(node)
        for group, nodes in groups.items():
            moved = self._part("seam", Seam(), *(self.env[node.name] for node in nodes))
            for i, node in enumerate(nodes):
                self.images[str(node.target)] = self.env[node.name] = self.item((moved, i))
            self.seams[group] = self.item((moved, len(nodes)))

    def _returned(self, node: fx.Node) -> Any:
        """Return what the network gives for a node: maps are moved back from their seams."""
        if node.name not in self.returned:
            way_back = self.plan.returns.get(node.name)
            self.returned[node.name] = self._moved_back(way_back, self.env[node.name])
        return self.returned[node.name]

    def _moved_back(self, way_back: Any, new: fx.Node) -> Any:
        if way_back is None:
            return new
        if isinstance(way_back, list):
            return tuple(self._moved_back(w, self.item((new, i))) for i, w in enumerate(way_back))
        offsets = self.seams if way_back.source == "seam" else self.origins
        if way_back.number not in offsets:  # counted from the corner
            return new
        if way_back.within is not None:
            dim, index, sizes = way_back.within
            pieces = self.graph.call_method("split", (new, list(sizes), dim))
            items = [self.item((pieces, i)) for i in range(len(sizes))]
            whole = dataclasses.replace(way_back, within=None)
            items[index] = self._moved_back(whole, items[index])
            return self.graph.call_function(torch.cat, (items, dim))
        x, module = self._as_map(new, way_back.view), way_back.part.build()
        back = self._part(f"from_{way_back.source}", module, x, offsets[way_back.number])
        return self._from_map(back, way_back.view)

    # Nodes

    def _copied(self, node: fx.Node) -> fx.Node:
        if node.op == "call_method" and node.target == "float":  # which float64 survives
            x, dtype = self._input(node), cast(Any, torch.float32)
            weights = self.traced.root.named_parameters()
            first = [name for name, weight in weights if weight.is_floating_point()][:1]
            for tensor in (x, *map(self.graph.get_attr, first)):
                own = self.graph.call_function(getattr, (tensor, "dtype"))
                dtype = self.graph.call_function(torch.promote_types, (own, dtype))
            return self.graph.call_method("to", (x, dtype))
        return self.graph.node_copy(node, lambda n: self.env[n.name])

    def _with(self, node: fx.Node, name: str, new: Any) -> fx.Node:
        """Copy a node with something else for the result of another."""
        return self.graph.node_copy(node, lambda n: new if n.name == name else self.env[n.name])

    def _as_map(self, x: fx.Node, view: AsMap | None) -> fx.Node:
        """Bring a tensor to ``(B, C, *spatial)``."""
        if view is not None and list(view.dims) != sorted(view.dims):
            x = self.graph.call_method("permute", (x, view.dims))
        sizes = view.sizes if view is not None else ()
        return self.graph.call_method("unflatten", (x, 2, sizes)) if sizes else x

    def _from_map(self, x: fx.Node, view: AsMap | None) -> fx.Node:
        """Undo :meth:`_as_map`."""
        if view is not None and view.sizes:
            x = self.graph.call_method("flatten", (x, 2))
        if view is None or list(view.dims) == sorted(view.dims):
            return x
        return self.graph.call_method("permute", (x, view.back))

    def _activation(self, node: fx.Node) -> fx.Node:
        """Emit an activation with position-independent rounding for a function or a method."""
        target: Any = node.target
        function = getattr(torch.Tensor, target) if isinstance(target, str) else target
        inplace = function.__name__.endswith("_") or bool(node.kwargs.get("inplace"))
        module = Elementwise(function, node.args[1:], dict(node.kwargs), inplace)
        return self._part(label_of(node), module, self._input(node))

    def _input(self, node: fx.Node) -> fx.Node:
        return self.env[node.all_input_nodes[0].name]

    def _tensors(self, site: Site) -> list[Any]:
        def new(tensor: Any) -> Any:
            if isinstance(tensor, Result):
                return self.env[tensor]
            return self.graph.get_attr(tensor) if isinstance(tensor, str) else tensor

        return [new(tensor) for tensor in site.tensors]

    def _part(self, name: str, module: nn.Module, *args: Any) -> fx.Node:
        unique, count = name, 1
        while hasattr(self.parts, unique):
            unique, count = f"{name}_{count}", count + 1
        self.parts.add_module(unique, module)
        return self.graph.call_module(f"{PREFIX}.{unique}", args)
