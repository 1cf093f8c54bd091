"""Memory formats of maps and of what is cut from them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trueshift.exact import channels_last, last_format


def channels_innermost(x: Tensor) -> bool:
    """Whether ``x`` is stored channels-last or was cut from such a map."""
    return x.ndim in (4, 5) and x.stride(1) == 1 and not x.is_contiguous()


def empty_map(y: Tensor, sizes: Sequence[int]) -> Tensor:
    """Allocate a map of other spatial sizes, in the memory format of ``y``."""
    layout = last_format(y.ndim) if channels_last(y) else torch.contiguous_format
    shape = (*y.shape[:2], *sizes)
    return torch.empty(shape, dtype=y.dtype, device=y.device, memory_format=layout)
