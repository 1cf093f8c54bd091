"""What the nodes of a graph are."""

from __future__ import annotations

import operator

import torch
from torch import fx

from trueshift.layers.activations import EXACT

_ACTIVATIONS = {kind.__name__.lower() for kind in EXACT}


def place_of(node: fx.Node) -> str:
    """Say where a node is: the module that runs it."""
    return str(node.target) if node.op == "call_module" else node.meta.get("place") or "forward"


def label_of(node: fx.Node) -> str:
    """Name a node after its module, or after the place and the operation, without dots."""
    place = place_of(node).replace(".", "_")
    return place if node.op == "call_module" else f"{place}_{node.name}"


def dominators(graph: fx.Graph, node: fx.Node) -> list[fx.Node]:
    """List the nodes that every tensor must come through on its way from an input to a node.

    The last one comes first. Parameters and numbers (such as sizes) do not count.
    """
    above: dict[fx.Node, fx.Node | None] = {}
    order = {n: i for i, n in enumerate(graph.nodes)}
    for n in graph.nodes:
        sources: list[fx.Node | None] = [s for s in n.all_input_nodes if s in above]
        counts = n is node or n.meta.get("holds_tensors", True)
        if n.op != "placeholder" and not (sources and counts):
            continue
        while len(set(sources)) > 1:  # go up from the latest until they are one
            latest = max(sources, key=lambda s: -1 if s is None else order[s])
            sources = [above[latest] if s is latest else s for s in sources]  # type: ignore[index]
        above[n] = sources[0] if sources else None
        if n is node:
            break
    chain = []
    while (node := above.get(node)) is not None:  # type: ignore[assignment]
        chain.append(node)
    return chain


def is_activation(node: fx.Node) -> bool:
    """Whether a node calls an activation on a map, and nothing else that is computed."""
    called = node.op in ("call_function", "call_method")
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    known = called and str(name).rstrip("_") in _ACTIVATIONS
    return known and list(node.all_input_nodes) == list(node.args[:1])


def is_view(node: fx.Node) -> bool:
    """Whether a node gives a tensor another shape, not another type."""
    method = node.op == "call_method" and node.target == "view"
    return method and not node.kwargs and not isinstance(node.args[-1], torch.dtype)


def changes_something(node: fx.Node) -> bool:
    """Whether a node matters though nobody uses its result."""
    in_place = node.op == "call_method" and str(node.target).endswith("_")
    return node.op in ("placeholder", "output") or in_place or node.target is operator.setitem
