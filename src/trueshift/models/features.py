"""Feature maps that know where they lie in the image."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trueshift._validate import check_map, nearest_multiples
from trueshift.exact import fixed_layout
from trueshift.layers.spec import Sampling
from trueshift.windows import unravel


class Step(NamedTuple):
    """One down-sampling on the way from the image to a feature map.

    Attributes:
        phase: The choice, hard ``(B,)`` or soft ``(B, P)``.
        stride: Sampling factor of each axis.
        size: Spatial size of the map before it.
    """

    phase: Tensor
    stride: tuple[int, ...]
    size: tuple[int, ...]


class Feature(NamedTuple):
    """A feature map and how it was sampled.

    Attributes:
        x: The map ``(B, C, *spatial)``.
        steps: Every down-sampling between the image and the map, the finest first.
    """

    x: Tensor
    steps: tuple[Step, ...]

    @property
    def stride(self) -> tuple[int, ...]:
        """Total stride of each axis."""
        strides = zip(*(step.stride for step in self.steps), strict=True)
        return tuple(math.prod(axis) for axis in strides) or (1,) * (self.x.ndim - 2)

    def offset(self) -> Tensor:
        """Return where the map begins: pixel ``n`` lies at ``offset + stride * n`` of the image.

        Returns:
            int64 ``(B, dim)``.
        """
        dim = self.x.ndim - 2
        total = torch.zeros(self.x.shape[0], dim, dtype=torch.int64, device=self.x.device)
        reached = [1] * dim
        for step in self.steps:
            if step.phase.dtype.is_floating_point:
                raise ValueError(
                    "Feature.offset: the phases are soft, so the map has no single offset."
                    " Call model.eval() first."
                )
            parts = unravel(step.phase, step.stride)
            total += torch.stack([p * r for p, r in zip(parts, reached, strict=True)], dim=1)
            reached = [r * s for r, s in zip(reached, step.stride, strict=True)]
        return total


class StagedClassifier(nn.Module, ABC):
    """A classifier on the map of its last stage; a subclass says how the stages make their maps."""

    avgpool: nn.Module
    fc: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        for feature in self._features(fixed_layout(self, x)):
            last = feature  # the maps before it need not be kept
        return self.fc(self.avgpool(last.x))

    def features(self, x: Tensor) -> list[Feature]:
        """Return the map of every stage, with its phases and strides."""
        return list(self._features(fixed_layout(self, x)))

    @abstractmethod
    def _features(self, x: Tensor) -> Iterator[Feature]:
        """Yield the map of every stage."""


def multiples(spec: Sampling, total: int) -> int | tuple[int, ...]:
    """Return of what number sizes must be multiples; one per axis where only some axes wrap."""
    wraps = spec.wraps
    if any(wraps) and not all(wraps):
        return tuple(total if axis else 1 for axis in wraps)
    return total if all(wraps) else 1


def check_image(
    who: str, x: Tensor, channels: int, multiple: int | tuple[int, ...], dim: int = 2
) -> None:
    """Raise unless ``x`` is a batch of images that the network takes, every size a multiple."""
    check_map(who, x, dim)
    if x.shape[1] != channels:
        raise ValueError(
            f"{who}: built for images of {channels} channels, got x of shape {tuple(x.shape)}."
            f" Pass (B, {channels}, *spatial), or build it with in_channels={x.shape[1]}."
        )
    sizes = tuple(x.shape[2:])
    steps = (multiple,) * len(sizes) if isinstance(multiple, int) else multiple
    if all(n % step == 0 for n, step in zip(sizes, steps, strict=True)) and min(sizes) > 0:
        return
    larger, smaller = nearest_multiples(sizes, steps)
    crop = f", crop to {smaller}" if min(smaller) > 0 else ""
    raise ValueError(
        f"{who}: with circular padding every size must be a multiple of {multiple}"
        f" (model.required_multiple), got x of shape {tuple(x.shape)}."
        f" Resize or pad to {larger}{crop}, or build it with padding_mode='zeros'."
    )
