"""Symbols that stand for values while a model is traced, and know the example's values."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from trueshift.convert.trace.trees import map_leaves

if TYPE_CHECKING:
    from trueshift.convert.trace.trace import Tracer


class DependsOnValues(Exception):
    """Python asked for a number that depends on the contents of an image."""


class TracedProxy(fx.Proxy):
    """A symbol that knows the value that the example gives it."""

    tracer: Tracer

    def __init__(self, node: fx.Node, tracer: Tracer, value: Any) -> None:
        super().__init__(node, tracer)
        self.value = value

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # isinstance() in a model asks for the value's type
        return type(self.value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and not hasattr(Tensor, name):
            raise AttributeError(name)
        own = getattr(self.value, name)
        if isinstance(self.value, torch.device | torch.dtype):
            return own
        if callable(own):
            return lambda *args, **kwargs: self.tracer.create_proxy(
                "call_method", name, (self, *args), kwargs
            )
        if name in ("ndim", "requires_grad", "is_cuda", "is_sparse", "is_quantized", "layout"):
            return own
        return self.tracer.create_proxy("call_function", getattr, (self, name), {})

    def __setitem__(self, key: Any, item: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, item), {})

    def __repr__(self) -> str:
        return super().__repr__() if isinstance(self.value, Tensor) else repr(self.value)

    def dim(self) -> int:
        return self.value.dim()

    def __bool__(self) -> bool:
        return bool(self._ask())

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        return iter([operator.getitem(self, index) for index in range(len(self.value))])

    def __contains__(self, item: Any) -> bool:
        return item in self._ask()

    def __int__(self) -> int:
        return int(self._fix())

    def __index__(self) -> int:
        return operator.index(self._fix())

    def __float__(self) -> float:
        return float(self._fix())

    def __hash__(self) -> int:
        return id(self)

    def keys(self) -> Any:
        return self.value.keys()

    def _ask(self) -> Any:
        if isinstance(self.value, Tensor) or self.node.meta.get("read"):
            raise DependsOnValues
        return self.value

    def _fix(self) -> Any:
        """Hand a number to Python; from here on it is a constant of the example."""
        value = self._ask()
        self.tracer.fixed_sizes = self.tracer.fixed_sizes or bool(self.node.args)
        return value


def is_symbol(item: Any) -> bool:
    """Tell symbols from values; ``isinstance`` cannot."""
    return type(item) is TracedProxy


def values_of(tree: Any) -> Any:
    """Replace every symbol of a tree by its value."""
    return map_leaves(lambda leaf: leaf.value if is_symbol(leaf) else leaf, tree)
