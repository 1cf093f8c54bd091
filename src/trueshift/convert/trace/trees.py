"""Nested lists, tuples, dicts and slices, as the arguments of a call are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def leaves(tree: Any) -> Iterator[Any]:
    """Yield what a tree holds."""
    kind = type(tree)  # isinstance() would believe the symbols of the tracer
    if issubclass(kind, slice):
        tree = (tree.start, tree.stop, tree.step)
    elif issubclass(kind, dict):
        tree = tree.values()
    elif not issubclass(kind, list | tuple):
        yield tree
        return
    for item in tree:
        yield from leaves(item)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree of the same form with ``function`` applied to what it holds."""
    kind = type(tree)
    if issubclass(kind, slice):
        return slice(*map_leaves(function, (tree.start, tree.stop, tree.step)))
    if issubclass(kind, dict):
        return {key: map_leaves(function, item) for key, item in tree.items()}
    if not issubclass(kind, list | tuple):
        return function(tree)
    items = [map_leaves(function, item) for item in tree]
    return kind(*items) if hasattr(kind, "_fields") else kind(items)
