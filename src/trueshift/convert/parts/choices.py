"""Modules that choose a phase, or the origin of a map, in a converted network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trueshift._adjoint import offset_blocks
from trueshift.convert.parts.phases import Offset, Recipe, cut, fit, ravel, read
from trueshift.functional import keep_phase
from trueshift.layers.antialias import filter_and_keep
from trueshift.layers.selectors import ConvSelector, FixedSelector, NormSelector
from trueshift.ties import argmax_phase


class Choose(nn.Module):
    """What leaders and origins share: the ties of their choice are broken by the input images.

    A map may look the same from two phases while another branch, which must follow, does not. So
    the witness of a tie is the image itself, seen from the offset of the map: if it ties too, the
    image repeats itself, and with it every map of the network.
    """

    def __init__(self, recipe: Recipe, strides: tuple[int, ...]) -> None:
        super().__init__()
        self.offset = Offset(recipe)
        self.strides = strides

    def witness(self, images: Sequence[Tensor], phases: Sequence[Tensor]) -> Tensor:
        """Images as ``(B, C', *sizes of the map)``, from the map's offset on."""
        image = torch.cat([image.to(images[0].dtype) for image in images], dim=1)
        if max(self.strides) == 1:
            return image
        if phases:
            offsets = self.offset.hard(phases)
            if torch.compiler.is_compiling():
                image = read(image, offsets, image.shape[2:])
            else:
                start = ravel(offsets, self.strides)
                image = cut(image, start, self.strides, [(0, s - 1) for s in self.strides])
        return offset_blocks(image, self.strides).flatten(1, 1 + len(self.strides))


class Lead(Choose):
    """Choose the phase of a map, and keep it unless the operation itself does.

    Args:
        selector: :class:`ConvSelector`, :class:`NormSelector` or :class:`FixedSelector`.
        stride: Sampling factor of each axis.
        antialias: Filter to apply before sampling, or ``None``.
        select_on: Choose among ``"filtered"`` or ``"unfiltered"`` components.
        keep: Whether to return the kept component too.
        recipe: The offset of the map.
        strides: Stride of the map on each axis of the input.
        axes: Which axes of the input the map has.
    """

    def __init__(
        self,
        selector: nn.Module,
        stride: tuple[int, ...],
        antialias: nn.Module | None,
        select_on: str,
        keep: bool,
        recipe: Recipe,
        strides: tuple[int, ...],
        axes: tuple[int, ...],
    ) -> None:
        super().__init__(recipe, strides)
        self.selector, self.antialias = selector, antialias
        self.stride, self.select_on, self.keep, self.axes = stride, select_on, keep, axes

    def forward(
        self, x: Tensor, images: Sequence[Tensor], phases: Sequence[Tensor]
    ) -> Tensor | tuple[Tensor, Tensor]:
        x = fit(x, self.stride)
        fixed = isinstance(self.selector, FixedSelector)
        filters = self.antialias is not None and not fixed and self.select_on == "filtered"
        seen = self.antialias(x) if filters else x  # type: ignore[misc]
        phase = self.choose(seen, images, phases)
        if not self.keep:
            return phase
        if filters:
            return keep_phase(seen, phase, self.stride), phase
        known = 0 if fixed and self.antialias is not None else phase
        return filter_and_keep(self.antialias, x, known, self.stride), phase

    def choose(self, x: Tensor, images: Sequence[Tensor], phases: Sequence[Tensor]) -> Tensor:
        """Return the phase: soft while a learned selector trains, else hard."""
        if not self._compares():
            phase: Tensor = self.selector.choose(x, self.stride)  # type: ignore[operator]
            return phase
        own = dict(zip(self.axes, self.stride, strict=True))
        steps = tuple(own.get(axis, 1) for axis in range(len(self.strides)))
        with torch.no_grad():
            scores = self.selector.scores(x, self.stride)  # type: ignore[operator]
            return argmax_phase(scores, lambda: self.witness(images, phases), steps)

    def _compares(self) -> bool:
        """Whether the phase is that of the largest score."""
        selector = self.selector
        if isinstance(selector, ConvSelector):
            return not selector.training and selector.test_rule == "argmax"
        return not selector.training and isinstance(selector, NormSelector)

    def extra_repr(self) -> str:
        """Show the stride."""
        return f"stride={self.stride}, select_on={self.select_on}"


class Origin(Choose):
    """Choose the origin of a whole map: the pixel of the largest norm; move it to the corner.

    What follows may then depend on absolute positions. Its choice is hard while training too.

    Args:
        p: Which norm; ``None`` keeps the corner where it is.
        recipe: The offset of the map.
        strides: Stride of the map on each axis of the input.
    """

    def __init__(self, p: float | None, recipe: Recipe, strides: tuple[int, ...]) -> None:
        super().__init__(recipe, strides)
        self.selector = FixedSelector() if p is None else NormSelector(p)

    def forward(
        self, x: Tensor, images: Sequence[Tensor], phases: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        sizes = tuple(x.shape[2:])
        if isinstance(self.selector, FixedSelector) or max(sizes) == 1:
            return x, torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
        with torch.no_grad():
            scores = self.selector.scores(x, sizes)
            if any(phase.dtype.is_floating_point for phase in phases):
                phase = scores.argmax(1)
            else:
                phase = argmax_phase(scores, lambda: self.witness(images, phases), sizes)
        return cut(x, phase, sizes, [(0, size - 1) for size in sizes]), phase
