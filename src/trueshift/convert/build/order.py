"""The order of the converted network's operations: phases are chosen before they are used."""

from __future__ import annotations

import graphlib
import heapq

from torch import fx

from trueshift.convert.errors import ConversionError, Refusal
from trueshift.convert.plan import Plan, Site


def in_order(plan: Plan, graph: fx.Graph) -> list[fx.Node]:
    """Keep the original order, except that followers wait for their leader."""
    nodes = list(graph.nodes)
    needs = {node.name: {source.name for source in node.all_input_nodes} for node in nodes}
    chosen_at = {
        site.number: site.sampled_at or site.node
        for site in plan.sites
        if site.role == "leads" and site.selection is not None
    }
    for site in plan.sites:
        user = site.sampled_at or site.node
        waits_for = {chosen_at[number] for number in _phases(site)}
        needs[user] |= waits_for - {site.node, user}
    place = {node.name: i for i, node in enumerate(nodes)}
    sorter = graphlib.TopologicalSorter(needs)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        reason = "a branch must follow a phase that is chosen from its own result."
        advice = "Down-sample both branches by the same strides in the same order."
        raise ConversionError(
            plan.network, [Refusal("branches", "meet", reason, advice)]
        ) from error
    ready: list[int] = []
    order = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heapq.heappush(ready, place[name])
        order.append(nodes[heapq.heappop(ready)])  # of several, the earliest goes first
        sorter.done(order[-1].name)
    return order


def _phases(site: Site) -> set[int]:
    """Return the phases that a site uses."""
    phases = set(site.recipe.phases if site.recipe else ())
    selection = site.selection
    return phases | set(selection.offset.phases if selection and selection.images else ())
