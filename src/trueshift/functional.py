"""Sections 3 and 4 of the paper as pure functions.

Letters, used in every docstring and shape comment of the package:

* ``B`` batch, ``C`` channels, ``P`` number of phases (the product of the strides);
* ``H, W`` sizes before sampling, ``h, w`` sizes after it; ``*spatial`` stands for one to three
  axes;
* ``phase``: which polyphase component of each image. Hard: int64 ``(B,)``. Soft: floating ``(B,
  P)``, rows summing to 1. Components are counted row-major: ``k = i * stride + j`` in 2-D.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trueshift import _adjoint as adjoint
from trueshift._chunks import by_chunks
from trueshift._validate import Stride, check_divisible, check_map, check_phase, stride_per_axis

__all__ = [
    "order_free_mean",
    "polyphase_down",
    "polyphase_merge",
    "polyphase_split",
    "polyphase_up",
]


def polyphase_split(x: Tensor, stride: Stride) -> Tensor:
    """Split a feature map into its polyphase components (paper section 3, Poly(x)_k).

    Component ``k = i * stride + j`` holds rows ``i, i + stride, ...`` and columns ``j, j + stride,
    ...``.

    Args:
        x: Feature map ``(B, C, *spatial)``, every spatial size divisible by its stride.
        stride: Sampling factor of all axes, or one per axis.

    Returns:
        Components ``(B, P, C, *spatial // stride)``.

    Examples:
        >>> x = torch.arange(16.0).view(1, 1, 4, 4)
        >>> polyphase_split(x, stride=2)[0, 1, 0]  # even rows, odd columns
        tensor([[ 1.,  3.],
                [ 9., 11.]])
    """
    check_map("polyphase_split", x)
    steps = stride_per_axis("polyphase_split", stride, x.ndim - 2)
    check_divisible("polyphase_split", x, steps)
    return adjoint.component_view(x, steps).flatten(1, len(steps))


def polyphase_merge(components: Tensor, stride: Stride) -> Tensor:
    """Interleave polyphase components; the inverse of :func:`polyphase_split`.

    Args:
        components: ``(B, P, C, *spatial)``.
        stride: Sampling factor of all axes, or one per axis; their product is ``P``.

    Returns:
        Feature map ``(B, C, *spatial * stride)``.

    Examples:
        >>> x = torch.arange(24.0).view(1, 2, 4, 3)
        >>> torch.equal(polyphase_merge(polyphase_split(x, (2, 3)), (2, 3)), x)
        True
    """
    dim = components.ndim - 3
    if dim not in (1, 2, 3):
        raise ValueError(
            "polyphase_merge: components must have 4 to 6 dimensions (B, P, C, *spatial), got"
            f" shape {tuple(components.shape)}."
        )
    steps = stride_per_axis("polyphase_merge", stride, dim)
    if components.shape[1] != math.prod(steps):
        raise ValueError(
            f"polyphase_merge: stride={stride} makes {math.prod(steps)} components, got"
            f" {components.shape[1]} in shape {tuple(components.shape)}."
        )
    sizes = components.shape[3:]
    blocks = components.unflatten(1, steps)  # (B, s, s, C, h, w)
    pairs = [axis for d in range(dim) for axis in (2 + dim + d, 1 + d)]
    merged = [size * step for size, step in zip(sizes, steps, strict=True)]
    return blocks.permute(0, 1 + dim, *pairs).reshape(
        components.shape[0], components.shape[2], *merged
    )


def polyphase_down(x: Tensor, phase: Tensor, stride: Stride) -> Tensor:
    """Keep one polyphase component per image, or mix them (paper section 4.1, LPD).

    Args:
        x: Feature map ``(B, C, *spatial)``, every spatial size divisible by its stride.
        phase: Hard int64 ``(B,)``, or soft floating ``(B, P)`` whose rows weigh the components.
        stride: Sampling factor of all axes, or one per axis.

    Returns:
        ``(B, C, *spatial // stride)``, in the memory format of ``x``.

    Examples:
        >>> x = torch.arange(8.0).view(2, 1, 4)
        >>> polyphase_down(x, torch.tensor([0, 1]), stride=2)
        tensor([[[0., 2.]],
        <BLANKLINE>
                [[5., 7.]]])
    """
    check_map("polyphase_down", x)
    steps = stride_per_axis("polyphase_down", stride, x.ndim - 2)
    check_divisible("polyphase_down", x, steps)
    check_phase("polyphase_down", phase, x, math.prod(steps))
    soft = phase.dtype.is_floating_point
    if soft:
        phase = phase.to(x.dtype)
    if soft and adjoint.mixes_by_convolution(x):
        return adjoint.mix_by_convolution(x, phase, steps, steps)
    if not torch.compiler.is_compiling():
        down: Tensor = (adjoint.SoftDown if soft else adjoint.HardDown).apply(x, phase, steps)
        return down
    if soft:
        return (adjoint.component_view(x, steps) * _per_block(phase, steps)).sum(
            _offset_axes(steps)
        )
    return adjoint.pick(adjoint.offset_blocks(x, steps), phase, steps)


def polyphase_up(y: Tensor, phase: Tensor, stride: Stride) -> Tensor:
    """Put values back where :func:`polyphase_down` took them from (paper section 4.3, LPU).

    Args:
        y: Feature map ``(B, C, *spatial)``.
        phase: The phase that ``y`` was down-sampled with, hard or soft.
        stride: Sampling factor of all axes, or one per axis.

    Returns:
        ``(B, C, *spatial * stride)``: ``y`` at a hard phase and zero elsewhere, or at every phase
        the share of ``y`` that a soft phase says.

    Examples:
        >>> polyphase_up(torch.ones(1, 1, 3), torch.tensor([1]), stride=2)
        tensor([[[0., 1., 0., 1., 0., 1.]]])
    """
    check_map("polyphase_up", y, name="y")
    steps = stride_per_axis("polyphase_up", stride, y.ndim - 2)
    num_phases = math.prod(steps)
    check_phase("polyphase_up", phase, y, num_phases)
    soft = phase.dtype.is_floating_point
    if soft:
        phase = phase.to(y.dtype)
    if not torch.compiler.is_compiling():
        up: Tensor = (adjoint.SoftUp if soft else adjoint.HardUp).apply(y, phase, steps)
        return up
    spread = y[:, None].expand(-1, num_phases, *y.shape[1:])  # (B, P, C, h, w)
    weights = phase if soft else phase[:, None] == torch.arange(num_phases, device=phase.device)
    weights = weights[(..., *[None] * (y.ndim - 1))]
    placed = spread * weights if soft else torch.where(weights, spread, 0.0)
    return polyphase_merge(placed, steps)


def keep_phase(x: Tensor, phase: int | Tensor, stride: tuple[int, ...]) -> Tensor:
    """Like :func:`polyphase_down`, where one integer may stand for the phase of every image."""
    if isinstance(phase, Tensor):
        return polyphase_down(x, phase, stride)
    return x[list(adjoint.phase_slices(stride))[phase]].clone()


def order_free_mean(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Mean whose bits do not depend on the order of the terms.

    Floating-point sums depend on the order of their terms, so the mean of a map and that of the
    shifted map may differ in the last bit, which is enough to change a selection. Here every term
    is first rounded to a common step, taken from the largest term and their number so that no
    partial sum in float64 can round (reproducible summation, Demmel & Nguyen 2013). The step is at
    least ``2 ** 51 / n`` times finer than the largest of ``n`` terms.

    Args:
        x: Any floating tensor.
        dim: Axes to average over.

    Returns:
        The mean in float64 (float32 where the device has no float64).

    Examples:
        >>> x = torch.tensor([1e8, 1.0, -1e8, 0.5])
        >>> order_free_mean(x, 0) == order_free_mean(x.flip(0), 0)
        tensor(True)
    """
    axes = tuple(axis % x.ndim for axis in ((dim,) if isinstance(dim, int) else dim))
    if 0 in axes:
        return _order_free_mean(x, axes)
    per_image = 2 * math.prod(x.shape[1:])  # a float64 takes the place of two
    return by_chunks(lambda part: _order_free_mean(part, axes), x, per_image=per_image)


def _order_free_mean(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    count = math.prod([x.shape[axis] for axis in axes])
    wide = torch.float32 if x.device.type == "mps" else torch.float64
    exact = 0.5 / torch.finfo(wide).eps  # integers up to twice this are exact
    if adjoint.channels_last(x) and axes == tuple(range(2, x.ndim)):
        terms = x.to(wide, copy=True)
    else:  # side by side in memory, the terms are reduced several times faster
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        terms = x.permute(*kept, *axes)
        terms = terms.to(wide, copy=True, memory_format=torch.contiguous_format)
        terms, axes = terms.flatten(len(kept)), (-1,)
    most, least = terms.detach().amax(axes, keepdim=True), terms.detach().amin(axes, keepdim=True)
    largest = torch.maximum(most, -least)
    largest = torch.where(largest > 0, largest, 1.0)
    scaled = terms / largest if terms.requires_grad else terms.div_(largest)
    scaled = scaled.mul_(exact / count)
    # The rounding is invisible to autograd: the gradient is that of the plain mean.
    steps = scaled + (scaled.round() - scaled).detach() if scaled.requires_grad else scaled.round_()
    return (steps.sum(axes, keepdim=True) * (largest / exact)).squeeze(axes)


def _offset_axes(stride: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(range(1, 1 + len(stride)))


def _per_block(phase: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Shape a soft phase ``(B, P)`` to ``(B, *stride, 1, ..., 1)``."""
    return phase.unflatten(1, stride)[(..., *[None] * (1 + len(stride)))]
