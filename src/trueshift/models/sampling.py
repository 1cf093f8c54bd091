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

from trueshift.layers.chunks import by_chunks
from trueshift.layers.conv import SameConv
from trueshift.layers.maximum import MAX_POOLS, max_filter
from trueshift.layers.resample import PolyphaseDown
from trueshift.layers.spec import Sampling
from trueshift.layers.window import phase_window
from trueshift.models.features import Step
from trueshift.padding import pad


def build_down(
    spec: Sampling, channels: int, stride: int, input_channels: int
) -> PolyphaseDown | None:
    """Build the layer that samples after an operation; ``None`` if that strides by itself."""
    if stride == 1 or spec.is_plain:
        return None
    return spec.down(channels, stride, input_channels=input_channels)


def conv_and_sample(
    conv: SameConv, norm: nn.Module, down: PolyphaseDown | None, x: Tensor, stride: int, select: str
) -> tuple[Tensor, Step]:
    """Convolve, normalize, apply ReLU and down-sample."""
    if down is None:
        return sample(None, F.relu(norm(conv(x)), inplace=True), x, stride)
    known = (down.choose(x),) if select == "input" else ()
    if known and down.antialias is None:
        y = F.relu(norm(conv.at(down.fit(x), *known, stride)), inplace=True)
        return y, _step(*known, x, stride)

    def dense(part: Tensor, phase: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return down(F.relu(norm(conv(part)), inplace=True), phase, return_phase=True)

    return _sample_dense(dense, x, known, conv.out_channels, norm.training, stride)


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
        return sample(None, pool(x if even else pad(x, widths, mode), 2, 2), x, 2)
    known = (down.choose(x),) if select == "input" else ()
    kept_only = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
    if known and down.antialias is None and kept_only and not known[0].dtype.is_floating_point:
        y = pool(phase_window(down.fit(x), *known, (2,) * dim, widths, mode), 2, 2)
        return y, _step(*known, x, 2)

    def dense(part: Tensor, phase: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return down(max_filter(pad(part, widths, mode), 2), phase, return_phase=True)

    return _sample_dense(dense, x, known, x.shape[1], down.training, 2)


def _sample_dense(
    dense: Callable[..., tuple[Tensor, Tensor]],
    x: Tensor,
    known: tuple[Tensor, ...],
    channels: int,
    training: bool,
    stride: int,
) -> tuple[Tensor, Step]:
    """Make a map of the size of ``x`` and down-sample it; at test time a few images at a time."""
    if training:  # batch norms look at the whole batch
        y, phase = dense(x, *known)
    else:
        y, phase = by_chunks(dense, x, *known, per_image=channels * math.prod(x.shape[2:]))
    return y, _step(phase, x, stride)


def sample(down: nn.Module | None, x: Tensor, before: Tensor, stride: int) -> tuple[Tensor, Step]:
    """Down-sample ``x``, or note that the operation before did so by a plain stride.

    Args:
        down: A :class:`PolyphaseDown` that selects; ``None`` if ``x`` is down-sampled already.
        x: The map.
        before: The map that still has the size before down-sampling.
        stride: Sampling factor of all axes.

    Returns:
        The down-sampled map and the step.
    """
    if down is not None:
        x, phase = down(x, return_phase=True)
    else:
        phase = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
    return x, _step(phase, before, stride)


def _step(phase: Tensor, before: Tensor, stride: int) -> Step:
    size = tuple(before.shape[2:])
    return Step(phase, (stride,) * len(size), size)
