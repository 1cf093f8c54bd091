"""Run a network with other choices than its own, by replacing its selectors for a while."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trueshift._validate import Stride, stride_per_axis
from trueshift.audit.probes import Layers
from trueshift.layers.selectors import FixedSelector, NormSelector

Network = Callable[[Tensor], Tensor]


class RandomSelector(nn.Module):
    """Chooses at random.

    Args:
        seed: Seed of all choices to come.
    """

    learns = False

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, x: Tensor, stride: Stride, tie_breaker: Any = None) -> Tensor:
        num_phases = math.prod(stride_per_axis("RandomSelector", stride, x.ndim - 2))
        return torch.randint(num_phases, (len(x),), generator=self.generator).to(x.device)

    choose = forward


@contextlib.contextmanager
def replaced_selectors(layers: Layers, selector: nn.Module) -> Iterator[None]:
    """Let all these layers choose by ``selector``."""
    own = {name: layer.selector for name, layer in layers.items()}
    try:
        for layer in layers.values():
            layer.selector = selector.eval()
        yield
    finally:
        for name, layer in layers.items():
            layer.selector = own[name]


def with_other_choices(
    network: Network, images: Tensor, layers: Layers, selectors: Sequence[RandomSelector]
) -> Iterator[tuple[str, Tensor]]:
    """Yield outputs with the choices of APS, with each of ``selectors``, and the latter's mean."""
    with replaced_selectors(layers, NormSelector(2)):
        yield "norm", network(images)
    outputs = []
    for k, selector in enumerate(selectors):
        with replaced_selectors(layers, selector):
            outputs.append(network(images))
        yield f"random {k}", outputs[-1]
    if outputs:
        yield "random, averaged", _mean(outputs)


def averaged_over_phases(
    network: Network, images: Tensor, layer: nn.Module, num_phases: int
) -> Tensor:
    """Return the mean of the outputs with each phase of one layer."""
    outputs = []
    for phase in range(num_phases):
        with replaced_selectors({"": layer}, FixedSelector(phase)):
            outputs.append(network(images))
    return _mean(outputs)


def _mean(outputs: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(outputs)).mean(0)
