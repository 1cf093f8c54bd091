"""Batch norms that overwrite their input where nobody else reads it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trueshift._eager import hooked, in_full_precision, is_batch, only_result

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def normalize(norm: nn.Module, y: Tensor, made_by: nn.Module) -> Tensor:
    """Return ``norm(y)``; at test time it takes the place of ``y``, with the same bits.

    A new map costs about as much to allocate as to compute.

    Args:
        norm: A batch norm; anything else is only called.
        y: ``(B, C, *spatial)``, which nobody reads any more.
        made_by: The module that returned ``y``; if it has hooks, they may keep it.
    """
    mean = norm.running_mean if isinstance(norm, BatchNorm) else None
    if not isinstance(norm, BatchNorm) or mean is None or not _may_overwrite(norm, y, made_by):
        normalized: Tensor = norm(y)
        return normalized
    unused = torch.empty(2, 0, dtype=mean.dtype)  # statistics of the batch
    torch.native_batch_norm(
        y,
        norm.weight,
        norm.bias,
        mean,
        norm.running_var,
        training=False,
        momentum=0.0,
        eps=norm.eps,
        out=(y, *unused),
    )
    return y


def is_pointwise(norm: nn.Module) -> bool:
    """Whether a norm does the same to every pixel at test time, whatever map it stands in."""
    if isinstance(norm, nn.Identity):
        return True
    known = isinstance(norm, BatchNorm) and norm.running_mean is not None
    return known and type(norm).forward is nn.BatchNorm2d.forward and "forward" not in vars(norm)


def fold(
    norm: nn.Module, weight: Tensor, bias: Tensor | None, x: Tensor, conv: nn.Module
) -> tuple[Tensor, Tensor] | None:
    """Return weight and bias with which a convolution also does the work of a norm after it.

    Worth it for batches only, where the weights are few beside the maps, and in full precision.

    Args:
        norm: A batch norm; anything else cannot be folded.
        weight: Weight of the convolution.
        bias: Its bias, or ``None``.
        x: The convolution's input.
        conv: The convolution; its hooks may want to see what it makes.

    Returns:
        ``None`` where the norm must be called.
    """
    if not isinstance(norm, BatchNorm) or not is_batch(x) or not _may_overwrite(norm, x, conv):
        return None
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None or not in_full_precision(weight):
        return None
    scale = (variance + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight
    offset = -mean if bias is None else bias - mean
    offset = offset * scale if norm.bias is None else torch.addcmul(norm.bias, offset, scale)
    return weight * scale.view(-1, *[1] * (weight.ndim - 1)), offset


class Chain(nn.Sequential):
    """Layers in a row; norms among them follow convolutions, whose maps they overwrite."""

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = self
        x, before = first(x), first
        for layer in rest:
            x, before = normalize(layer, x, before), layer
        return x


def _may_overwrite(norm: BatchNorm, y: Tensor, made_by: nn.Module) -> bool:
    watched = hooked(norm) or hooked(made_by)
    usual = type(norm).forward is nn.BatchNorm2d.forward and y.device.type == "cpu"
    return usual and only_result() and not (norm.training or watched)
