"""An operation and the down-sampling after it, as one: the phase is chosen after it or before it.

Chosen after it, as in the paper, the operation must run on the whole map. Chosen before it, from
the components of its input, only what is kept need be computed: a strided operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trueshift._adjoint import Widths
from trueshift._chunks import by_chunks, by_chunks_twice
from trueshift._eager import in_full_precision, needs_whole_batch, only_result, watched
from trueshift.layers.antialias import Blur
from trueshift.layers.bordered import border_of, sample_bordered
from trueshift.layers.conv import SameConv, computes_borders
from trueshift.layers.maximum import MAX_POOLS, max_filter
from trueshift.layers.norm import is_pointwise, normalize
from trueshift.layers.resample import PolyphaseDown
from trueshift.layers.selectors import ConvSelector, FixedSelector
from trueshift.layers.spec import Sampling
from trueshift.layers.window import phase_window
from trueshift.models.features import Step
from trueshift.padding import pad

# Taps that a convolution computes of every value in the time that it takes to copy it.
_COPY = 40


def build_down(
    spec: Sampling, channels: int, stride: int, input_channels: int, like: int | None = None
) -> PolyphaseDown | None:
    """Build the layer that samples after an operation; ``None`` if that strides by itself.

    Args:
        spec: How to sample.
        channels: Channels of the operation's output.
        stride: Sampling factor.
        input_channels: Channels of its input that a selector there looks at.
        like: Channels that the width of such a selector goes by, if not those: too few ones.
    """
    if stride == 1 or spec.is_plain:
        return None
    like = channels if spec.select == "output" else like or input_channels
    return spec.down(channels, stride, input_channels=input_channels, like=like)


def conv_and_sample(
    conv: SameConv, norm: nn.Module, down: PolyphaseDown | None, x: Tensor, stride: int, select: str
) -> tuple[Tensor, Step]:
    """Convolve, normalize, apply ReLU and down-sample."""
    if down is None:
        return F.relu(normalize(norm, conv(x), conv), inplace=True), first_phase(x, stride)
    phase = down.choose(x) if select == "input" else None
    if phase is not None and down.antialias is None:
        y = normalize(norm, conv.at(down.fit(x), phase, stride), conv)
        return F.relu(y, inplace=True), _step(phase, x, stride)

    border = None
    if phase is None and computes_borders(conv) and is_pointwise(norm):
        border = _border(down, x, math.prod(conv.weight.shape[1:]), conv, norm)

    def dense(part: Tensor, phase: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y = conv(part) if border is None else conv.with_border(part, border)
        y = F.relu(normalize(norm, y, conv), inplace=True)
        return down(y, phase, return_phase=True) if border is None else sample_bordered(down, y)

    y, phase = _sample_dense(dense, x, phase, conv.out_channels, (conv, norm, down))
    return y, _step(phase, x, stride)


def max_and_sample(
    down: PolyphaseDown | None, x: Tensor, mode: str, select: str
) -> tuple[Tensor, Step]:
    """Take the maximum of two pixels per axis and down-sample by 2.

    With plain striding this is max pooling.
    """
    dim = x.ndim - 2
    widths, pool = ((0, 1),) * dim, MAX_POOLS[dim]
    if down is None:
        even = mode == "circular"  # then no window reaches over the border
        return pool(x if even else pad(x, widths, mode), 2, 2), first_phase(x, 2)
    phase = _choose(down, x) if select == "input" else None
    hard = phase is not None and not phase.dtype.is_floating_point
    if phase is not None and hard and only_result() and down.antialias is None:
        y = pool(phase_window(down.fit(x), phase, (2,) * dim, widths, mode), 2, 2)
        return y, _step(phase, x, 2)

    if _is_known(down, phase):
        blur = down.antialias
        at_once = mode == "circular" and only_result() and (phase is None or hard)

        def kept(part: Tensor, *known: Tensor) -> Tensor:
            if at_once and isinstance(blur, Blur) and blur.padding_mode == mode:
                return _filtered_maximum(blur, down.fit(part), *known)
            return down(max_filter(pad(part, widths, mode), 2), *known)

        in_parts = by_chunks_twice if torch.is_grad_enabled() else by_chunks
        if phase is None:
            return in_parts(kept, x), first_phase(x, 2)
        return in_parts(kept, x, phase), _step(phase, x, 2)

    taps = down.antialias.size**dim if isinstance(down.antialias, Blur) else 1
    border = _border(down, x, taps) if phase is None and mode == "circular" else None

    def dense(part: Tensor, phase: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if border is None:
            return down(max_filter(pad(part, widths, mode), 2), phase, return_phase=True)
        further = tuple((before, after + 1) for before, after in border)
        return sample_bordered(down, max_filter(pad(part, further, mode), 2))

    y, phase = _sample_dense(dense, x, phase, x.shape[1], (down,))
    return y, _step(phase, x, 2)


def _choose(down: PolyphaseDown, x: Tensor) -> Tensor:
    """Choose the phase of a map; a selector that takes fewer channels looks at the first ones."""
    selector = down.selector
    if isinstance(selector, ConvSelector) and selector.channels < x.shape[1]:
        return down.choose(x.narrow(1, 0, selector.channels), witness=x)
    return down.choose(x)


def _filtered_maximum(blur: Blur, x: Tensor, phase: int | Tensor = 0) -> Tensor:
    """Filter the maxima of neighbours where ``phase`` keeps them; one copy brings all borders."""
    steps = (2,) * (x.ndim - 2)
    widths = tuple((before, after + 1) for before, after in blur.widths)
    window = phase_window(x, phase, steps, widths, "circular")
    return blur.without_border(max_filter(window, 2), steps)


def _is_known(down: PolyphaseDown, phase: Tensor | None) -> bool:
    """Whether a layer keeps a phase that is known before, with a fixed filter or none."""
    if watched(down):
        return False
    plain = isinstance(down.selector, FixedSelector) and down.selector.index == 0
    fixed = down.antialias is None or isinstance(down.antialias, Blur)
    return fixed and (plain or phase is not None)


def _border(down: PolyphaseDown, x: Tensor, taps: int, *made_by: nn.Module) -> Widths | None:
    """Return the border that a map is best made with, for what ``down`` does to it; or ``None``.

    Args:
        down: What follows.
        x: What the map is made of, of the same size.
        taps: What a value of the map costs: so many taps of a convolution.
        made_by: The modules that make it.
    """
    if not only_result() or needs_whole_batch(down, *made_by):
        return None
    usual = x.device.type == "cpu" and in_full_precision(x)
    border = border_of(down, x.ndim - 2) if usual else None
    if border is None or not any(map(any, border)):
        return None
    down.fit(x)  # raises if the stride does not divide the size
    sizes = [(n + sum(pair)) / n for n, pair in zip(x.shape[2:], border, strict=True)]
    return border if (math.prod(sizes) - 1) * taps < _COPY else None


def _sample_dense(
    dense: Callable[..., tuple[Tensor, Tensor]],
    x: Tensor,
    phase: Tensor | None,
    channels: int,
    modules: tuple[nn.Module, ...],
) -> tuple[Tensor, Tensor]:
    """Make a map of the size of ``x`` and down-sample it; at test time a few images at a time."""
    maps = (x,) if phase is None else (x, phase)
    if needs_whole_batch(*modules):
        return dense(*maps)
    y, phase = by_chunks(dense, *maps, per_image=channels * math.prod(x.shape[2:]))
    return y, phase


def first_phase(before: Tensor, stride: int) -> Step:
    """Describe what a plain stride did to a map ``before``: it kept the first component."""
    phase = torch.zeros(before.shape[0], dtype=torch.int64, device=before.device)
    return _step(phase, before, stride)


def _step(phase: Tensor, before: Tensor, stride: int) -> Step:
    size = tuple(before.shape[2:])
    return Step(phase, (stride,) * len(size), size)
