"""Modules that choose a phase, or the origin of a map, in a converted network."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trueshift.convert.parts.phases import Offset, Recipe, cut, ravel
from trueshift.layers.resample import PolyphaseDown
from trueshift.layers.selectors import Selector
from trueshift.ties import TieBreaker
from trueshift.windows import offset_blocks


class Chooses(nn.Module):
    """What leaders and origins share: the input images break the ties of their choice.

    A map may look the same from two phases while another branch, which must follow, does not. So
    the tie-breaker is the image itself, seen from the offset of the map: if that ties too, the
    image repeats itself, and with it every map of the network.

    Args:
        recipe: The offset of the map.
        strides: Stride of the map on each axis of the input.
        axes: Which axes of the input the map has.
    """

    def __init__(self, recipe: Recipe, strides: tuple[int, ...], axes: tuple[int, ...]) -> None:
        super().__init__()
        self.offset = Offset(recipe)
        self.strides, self.axes = strides, axes

    def tie_breaker(self, images: Sequence[Tensor], phases: Sequence[Tensor]) -> TieBreaker | None:
        """Return a function that gives the images; ``None`` while phases are soft."""
        if not images or any(phase.dtype.is_floating_point for phase in phases):
            return None
        return functools.partial(self._image, images, phases)

    def _image(self, images: Sequence[Tensor], phases: Sequence[Tensor]) -> Tensor:
        """Images as ``(B, C', *sizes of the map)``, from the map's offset on.

        Axes of the images that the map does not have come before those that it has.
        """
        image = torch.cat([image.to(images[0].dtype) for image in images], dim=1)
        if phases:
            start = ravel(self.offset.hard(phases), self.strides)
            image = cut(image, start, self.strides, [(0, s - 1) for s in self.strides])
        image = offset_blocks(image, self.strides).flatten(1, 1 + len(self.strides))
        last = range(-len(self.axes), 0)
        return image.movedim([2 + axis for axis in self.axes], list(last))


class Lead(Chooses):
    """Choose the phase of a map, and sample that map unless the operation itself does.

    Args:
        down: Filters, chooses and keeps.
        samples: Whether to return the kept component too.
        recipe: See :class:`Chooses`.
        strides: See :class:`Chooses`.
        axes: See :class:`Chooses`.

    Shape:
        A map, the images and the phases of ``recipe`` to a phase: soft while a learned selector
        trains, else hard. With ``samples`` to the component and the phase.
    """

    def __init__(
        self,
        down: PolyphaseDown,
        samples: bool,
        recipe: Recipe,
        strides: tuple[int, ...],
        axes: tuple[int, ...],
    ) -> None:
        super().__init__(recipe, strides, axes)
        self.down, self.samples = down, samples

    def forward(
        self, x: Tensor, images: Sequence[Tensor], phases: Sequence[Tensor]
    ) -> Tensor | tuple[Tensor, Tensor]:
        tie_breaker = self.tie_breaker(images, phases)
        if not self.samples:
            return self.down.choose(x, tie_breaker)
        both: tuple[Tensor, Tensor] = self.down(x, return_phase=True, tie_breaker=tie_breaker)
        return both


class ToOrigin(Chooses):
    """Choose the origin of a whole map as a phase whose stride is its size; move it to the corner.

    What follows may then depend on absolute positions. The choice is hard while training too.

    Args:
        selector: Chooses; it must take maps of any size.
        recipe: See :class:`Chooses`.
        strides: See :class:`Chooses`.
        axes: See :class:`Chooses`.
    """

    def __init__(
        self, selector: Selector, recipe: Recipe, strides: tuple[int, ...], axes: tuple[int, ...]
    ) -> None:
        super().__init__(recipe, strides, axes)
        self.selector = selector

    def forward(
        self, x: Tensor, images: Sequence[Tensor], phases: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        sizes = tuple(x.shape[2:])
        if max(sizes) == 1:
            return x, torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
        phase = self.selector.choose(x, sizes, self.tie_breaker(images, phases))
        return cut(x, phase, sizes, [(0, size - 1) for size in sizes]), phase
