"""A module that is described but not built yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Part:
    """What a module of a converted network will be.

    Args:
        make: Its class, or a function that returns it.
        options: The arguments of ``make``.
    """

    make: Any
    options: dict[str, Any]

    def build(self) -> nn.Module:
        """Return the module."""
        module: nn.Module = self.make(**self.options)
        return module

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.make.__name__}({options})"


@dataclass(frozen=True)
class AsMap:
    """How a tensor is brought to ``(batch, channels, *space)`` and back.

    Args:
        dims: Its axes in that order.
        sizes: Those of the map whose positions are the last of them; empty if it has its own axes.
    """

    dims: tuple[int, ...]
    sizes: tuple[int, ...] = ()

    @property
    def back(self) -> tuple[int, ...]:
        """The order of axes that undoes ``dims``."""
        return tuple(sorted(range(len(self.dims)), key=self.dims.__getitem__))


def part(make: Callable[..., nn.Module | None], **options: Any) -> Part:
    """Describe a module by its class and arguments."""
    return Part(make, options)
