"""From an analysis to a plan: for every place, what is done there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, fx

from trueshift.convert.errors import Refused
from trueshift.convert.grids.analysis import Action, Analysis
from trueshift.convert.grids.lattice import Phase, Space
from trueshift.convert.grids.recipes import followed, recipe_of
from trueshift.convert.grids.selections import Selections
from trueshift.convert.grids.values import (
    BATCH,
    Frame,
    Joined,
    Kind,
    Merged,
    Value,
    as_map,
    from_frame,
    parts_of,
    values_in,
)
from trueshift.convert.parts.part import Part, part
from trueshift.convert.parts.phases import FromOrigin
from trueshift.convert.parts.seam import FromSeam
from trueshift.convert.plan import (
    Axis,
    Padding,
    Piece,
    Plan,
    Result,
    Selection,
    Site,
    WayBack,
    Within,
    borders,
)
from trueshift.convert.trace.nodes import label_of
from trueshift.layers.filters import build_filter
from trueshift.layers.spec import Sampling


def plan_of(analysis: Analysis, spec: Sampling, padding: Padding) -> Plan:
    """Decide what is done at every place of a network."""
    traced, lattice = analysis.traced, analysis.lattice
    maps = {name: traced.arguments[name] for name in analysis.inputs}
    seams = [
        Site(str(node.target), "input", "seam", node.name, detail="begins at its seam")
        for node in traced.graph.nodes
        if padding == "seam" and node.op == "placeholder" and node.target in maps
    ]
    groups = {name: lattice.root(index) for name, index in analysis.inputs.items()}
    nodes = {node.name: node for node in traced.output.all_input_nodes}
    values = {name: analysis.env[node] for name, node in nodes.items()}
    return Plan(
        type(traced.root).__name__,
        (*seams, *Planner(analysis, spec, padding).sites()),
        multiples=analysis.required_multiple(max(x.ndim - 2 for x in maps.values())),
        sizes={name: tuple(x.shape[2:]) for name, x in maps.items()},
        fixed_sizes=analysis.fixed_sizes,
        padding=padding,
        inputs={name: groups.get(name) for name in traced.arguments},
        outputs=tuple(_pieces(analysis, v) for v in values_in(analysis.env[traced.output])),
        returns={name: _way_back(analysis, v, bool(seams)) for name, v in values.items()},
        traced=traced,
    )


@dataclass(frozen=True)
class _Region:
    """A piece of an output, and the origin that all of its positions are counted from, if any."""

    value: Value
    within: Within | None = None
    origin: int | None = None


def _regions(analysis: Analysis, value: Value) -> list[_Region]:
    """List the pieces of an output: tokens of different kinds follow each other."""
    dims = [dim for dim, kind in enumerate(value.kinds) if isinstance(kind, Joined)]
    if len(dims) != 1:
        return [_Region(value, None, _origin_of(analysis, value))]
    (dim,) = dims
    kind: Any = value.kinds[dim]
    regions = []
    for index, data in enumerate(value.data.split(kind.sizes, dim)):
        own = Value(data, (*value.kinds[:dim], kind.kinds[index], *value.kinds[dim + 1 :]))
        regions.append(_Region(own, (dim, index, kind.sizes), _origin_of(analysis, own)))
    several = sum(region.origin is not None for region in regions) > 1
    return [replace(region, origin=None) for region in regions] if several else regions


def _pieces(analysis: Analysis, value: Value) -> tuple[Piece, ...]:
    return tuple(_piece(analysis, region) for region in _regions(analysis, value))


def _piece(analysis: Analysis, region: _Region) -> Piece:
    kinds, unfolded = list(region.value.kinds), []
    for dim in reversed(range(len(kinds))):
        kind = kinds[dim]
        if isinstance(kind, Merged):
            unfolded.append((dim, kind.sizes))
            kinds[dim : dim + 1] = kind.kinds
    return Piece(_axes(analysis, kinds, region.origin), region.within, tuple(unfolded))


def _axes(analysis: Analysis, kinds: Sequence[Kind], origin: int | None) -> tuple[Axis, ...]:
    lattice, axes = analysis.lattice, []
    for dim, kind in enumerate(kinds):
        frame = kind if isinstance(kind, Frame) and origin is not None else None
        space = kind if frame is None else frame.space
        if isinstance(space, Space):
            step = lattice.stride(space) * (1 if frame is None else frame.stride)
            axes.append(Axis(dim, lattice.root(space.root), space.axis, space.fine, step))
    return tuple(axes)


def _way_back(analysis: Analysis, value: Any, from_seam: bool) -> WayBack | list[Any] | None:
    """Say how a result is moved back from the seam or from an origin, if it must be."""
    if isinstance(value, list | tuple):
        return [_way_back(analysis, item, from_seam) for item in value]
    if not isinstance(value, Value):
        return None
    axes = _axes(analysis, value.kinds, None)
    if from_seam and axes:
        places = tuple((axis.axis, axis.fine, axis.stride) for axis in axes)
        dims = tuple(axis.dim for axis in axes)
        back = part(FromSeam, batch=value.kinds.index(BATCH), axes=dims, places=places)
        return WayBack("seam", axes[0].group, back)
    for region in _regions(analysis, value):
        if region.origin is not None:
            strides = tuple(frame.stride for frame in _frames(region.value))
            view = as_map(from_frame(region.value))[1]
            back = part(FromOrigin, factors=(1,) * len(strides), strides=strides)
            return WayBack("origin", region.origin, back, view, region.within)
    return None


def _frames(value: Value) -> list[Frame]:
    parts = [part for kind in value.kinds for part in parts_of(kind)]
    return [part for part in parts if isinstance(part, Frame)]


def _origin_of(analysis: Analysis, value: Value) -> int | None:
    """Return the origin that a whole map is counted from; ``None`` if there is none."""
    frames = _frames(value)
    try:
        spaces, view = as_map(from_frame(value))
    except Refused:
        return None
    sizes = view.sizes or tuple(value.data.shape[axis] for axis in view.dims[2:])
    if len(frames) != len(spaces):
        return None
    whole = tuple(n * frame.stride for n, frame in zip(sizes, frames, strict=True))
    return frames[0].origin if whole == tuple(map(analysis.size_of, spaces)) else None


@dataclass
class Planner:
    """Turns the actions of an analysis into sites.

    Args:
        analysis: What each node becomes.
        spec: How to sample.
        padding: ``"circular"``, ``"seam"`` or ``"keep"``, or one per axis.
    """

    analysis: Analysis
    spec: Sampling
    padding: Padding

    def __post_init__(self) -> None:
        shows_phase_0 = self.padding == "keep"
        self.samples = not self.spec.is_plain or shows_phase_0  # plain strides need no phases
        self.selects = self.spec.method != "stride" or shows_phase_0
        self.border = borders(self.padding, "replicate")
        if self.padding != "circular":
            modes = borders(self.padding, "zeros")
            dim = self.spec.dim if isinstance(modes, str) else len(modes)
            self.spec = self.spec.replace(padding_mode=modes, dim=dim)
        self.selections = Selections(self.analysis)
        leaders = [phase.index for phase in self.analysis.lattice.phases if phase.leads]
        self.specs = dict(zip(leaders, self.spec.per_layer(len(leaders)), strict=True))

    def sites(self) -> list[Site]:
        """List the sites in the order of the network."""
        actions, moved = self.analysis.actions, self.analysis.moved
        return [
            self._site(node, table[node])
            for node in self.analysis.traced.graph.nodes
            for table in (actions, moved)
            if node in table
        ]

    def _site(self, node: fx.Node, action: Action) -> Site:
        module = self.analysis.traced.module(node)
        op = getattr(node.target, "__name__", str(node.target))
        about: dict[str, Any] = {
            "name": label_of(node) if module is None else str(node.target),
            "op": op if module is None else type(module).__name__,
            "node": node.name,
            "part": action.part,
            "tensors": tuple(
                Result(tensor.name) if isinstance(tensor, fx.Node) else tensor
                for tensor in action.tensors
            ),
            "on": action.on.name if action.on is not None else "",
            "view": action.view,
        }
        if action.kind == "window":
            return self._window(node, action, about)
        if action.kind in ("up", "leave"):
            return self._up(action, about)
        if action.kind == "origin":
            moved = node in self.analysis.moved
            reads = node if moved else node.all_input_nodes[0]
            about |= {"number": action.origin, "selection": self._origin(reads, action)}
            return Site(role="counted" if moved else "origin", detail=action.note, **about)
        if action.kind in ("bias", "mask"):
            return self._bias(action, about)
        role = "mean" if action.kind == "replace" and not action.note else "padding"
        return Site(role=role, detail=action.note, **about)

    def _window(self, node: fx.Node, action: Action, about: dict[str, Any]) -> Site:
        phase, new = action.phase, _part_of(action)
        stride = new.options["stride"]
        flops = after = self._flops(node, action)
        if phase is None:
            sampled = stride if max(stride) > 1 else ()
            return Site(role="padding", stride=sampled, flops=flops, flops_after=flops, **about)
        selection = self._selection(node, action, phase) if phase.leads else None
        if selection is not None:
            after += self.selections.flops(selection)
            if selection.samples:
                after += flops * (math.prod(stride) - 1)
                about["part"] = part(new.make, **new.options, dense=True)
        return Site(
            role="leads" if phase.leads else "follows",
            stride=stride,
            detail=self._names(() if phase.leads else followed(self._lattice, phase).phases),
            flops=flops,
            flops_after=after,
            number=phase.index if phase.leads else -1,
            selection=selection,
            recipe=followed(self._lattice, phase) if self.selects and not phase.leads else None,
            antialias=self._antialias(node, action, selection) if self.samples else None,
            **about,
        )

    def _up(self, action: Action, about: dict[str, Any]) -> Site:
        shifts = self.selects and any(action.shift)
        undone = recipe_of(self._lattice, action.shift).phases
        details = [f"undoes {self._names(undone)}"] if undone else []
        return Site(
            role="up",
            stride=action.factors,
            detail="; ".join([*details, *([action.note] if action.note else [])]),
            number=action.origin,
            recipe=recipe_of(self._lattice, action.shift) if shifts else None,
            **about,
        )

    def _bias(self, action: Action, about: dict[str, Any]) -> Site:
        shifts = self.selects and any(action.shift)
        recipe = recipe_of(self._lattice, action.shift) if shifts else None
        if recipe is not None and action.part is not None:
            about["part"] = part(action.part.make, **action.part.options, recipe=recipe)
        return Site(role=action.kind, detail=action.note, recipe=recipe, **about)

    def _origin(self, reads: fx.Node, action: Action) -> Selection | None:
        if self.spec.method == "stride" or self.padding in ("seam", "keep"):
            return None  # positions are counted from the corner
        # By norm in training too: a random origin would shuffle what belongs to positions.
        spec = self.spec.replace(method="aps", train_rule="gumbel", dim=len(action.spaces))
        return self.selections.select(spec, reads, action.spaces, samples=True)

    def _selection(self, node: fx.Node, action: Action, phase: Phase) -> Selection | None:
        spec = self.specs[phase.index].replace(dim=len(action.spaces))
        if self.samples and spec.select_from == "output" and _part_of(action).make.has_dense:
            return self.selections.from_output(spec, node, action.spaces)
        return self.selections.from_input(spec, node, action.spaces) if self.selects else None

    def _antialias(self, node: fx.Node, action: Action, selection: Selection | None) -> Part | None:
        if self.spec.antialias is None or action.on is not None:  # windows sample nothing
            return None
        filtered = node.all_input_nodes[0] if _part_of(action).make.linear else node
        axis = action.view.dims[1] if action.view is not None else 1
        channels = int(self.analysis.env[filtered].data.shape[axis])
        if selection is not None and selection.samples:
            channels = selection.channels
        return part(
            build_filter,
            name=self.spec.antialias,
            channels=channels,
            padding_mode=self.border,
            dim=len(action.spaces),
            groups=math.gcd(channels, self.spec.groups),
        )

    @property
    def _lattice(self) -> Any:
        return self.analysis.lattice

    def _names(self, phases: Sequence[int]) -> str:
        return ", ".join(self._lattice.phases[number].site for number in phases)

    def _flops(self, node: fx.Node, action: Action) -> int:
        if not action.tensors:
            return 0
        raw = action.tensors[0]
        weight = self.analysis.attribute(raw) if isinstance(raw, str) else self.analysis.env[raw]
        result: Tensor = self.analysis.env[node].data
        return 2 * result.numel() * math.prod(weight.data.shape[1:])


def _part_of(action: Action) -> Part:
    if action.part is None:
        raise RuntimeError("plan: a window operation without a part.")
    return action.part
