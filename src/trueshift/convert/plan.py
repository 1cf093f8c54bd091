"""What converting a network does, place by place: printable, editable, and all that is done."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from trueshift._validate import Mode
from trueshift.convert.errors import Refusal
from trueshift.convert.parts.part import AsMap, Part
from trueshift.convert.parts.phases import Recipe
from trueshift.convert.trace.trace import Traced
from trueshift.layers.spec import Sampling

Padding = str | tuple[str, ...]  # of all axes, or one per axis


def borders(padding: Padding, own: str) -> Mode:
    """Return the mode of new borders: ``own`` along the axes whose padding is the original's."""
    if isinstance(padding, str):
        return "circular" if padding == "circular" else own
    return tuple("circular" if axis == "circular" else own for axis in padding)


class Result(str):
    """Name of a node whose result is meant; other names are those of attributes."""


@dataclass(frozen=True)
class Selection:
    """How a leader chooses its phase, or an origin its place.

    Args:
        spec: Gives the selector.
        reads: Node whose map the selector reads.
        channels: Channels of that map.
        samples: Whether that map itself is filtered and sampled; if not, only the phase is used.
        view: How the result of the node becomes a map.
        images: Inputs that break ties; none if nothing is compared.
        offset: Offset of the map on each axis of the input.
        strides: Its stride on each axis of the input.
        axes: The axes of the input that the map has.
    """

    spec: Sampling
    reads: str
    channels: int
    samples: bool
    view: AsMap
    images: tuple[str, ...]
    offset: Recipe
    strides: tuple[int, ...]
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """One place that conversion changes.

    Args:
        name: The module, or the module and the operation in its code.
        op: The operation.
        role: ``"leads"`` (chooses a phase), ``"follows"`` (takes that of others), ``"up"`` (undoes
            phases), ``"padding"`` or ``"mean"`` (is only replaced), ``"bias"`` (adds what depends
            on distances only), ``"mask"`` (adds nothing), ``"origin"`` (its input is moved to an
            origin), ``"counted"`` (so is its result) or ``"seam"`` (an input that is moved to begin
            at its seam).
        node: The node of the graph.
        stride: Its sampling factors; empty if it does not sample.
        detail: Whom it follows, or what changes.
        flops: Multiplications and additions of the original operation.
        flops_after: The same after conversion, with a learned selector.
        part: The module that takes its place. Without one, the operation of an ``"up"`` or an
            ``"origin"`` stays and any other is left out.
        tensors: Further arguments of the part: weights by name, or results of other nodes.
        on: The node whose result the part changes before the operation, which stays; if empty, the
            part takes the place of the operation.
        view: How what the part takes becomes a map.
        number: Number of the phase or origin that is chosen here, or of the origin that an ``"up"``
            leaves; -1 if there is none.
        selection: How it is chosen; ``None`` if it is not.
        recipe: The phases that are followed or undone, and how they combine.
        antialias: The filter before sampling.
    """

    name: str
    op: str
    role: str
    node: str
    stride: tuple[int, ...] = ()
    detail: str = ""
    flops: int = 0
    flops_after: int = 0
    part: Part | None = None
    tensors: tuple[Any, ...] = ()
    on: str = ""
    view: AsMap | None = None
    number: int = -1
    selection: Selection | None = None
    recipe: Recipe | None = None
    antialias: Part | None = None

    @property
    def label(self) -> str:
        """The name without dots, as modules have it."""
        return self.name.replace(".", "_")

    @property
    def sampled_at(self) -> str:
        """The node whose map is sampled, if the operation runs at every position; else empty."""
        later = self.role == "leads" and self.selection is not None and self.selection.samples
        return self.selection.reads if later and self.selection else ""


@dataclass(frozen=True)
class Axis:
    """A spatial axis of an output, or of a part of it.

    Args:
        dim: Which axis of it.
        group: The inputs that it moves with.
        axis: Which axis of theirs.
        fine: How many times finer it is.
        stride: How many positions of the input lie between two of it.
    """

    dim: int
    group: int
    axis: int
    fine: int
    stride: int


Within = tuple[int, int, tuple[int, ...]]  # an axis, which piece of it, and the pieces' sizes


@dataclass(frozen=True)
class Piece:
    """A part of an output that moves as one: a map, or the positions between other tokens.

    Args:
        axes: Its spatial axes; none if it does not move.
        within: Where it is; ``None`` if it is all of the output.
        unfolded: Sizes of axes that are one axis of the output, by that axis.
    """

    axes: tuple[Axis, ...]
    within: Within | None = None
    unfolded: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def of(self, output: Tensor) -> Tensor:
        """Return the piece, with all of its axes."""
        if self.within is not None:
            dim, index, sizes = self.within
            output = output.split(sizes, dim)[index]
        for dim, sizes in self.unfolded:  # the last axis first
            output = output.unflatten(dim, sizes)
        return output


@dataclass(frozen=True)
class WayBack:
    """How a result is moved back to where its picture is.

    Args:
        source: ``"seam"`` or ``"origin"``.
        number: Which one.
        part: The module that moves it, given the offset.
        view: How the result becomes a map.
        within: Which piece of the result is moved; ``None`` if it is all of it.
    """

    source: str
    number: int
    part: Part
    view: AsMap | None = None
    within: Within | None = None


@dataclass(frozen=True)
class Plan:
    """What converting a network does; ``print`` it, ``edit`` it, ``rewrite`` it.

    Args:
        network: Name of the network's class.
        sites: The places that change, in the order of the network.
        refusals: Places that cannot be converted; the network converts if there are none.
        multiples: Of what number each axis of the inputs must be a multiple.
        sizes: Spatial sizes of the example, by input.
        fixed_sizes: Whether the converted network serves the example's size only.
        padding: ``"circular"``, ``"seam"`` or ``"keep"``, or one per axis.
        flops: Multiplications and additions of the whole network on the example.
        flops_after: The same after conversion, with learned selectors, without filters.
        inputs: All arguments; those that are maps with the number of their group. The inputs of a
            group move together.
        outputs: What every tensor that the network returns is made of.
        returns: How results are moved back from a seam or an origin, by node.
        traced: The network as a graph; ``None`` in the plan that a converted network keeps.
    """

    network: str
    sites: tuple[Site, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    multiples: tuple[int, ...] = (1,)
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    fixed_sizes: bool = False
    padding: Padding = "circular"
    flops: int = 0
    flops_after: int = 0
    inputs: dict[str, int | None] = field(default_factory=dict)
    outputs: tuple[tuple[Piece, ...], ...] = ()
    returns: dict[str, Any] = field(default_factory=dict)
    traced: Traced | None = field(default=None, repr=False, compare=False)

    @property
    def required_multiple(self) -> int | tuple[int, ...]:
        """Of what number the sizes of inputs must be multiples (one per axis if they differ)."""
        return self.multiples[0] if len(set(self.multiples)) == 1 else self.multiples

    @property
    def wraps(self) -> tuple[bool, ...]:
        """Along which axes of the inputs the converted network is exact under circular shifts."""
        if isinstance(self.padding, str):
            return (self.padding != "keep",) * len(self.multiples)
        return tuple(axis == "circular" for axis in self.padding)

    @property
    def converts(self) -> bool:
        """Whether nothing was refused."""
        return not self.refusals

    def edit(self, name: str, **changes: Any) -> Plan:
        """Return a plan in which the sites of a name differ.

        Args:
            name: Name of the sites.
            changes: Fields of :class:`Site`, or of its :class:`Selection`, to replace.

        Examples:
            >>> import torch, trueshift as ts
            >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2, 1))
            >>> plan = ts.plan(net, torch.randn(1, 3, 8, 8)).edit("0", spec=ts.Sampling("lps"))
            >>> plan.sites[0].selection.spec.method
            'lps'
        """
        if name not in [site.name for site in self.sites]:
            names = ", ".join(site.name for site in self.sites)
            raise ValueError(f"Plan.edit: no site is called {name!r}. Choose from: {names}.")
        sites = [_edited(site, changes) if site.name == name else site for site in self.sites]
        return replace(self, sites=tuple(sites))

    def __str__(self) -> str:
        head = f"{self.network}: {len(self.sites)} sites, inputs in multiples of"
        lines = [f"{head} {self.required_multiple}"]
        if self.fixed_sizes:
            lines[0] += f", for size {', '.join(map(str, self.sizes.values()))} only"
        if not isinstance(self.padding, str):
            axes = ", ".join(str(2 + axis) for axis, yes in enumerate(self.wraps) if yes)
            lines[0] += f", exact for shifts along axis {axes} only"
        shown = [s for s in self.sites if s.role not in ("padding", "mean") or s.detail]
        names = max([4, *(len(site.name) for site in shown)])
        ops = max([2, *(len(site.op) for site in shown)])
        for site in shown:
            stride = "x".join(map(str, site.stride)) if site.stride else ""
            flops = f"{_short(site.flops)} -> {_short(site.flops_after)}"
            flops = flops if site.flops_after else ""
            row = f"  {site.name:{names}}  {site.op:{ops}}  {stride:5}  {site.role:8}"
            lines.append(f"{row}  {flops:17}  {site.detail}".rstrip())
        quiet = len(self.sites) - len(shown)
        if quiet:
            padding = "circular" if self.padding == "circular" else "their own"
            padding = padding if isinstance(self.padding, str) else "/".join(self.padding)
            lines.append(f"  and {quiet} with {padding} padding or exact means only")
        if self.flops:
            ratio = self.flops_after / self.flops
            total = f"{_short(self.flops)} -> {_short(self.flops_after)}"
            lines.append(f"FLOPs on the example: {total} ({ratio:.2f}x)")
        lines += [f"refused: {refusal}" for refusal in self.refusals]
        return "\n".join(lines)


def _edited(site: Site, changes: dict[str, Any]) -> Site:
    inner = {key: value for key, value in changes.items() if key in Selection.__annotations__}
    outer = {key: value for key, value in changes.items() if key not in inner}
    if not inner:
        return replace(site, **outer)
    if site.selection is None:
        raise ValueError(
            f"Plan.edit: {site.name} chooses nothing, so it has no {', '.join(inner)}."
        )
    return replace(site, selection=replace(site.selection, **inner), **outer)


def _short(number: int) -> str:
    for limit, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return str(number)
