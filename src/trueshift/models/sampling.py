"""An operation and the down-sampling after it, as one: the phase is chosen after it or before it.

Chosen after it, as in the paper, the operation must run on the whole map. Chosen before it, from
the components of its input, only what is kept need be computed: a strided operation.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
    if down is None or select == "output":
        return sample(down, F.relu(norm(conv(x)), inplace=True), x, stride)
    phase = down.choose(x)
    if down.antialias is None:
        y = F.relu(norm(conv.at(down.fit(x), phase, stride)), inplace=True)
    else:
        y = down(F.relu(norm(conv(x)), inplace=True), phase=phase)
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
        return sample(None, pool(x if even else pad(x, widths, mode), 2, 2), x, 2)
    if select == "output":
        return sample(down, max_filter(pad(x, widths, mode), 2), x, 2)
    phase = down.choose(x)
    kept_only = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
    if down.antialias is None and kept_only and not phase.dtype.is_floating_point:
        y = pool(phase_window(down.fit(x), phase, (2,) * dim, widths, mode), 2, 2)
    else:
        y = down(max_filter(pad(x, widths, mode), 2), phase=phase)
    return y, _step(phase, x, 2)


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
