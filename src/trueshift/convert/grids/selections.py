"""Where and how phases are chosen: what a selector reads, and what breaks its ties."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import fx, nn
from torch.nn import functional as F

from trueshift.convert.grids.analysis import Analysis
from trueshift.convert.grids.lattice import Space
from trueshift.convert.grids.recipes import offset_of
from trueshift.convert.grids.values import as_map, values_in
from trueshift.convert.parts.part import AsMap
from trueshift.convert.parts.windows import Convolution
from trueshift.convert.plan import Selection
from trueshift.layers.selectors import METHODS
from trueshift.layers.spec import Sampling

_MOVES = {"contiguous", "movedim", "pad", "permute", "reshape", "roll", "transpose", "view"}


@dataclass
class Selections:
    """Decides what the selectors of a network read.

    Args:
        analysis: The grids of the network's maps.
    """

    analysis: Analysis
    ends: set[fx.Node] = field(default_factory=set)

    def from_output(self, spec: Sampling, node: fx.Node, spaces: Sequence[Space]) -> Selection:
        """Choose from the result of the pointwise operations after a dense one, and sample it."""
        while len(node.users) == 1:
            (user,) = node.users
            counted = node in self.analysis.moved
            if user not in self.analysis.unary or user in self.ends or counted:
                break
            node = user
        self.ends.add(node)
        return self.select(spec, node, spaces, samples=True)

    def from_input(self, spec: Sampling, node: fx.Node, spaces: Sequence[Space]) -> Selection:
        """Choose from the input of a strided operation, or from a narrower map on its grid."""
        action = self.analysis.actions[node]
        reads = action.on or node.all_input_nodes[0]
        if _learns(spec):
            reads = self._narrowest(reads)
        return self.select(spec, reads, spaces, samples=False)

    def select(
        self, spec: Sampling, reads: fx.Node, spaces: Sequence[Space], *, samples: bool
    ) -> Selection:
        """Describe a choice from the map of a node; the inputs break its ties."""
        lattice, inputs = self.analysis.lattice, self.analysis.inputs
        root = lattice.root(spaces[0].root)
        images = [name for name, index in inputs.items() if lattice.root(index) == root]
        offset, strides = offset_of(lattice, spaces)
        view = self._view(reads)
        if not _learns(spec) and self._is_normalised(reads):
            # After a layer norm all positions have the same 2-norm.
            spec = spec.replace(norm=1)
        return Selection(
            spec=spec,
            reads=reads.name,
            channels=self.analysis.env[reads].data.shape[view.dims[1]],
            samples=samples,
            view=view,
            images=tuple(images) if spec.method != "stride" else (),
            offset=offset,
            strides=strides,
            axes=tuple(space.axis for space in spaces),
        )

    def _view(self, node: fx.Node) -> AsMap:
        """Say how the result of a node becomes a map."""
        counted = self.analysis.moved.get(node)
        if counted is not None and counted.view is not None:
            return counted.view
        return as_map(self.analysis.env[node])[1]

    def flops(self, selection: Selection) -> int:
        """Count the first convolution of a learned selector; the second one collapses."""
        spec = selection.spec
        if not _learns(spec):
            return 0
        image = self.analysis.traced.arguments[selection.images[0]]
        strides = selection.strides
        positions = math.prod(image.shape[2 + axis] // strides[axis] for axis in selection.axes)
        weights = selection.channels * spec.hidden_channels(selection.channels) * 3**spec.dim
        return 2 * int(image.shape[0]) * positions * weights

    def _narrowest(self, node: fx.Node) -> fx.Node:
        """Return the map of fewest channels that determines a map position by position, or itself.

        All of them live on one grid, so a phase may be chosen from any; a learned selector costs
        what its map is wide.
        """
        env, best = self.analysis.env, node
        while node in self.analysis.unary or self._is_pointwise_convolution(node):
            maps = [n for n in node.all_input_nodes if any(v.has_space for v in values_in(env[n]))]
            if len(maps) > 1 or env[maps[0]].kinds[2:] != env[node].kinds[2:]:
                break
            node, data = maps[0], env[maps[0]].data
            if data.is_floating_point() and data.shape[1] < env[best].data.shape[1]:
                best = node
        return best

    def _is_pointwise_convolution(self, node: fx.Node) -> bool:
        action = self.analysis.actions.get(node)
        if action is None or action.phase or not action.part or action.part.make is not Convolution:
            return False
        return not any((*action.part.options["left"], *action.part.options["reach"]))

    def _is_normalised(self, node: fx.Node) -> bool:
        """Whether a node is the result of a layer norm, up to shape and place."""
        while node.op.startswith("call_") and _name(node) in _MOVES:
            node = node.all_input_nodes[0]
        module = self.analysis.traced.module(node)
        return isinstance(module, nn.LayerNorm) or node.target is F.layer_norm


def _name(node: fx.Node) -> str:
    return getattr(node.target, "__name__", str(node.target))


def _learns(spec: Sampling) -> bool:
    return METHODS[spec.method].learns
