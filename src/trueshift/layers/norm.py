"""Batch norms that overwrite their input where nobody else reads it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trueshift.layers.eager import hooked, only_result

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
