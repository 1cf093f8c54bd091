"""Known phases: modules that combine them and apply them to maps of a converted network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trueshift._validate import Mode
from trueshift.windows import mix_moves, pad, phase_offsets, phase_window, read_at, unravel

# One term of an offset: (place of the phase, axis in it, div, base, weight). It adds
# ``offset(phase)[axis] // div % base * weight``.
Term = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Recipe:
    """How the offset of a map is computed from phases.

    Args:
        phases: Numbers of the phases, in the order in which modules take them.
        strides: The stride of every axis, for each of the phases.
        terms: What is added up, for each axis of the offset.
    """

    phases: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    terms: tuple[tuple[Term, ...], ...]


def cut(
    x: Tensor, phase: Tensor, stride: Sequence[int], widths: Sequence[tuple[int, int]]
) -> Tensor:
    """Cut each image's circular window that begins ``widths[.][0]`` before its offset."""
    return phase_window(x, phase, tuple(stride), tuple(widths), "circular")


def move(
    x: Tensor, offsets: Sequence[Tensor], largest: Sequence[int], border: Mode = "circular"
) -> Tensor:
    """Shift the content of each image by its own offsets, at most ``largest`` per axis."""
    if not any(largest):
        return x
    if border == "circular":
        return read_at(x, [-offset for offset in offsets], x.shape[2:])
    padded = pad(x, tuple((most, 0) for most in largest), border)
    starts = [most - offset for most, offset in zip(largest, offsets, strict=True)]
    return read_at(padded, starts, x.shape[2:])


def fit(x: Tensor, stride: Sequence[int]) -> Tensor:
    """Extend a map with zeros whose size the stride does not divide (original padding only)."""
    # Not -size % step: a compiler cannot reason about remainders of negative sizes.
    sizes = zip(x.shape[2:], stride, strict=True)
    extra = tuple((0, (step - size % step) % step) for size, step in sizes)
    return pad(x, extra, "zeros")


def ravel(offsets: Sequence[Tensor], stride: Sequence[int]) -> Tensor:
    """Join one offset per axis to the row-major index of a phase."""
    phase = offsets[0]
    for offset, step in zip(offsets[1:], stride[1:], strict=True):
        phase = phase * step + offset
    return phase


class Offset(nn.Module):
    """Compute offsets from phases."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.terms, self.strides = recipe.terms, recipe.strides

    @property
    def largest(self) -> tuple[int, ...]:
        """Largest offset of each axis."""
        return tuple(sum((base - 1) * weight for *_, base, weight in terms) for terms in self.terms)

    def hard(self, phases: Sequence[Tensor]) -> list[Tensor]:
        """Offsets ``(B,)`` of each axis from hard phases."""
        parts = [unravel(p, stride) for p, stride in zip(phases, self.strides, strict=True)]
        zero = torch.zeros_like(phases[0])
        offsets = []
        for terms in self.terms:
            offset = zero
            for source, axis, div, base, weight in terms:
                offset = offset + parts[source][axis] // div % base * weight
            offsets.append(offset)
        return offsets

    def of_one(self, source: int, phase: int) -> tuple[int, ...]:
        """Return what one value of one phase adds to the offsets."""
        own = phase_offsets(self.strides[source])[phase]
        return tuple(
            sum(
                own[axis] // div % base * weight
                for s, axis, div, base, weight in terms
                if s == source
            )
            for terms in self.terms
        )

    def extra_repr(self) -> str:
        """Show the terms of each axis."""
        return f"terms={self.terms}"


class Compose(Offset):
    """The phase of a branch that jumps over several strides which others choose one by one.

    Shape:
        Hard ``(B,)`` or soft ``(B, P_i)`` phases to ``(B,)`` or ``(B, P)``.
    """

    def __init__(self, recipe: Recipe, stride: tuple[int, ...]) -> None:
        super().__init__(recipe)
        self.stride = stride

    def forward(self, *phases: Tensor) -> Tensor:
        if not phases[0].dtype.is_floating_point:
            return ravel(self.hard(phases), self.stride)
        weights = torch.ones((), dtype=phases[0].dtype, device=phases[0].device)
        for source, phase in enumerate(phases):
            columns = [phase[:, self._matching(source, k)].sum(1) for k in range(self._count)]
            weights = weights * torch.stack(columns, 1)
        return weights

    @property
    def _count(self) -> int:
        return math.prod(self.stride)

    def _matching(self, source: int, target: int) -> list[int]:
        """Phases of ``source`` that agree with the phase ``target`` of the result."""
        wanted = phase_offsets(self.stride)[target]

        def agrees(phase: int) -> bool:
            own = phase_offsets(self.strides[source])[phase]
            return all(
                own[axis] // div % base == wanted[n] // weight % base
                for n, terms in enumerate(self.terms)
                for s, axis, div, base, weight in terms
                if s == source
            )

        return [k for k in range(math.prod(self.strides[source])) if agrees(k)]


class Unshift(Offset):
    """Move an up-sampled map to where its phases say, hard or soft.

    Args:
        recipe: The offset to undo.
        border: What comes in at the beginning: the end (``"circular"``) or the first value again
            (``"replicate"``); for all axes or one per axis.

    Shape:
        ``(B, C, *spatial)`` and phases to ``(B, C, *spatial)``.
    """

    def __init__(self, recipe: Recipe, border: Mode = "circular") -> None:
        super().__init__(recipe)
        self.border = border

    def forward(self, x: Tensor, *phases: Tensor) -> Tensor:
        if not phases[0].dtype.is_floating_point:
            return move(x, self.hard(phases), self.largest, self.border)
        for source, phase in enumerate(phases):
            offsets = [self.of_one(source, k) for k in range(phase.shape[1])]
            x = mix_moves(x, phase, offsets, self.border)
        return x


class FromOrigin(nn.Module):
    """Undo the move of :class:`ToOrigin` on a map ``factors`` times as large, then sampled.

    Args:
        factors: By how much each axis is larger.
        strides: By how much it is sampled.
    """

    def __init__(self, factors: tuple[int, ...], strides: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.factors, self.strides = factors, strides or (1,) * len(factors)

    def forward(self, x: Tensor, phase: Tensor) -> Tensor:
        scales = list(zip(self.factors, self.strides, strict=True))
        sizes = [n * step // f for n, (f, step) in zip(x.shape[2:], scales, strict=True)]
        places = zip(unravel(phase, tuple(sizes)), scales, strict=True)
        offsets = [place * f // step for place, (f, step) in places]
        return move(x, offsets, [n - f for n, f in zip(x.shape[2:], self.factors, strict=True)])
