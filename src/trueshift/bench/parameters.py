"""Parameters of networks, and how many of them sample (paper table 4)."""

from __future__ import annotations

import torch
from torch import nn

from trueshift import models
from trueshift.layers.filters import AdaptiveBlur
from trueshift.layers.selectors import ConvSelector
from trueshift.layers.spec import Sampling

_TABLE_4_WIDTHS = (8, 8, 16, 32, 64)


def count_parameters(network: nn.Module) -> dict[str, int]:
    """Count all parameters, and those of selectors and adaptive filters.

    Returns:
        ``"total"`` and ``"pooling"``.
    """
    pooling = [m for m in network.modules() if isinstance(m, AdaptiveBlur | ConvSelector)]
    return {
        "total": sum(p.numel() for p in network.parameters()),
        "pooling": sum(p.numel() for module in pooling for p in module.parameters()),
    }


def count_table_4(method: str, antialias: str | None) -> dict[str, int]:
    """Count the parameters of the ResNet-101 of table 4, without allocating them.

    Examples:
        >>> count_table_4("lps", "tri3")
        {'total': 42966730, 'pooling': 446080}
    """
    with torch.device("meta"):
        spec = Sampling(method, antialias, hidden=_TABLE_4_WIDTHS)
        return count_parameters(models.resnet101(spec, num_classes=10))
