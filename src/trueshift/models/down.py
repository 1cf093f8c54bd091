"""An operation and the down-sampling after it: the phase is chosen after it or before it.

Chosen from its output, as in the paper, the operation must run on the whole map. Chosen from the
components of its input, only what is kept is computed: a strided operation.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trueshift._validate import Mode
from trueshift.functional import MAX_POOLS, keep_phase, max_blur, max_down, max_filter
from trueshift.layers.conv import SameConv
from trueshift.layers.filters import Blur
from trueshift.layers.resample import PolyphaseDown
from trueshift.layers.selectors import FixedSelector
from trueshift.layers.spec import Sampling
from trueshift.models.features import Step
from trueshift.windows import pad


def build_down(
    spec: Sampling, channels: int, stride: int, input_channels: int, like: int | None = None
) -> PolyphaseDown | None:
    """Build the layer that samples after an operation; ``None`` if that strides by itself.

    Args:
        spec: How to sample.
        channels: Channels of the operation's output.
        stride: Sampling factor.
        input_channels: Channels of its input that a selector there reads.
        like: Channels that determine the width of such a selector, if those are too few.
    """
    if stride == 1 or spec.is_plain:
        return None
    like = channels if spec.select_from == "output" else like or input_channels
    return spec.down(channels, stride, input_channels=input_channels, like=like)


def conv_and_sample(
    conv: SameConv,
    norm: nn.Module,
    down: PolyphaseDown | None,
    x: Tensor,
    stride: int,
    select_from: str,
    source: Tensor | None = None,
) -> tuple[Tensor, Step]:
    """Convolve, normalize, apply ReLU and down-sample.

    Args:
        conv: The convolution.
        norm: Its norm.
        down: The layer that samples; ``None`` if the convolution strides.
        x: The map.
        stride: Sampling factor.
        select_from: See :class:`Sampling`.
        source: The map that ``x`` was computed from, if a branch that starts there follows the
            phase: it breaks ties, as it may differ where ``x`` repeats itself. ``None``: ``x``.
    """
    if down is None:
        return F.relu(norm(conv(x)), inplace=True), first_phase(x, stride)
    tie_breaker = _breaks_ties(down, x if source is None else source)
    phase = down.choose(x, tie_breaker) if select_from == "input" else None
    if phase is not None and down.antialias is None:
        y = F.relu(norm(conv(down.extend(x), phase, stride)), inplace=True)
    else:
        dense = F.relu(norm(conv(x)), inplace=True)
        y, phase = down(dense, phase, return_phase=True, tie_breaker=tie_breaker)
    return y, _step(phase, x, stride)


def max_and_sample(
    down: PolyphaseDown | None, x: Tensor, mode: Mode, select_from: str
) -> tuple[Tensor, Step]:
    """Take the maximum of two pixels per axis and down-sample by 2.

    With plain striding this is max pooling.
    """
    dim = x.ndim - 2
    if down is None:  # with a circular border no window reaches over it
        wide = x if mode == "circular" else pad(x, ((0, 1),) * dim, mode)
        return MAX_POOLS[dim](wide, 2, 2), first_phase(x, 2)
    known_phase = select_from == "input" or isinstance(down.selector, FixedSelector)
    phase = _choose(down, x) if known_phase else None
    if phase is not None and isinstance(down.antialias, Blur | None):
        kernel = None if down.antialias is None else down.antialias.kernel
        known = down.selector.index if isinstance(down.selector, FixedSelector) else phase
        return max_down(down.extend(x), kernel, known, mode), _step(phase, x, 2)
    if mode == "circular" and isinstance(down.antialias, Blur) and down.score_filtered:
        filtered = max_blur(x, down.antialias.kernel, mode)
        phase = down.choose(filtered, _breaks_ties(down, x)) if phase is None else phase
        return keep_phase(filtered, phase, (2,) * dim), _step(phase, x, 2)
    peaks = max_filter(pad(x, ((0, 1),) * dim, mode), (2,) * dim)
    y, phase = down(peaks, phase, return_phase=True, tie_breaker=_breaks_ties(down, x))
    return y, _step(phase, x, 2)


def _breaks_ties(down: PolyphaseDown, x: Tensor) -> Callable[[], Tensor]:
    return lambda: down.extend(x)


def _choose(down: PolyphaseDown, x: Tensor) -> Tensor:
    """Choose the phase of a map; a selector that takes fewer channels reads the first ones."""
    channels = getattr(down.selector, "channels", None) or x.shape[1]
    return down.choose(x.narrow(1, 0, channels), tie_breaker=x)


def first_phase(before: Tensor, stride: int) -> Step:
    """Describe what a plain stride did to a map ``before``: it kept the first component."""
    phase = torch.zeros(before.shape[0], dtype=torch.int64, device=before.device)
    return _step(phase, before, stride)


def _step(phase: Tensor, before: Tensor, stride: int) -> Step:
    size = tuple(before.shape[2:])
    return Step(phase, (stride,) * len(size), size)
