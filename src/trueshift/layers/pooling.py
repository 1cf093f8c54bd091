"""Global pooling whose result does not depend on positions."""

from __future__ import annotations

from torch import Tensor, nn

from trueshift._validate import check_map
from trueshift.exact import order_free_mean


class GlobalAvgPool(nn.Module):
    """Mean over space; at test time bitwise equal for every circular shift of the map.

    A plain mean sums in an order that a shift changes, and with it the last bits. While training
    the plain mean is used.

    Shape:
        ``(B, C, *spatial)`` to ``(B, C)``.
    """

    def forward(self, x: Tensor) -> Tensor:
        check_map("GlobalAvgPool", x)
        axes = tuple(range(2, x.ndim))
        return x.mean(axes) if self.training else order_free_mean(x, axes).to(x.dtype)
