"""The order of the converted network's operations, and where phases are chosen."""

from __future__ import annotations

import graphlib
import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import fx

from trueshift.convert.grids.analysis import Action, Analysis
from trueshift.convert.errors import ConversionError, Refusal
from trueshift.convert.grids.lattice import Phase
from trueshift.convert.grids.values import values_in
from trueshift.convert.parts.windows import Convolution


@dataclass(frozen=True)
class Order:
    """Nodes in an order in which every phase is chosen before it is used.

    Args:
        nodes: The nodes of the original graph.
        ends: The last pointwise operation after each one that runs dense; where its phase is
            chosen. With the dense operation and the phase.
    """

    nodes: list[fx.Node]
    ends: dict[fx.Node, tuple[fx.Node, Phase]]


def in_order(analysis: Analysis, leads_on_output: Callable[[Action], bool], selects: bool) -> Order:
    """Keep the original order, except that followers wait for their leader."""
    nodes = list(analysis.traced.graph.nodes)
    ends: dict[fx.Node, tuple[fx.Node, Phase]] = {}
    chosen_at: dict[int, fx.Node] = {}
    used_at: dict[fx.Node, fx.Node] = {}
    for node, action in analysis.actions.items():
        if action.kind != "window" or action.phase is None or not action.phase.leads:
            continue
        end = node
        if leads_on_output(action):
            end = used_at[node] = _chain_end(node, analysis.unary, ends)
            ends[end] = (node, action.phase)
        chosen_at[action.phase.index] = end
    needs = {node: set(node.all_input_nodes) for node in nodes}
    if selects:
        for node, action in analysis.actions.items():
            user = used_at.get(node, node)
            needs[user] |= {chosen_at[i] for i in _sources(analysis, action)} - {node, user}
    return Order(_sorted(analysis, nodes, needs), ends)


def _chain_end(node: fx.Node, unary: set[fx.Node], ends: Mapping[fx.Node, object]) -> fx.Node:
    """Follow the pointwise operations after a node, up to where its phase is chosen."""
    while len(node.users) == 1:
        (user,) = node.users
        if user not in unary or user in ends:
            break
        node = user
    return node


def narrowest(analysis: Analysis, node: fx.Node) -> fx.Node:
    """Return the map of fewest channels that a map was made of position by position, or itself.

    All of them live on one grid, so a phase may be chosen from any; a learned selector costs what
    its map is wide.
    """
    env, best = analysis.env, node
    while node in analysis.unary or _is_pointwise_convolution(analysis.actions.get(node)):
        maps = [n for n in node.all_input_nodes if any(v.has_space for v in values_in(env[n]))]
        if len(maps) > 1 or env[maps[0]].kinds[2:] != env[node].kinds[2:]:
            break
        node, data = maps[0], env[maps[0]].data
        if data.is_floating_point() and data.shape[1] < env[best].data.shape[1]:
            best = node
    return best


def _is_pointwise_convolution(action: Action | None) -> bool:
    if action is None or action.phase is not None or not isinstance(action.module, Convolution):
        return False
    return not any((*action.module.left, *action.module.reach))


def _sources(analysis: Analysis, action: Action) -> set[int]:
    """Leading phases that a node needs."""
    digits = [digit for axis in action.shift for digit, _ in axis]
    digits += [digit for space in action.spaces for digit in space.digits]
    if action.phase is not None and not action.phase.leads:
        digits += [digit for axis in action.phase.digits.values() for digit in axis]
    return {digit.phase for digit in analysis.lattice.expand(tuple(digits))}


def _sorted(
    analysis: Analysis, nodes: list[fx.Node], needs: dict[fx.Node, set[fx.Node]]
) -> list[fx.Node]:
    """Sort nodes so that each comes after those it needs; of several, the earliest goes first."""
    place = {node: i for i, node in enumerate(nodes)}
    sorter = graphlib.TopologicalSorter(needs)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        reason = "a branch must follow a phase that is chosen from its own result."
        advice = "Down-sample both branches by the same strides in the same order."
        refusal = Refusal("branches", "meet", reason, advice)
        raise ConversionError(type(analysis.traced.root).__name__, [refusal]) from error
    ready: list[int] = []
    order = []
    while sorter.is_active():
        for node in sorter.get_ready():
            heapq.heappush(ready, place[node])
        order.append(nodes[heapq.heappop(ready)])
        sorter.done(order[-1])
    return order
