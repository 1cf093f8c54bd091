"""Modules that choose, combine and apply phases in a converted network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from trueshift._adjoint import offset_blocks, phase_offsets, pick, unravel
from trueshift.functional import keep_phase
from trueshift.layers.antialias import AdaptiveBlur, Blur
from trueshift.layers.selectors import _CLOSE, ConvSelector, FixedSelector, NormSelector
from trueshift.layers.window import phase_window
from trueshift.padding import pad
from trueshift.ties import argmax_phase

# One term of an offset: (number of the phase, axis in it, div, base, weight).
Term = tuple[int, int, int, int, int]
# The terms of each axis, and the strides of each phase that they refer to.
Recipe = tuple[tuple[tuple[Term, ...], ...], tuple[tuple[int, ...], ...]]


def cut(
    x: Tensor, phase: Tensor, steps: Sequence[int], widths: Sequence[tuple[int, int]]
) -> Tensor:
    """Cut each image's circular window that begins ``widths[.][0]`` before its offset."""
    steps, pairs = tuple(steps), tuple(widths)
    if not torch.compiler.is_compiling():
        return phase_window(x, phase, steps, pairs, "circular")
    starts = [
        offset - before for offset, (before, _) in zip(unravel(phase, steps), pairs, strict=True)
    ]
    lengths = [
        size + before + after - step + 1
        for size, (before, after), step in zip(x.shape[2:], pairs, steps, strict=True)
    ]
    return read(x, starts, lengths)


def read(x: Tensor, starts: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
    """Read ``x[b, :, (starts[b] + n) % size]`` along every spatial axis, as one gather."""
    dim = x.ndim - 2
    batch = torch.arange(x.shape[0], device=x.device).view(-1, *[1] * (dim + 1))
    channel = torch.arange(x.shape[1], device=x.device).view(1, -1, *[1] * dim)
    index = [batch, channel]
    for axis, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        shape = [x.shape[0], 1, *[1] * dim]
        shape[2 + axis] = -1
        place = start[:, None] + torch.arange(length, device=x.device)
        index.append((place % x.shape[2 + axis]).view(shape))
    return x[tuple(index)]


def move(x: Tensor, offsets: Sequence[Tensor], largest: Sequence[int]) -> Tensor:
    """Shift the content of each image by its own offsets, at most ``largest`` per axis."""
    if not any(largest):
        return x
    if torch.compiler.is_compiling():
        return read(x, [-offset for offset in offsets], x.shape[2:])
    padded = windows = pad(x, tuple((most, 0) for most in largest), "circular")
    for axis, size in enumerate(x.shape[2:], start=2):
        windows = windows.unfold(axis, size, 1)
    counts = tuple(most + 1 for most in largest)
    start = ravel([most - o for most, o in zip(largest, offsets, strict=True)], counts)
    last = not padded.is_contiguous()
    return pick(windows, start, counts, last=last)


def ravel(offsets: Sequence[Tensor], steps: Sequence[int]) -> Tensor:
    """Join one offset per axis to the row-major index of a phase."""
    phase = offsets[0]
    for offset, step in zip(offsets[1:], steps[1:], strict=True):
        phase = phase * step + offset
    return phase


class Offset(nn.Module):
    """Compute offsets from phases."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.terms, self.strides = recipe

    @property
    def largest(self) -> tuple[int, ...]:
        """Largest offset of each axis."""
        return tuple(sum((base - 1) * weight for *_, base, weight in terms) for terms in self.terms)

    def hard(self, phases: Sequence[Tensor]) -> list[Tensor]:
        """Offsets ``(B,)`` of each axis from hard phases."""
        parts = [unravel(p, steps) for p, steps in zip(phases, self.strides, strict=True)]
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
        own = phase_offsets(phase, self.strides[source])
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

    def __init__(self, recipe: Recipe, steps: tuple[int, ...]) -> None:
        super().__init__(recipe)
        self.steps = steps

    def forward(self, *phases: Tensor) -> Tensor:
        if not phases[0].dtype.is_floating_point:
            return ravel(self.hard(phases), self.steps)
        weights = torch.ones((), dtype=phases[0].dtype, device=phases[0].device)
        for source, phase in enumerate(phases):
            columns = [phase[:, self._matching(source, k)].sum(1) for k in range(self._count)]
            weights = weights * torch.stack(columns, 1)
        return weights

    @property
    def _count(self) -> int:
        return math.prod(self.steps)

    def _matching(self, source: int, target: int) -> list[int]:
        """Phases of ``source`` that agree with the phase ``target`` of the result."""
        wanted = phase_offsets(target, self.steps)

        def agrees(phase: int) -> bool:
            own = phase_offsets(phase, self.strides[source])
            return all(
                own[axis] // div % base == wanted[n] // weight % base
                for n, terms in enumerate(self.terms)
                for s, axis, div, base, weight in terms
                if s == source
            )

        return [k for k in range(math.prod(self.strides[source])) if agrees(k)]


class Unshift(Offset):
    """Move an up-sampled map to where its phases say, hard or soft.

    Shape:
        ``(B, C, *spatial)`` and phases to ``(B, C, *spatial)``.
    """

    def forward(self, x: Tensor, *phases: Tensor) -> Tensor:
        if not phases[0].dtype.is_floating_point:
            return move(x, self.hard(phases), self.largest)
        axes = tuple(range(2, x.ndim))
        for source, phase in enumerate(phases):
            shape = (-1, *[1] * (x.ndim - 1))
            parts = [
                torch.roll(x, self.of_one(source, k), axes) * weight.view(shape).to(x.dtype)
                for k, weight in enumerate(phase.unbind(1))
            ]
            x = torch.stack(parts).sum(0)
        return x


class Choose(nn.Module):
    """What leaders and origins share: a hard choice whose ties are broken by the input images.

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

    def decide(
        self, logits: Tensor, steps: tuple[int, ...], witness: Callable[[], Tensor]
    ) -> Tensor:
        """Return the phase of the largest logit."""
        tied = logits == logits.amax(1, keepdim=True)
        if torch.compiler.is_compiling() or bool((tied.sum(1) > 1).any()):
            return argmax_phase(logits, witness(), steps)
        return logits.argmax(1)


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
        x = self._fit(x)
        fixed = isinstance(self.selector, FixedSelector)
        filters = self.antialias is not None and not fixed and self.select_on == "filtered"
        seen = self.antialias(x) if filters else x  # type: ignore[misc]
        phase = self.choose(seen, images, phases)
        if not self.keep:
            return phase
        if filters or self.antialias is None:
            return keep_phase(seen, phase, self.stride), phase
        return filter_and_keep(self.antialias, x, 0 if fixed else phase, self.stride), phase

    def choose(self, x: Tensor, images: Sequence[Tensor], phases: Sequence[Tensor]) -> Tensor:
        """Return the phase: soft while a learned selector trains, else hard."""
        selector = self.selector
        hard = isinstance(selector, NormSelector) or (
            isinstance(selector, ConvSelector)
            and not selector.training
            and selector.test_rule == "argmax"
        )
        if not hard or (selector.training and not isinstance(selector, ConvSelector)):
            phase: Tensor = selector.choose(x, self.stride)  # type: ignore[operator]
            return phase
        with torch.no_grad():
            steps = tuple(
                self.stride[self.axes.index(axis)] if axis in self.axes else 1
                for axis in range(len(self.strides))
            )
            logits = _logits(selector, x, self.stride)
            return self.decide(logits, steps, lambda: self.witness(images, phases))

    def _fit(self, x: Tensor) -> Tensor:
        """Extend a map with zeros whose size the stride does not divide (original padding only)."""
        extra = [(0, -n % s) for n, s in zip(x.shape[2:], self.stride, strict=True)]
        return pad(x, tuple(extra), "zeros")

    def extra_repr(self) -> str:
        """Show the stride."""
        return f"stride={self.stride}, select_on={self.select_on}"


def _logits(selector: nn.Module, x: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Exact logits; norms that are not nearly tied need no exact sums."""
    if isinstance(selector, ConvSelector):
        return selector._logits(x, stride)
    if not isinstance(selector, NormSelector) or torch.compiler.is_compiling():
        logits: Tensor = selector(x, stride)
        return logits
    norms = selector._norms(x, stride, exact=False)
    best, second = norms.topk(2, dim=1).values.unbind(1)
    close = second >= best * (1 - _CLOSE)
    if bool(close.any()):
        norms[close] = selector._norms(x[close], stride, exact=True)
    return norms


def filter_and_keep(
    antialias: nn.Module, x: Tensor, phase: int | Tensor, stride: tuple[int, ...]
) -> Tensor:
    """Filter a map where a known phase keeps it; compute only that, where possible."""
    soft = isinstance(phase, Tensor) and phase.dtype.is_floating_point
    tracing = isinstance(phase, Tensor) and torch.compiler.is_compiling()
    if isinstance(antialias, Blur | AdaptiveBlur) and not (soft or tracing):
        return antialias.at(x, phase, stride)
    return keep_phase(antialias(x), phase, stride)


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
            logits = self.selector._norms(x, sizes, exact=True)
            hard = all(not phase.dtype.is_floating_point for phase in phases)
            if hard:
                phase = self.decide(logits, sizes, lambda: self.witness(images, phases))
            else:
                phase = logits.argmax(1)
        return cut(x, phase, sizes, [(0, size - 1) for size in sizes]), phase


class FromOrigin(nn.Module):
    """Undo the move of :class:`Origin` on a map that is ``factors`` times as large."""

    def __init__(self, factors: tuple[int, ...]) -> None:
        super().__init__()
        self.factors = factors

    def forward(self, x: Tensor, phase: Tensor) -> Tensor:
        sizes = [size // f for size, f in zip(x.shape[2:], self.factors, strict=True)]
        offsets = [o * f for o, f in zip(unravel(phase, tuple(sizes)), self.factors, strict=True)]
        return move(x, offsets, [(n - 1) * f for n, f in zip(sizes, self.factors, strict=True)])


def all_offsets(strides: tuple[int, ...]) -> list[tuple[int, ...]]:
    """List the offsets of every phase, row-major."""
    return list(itertools.product(*map(range, strides)))
