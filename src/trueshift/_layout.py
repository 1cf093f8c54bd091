"""How maps lie in memory: in the default order or channels-last."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def channels_last(x: Tensor) -> bool:
    """Tell whether ``x`` is laid out channels-last (and not also in the default order)."""
    if x.is_contiguous() or x.ndim not in (4, 5):
        return False
    return x.is_contiguous(memory_format=last_format(x.ndim))


def channels_innermost(x: Tensor) -> bool:
    """Tell whether ``x`` is laid out channels-last or was cut from such a map."""
    return x.ndim in (4, 5) and x.stride(1) == 1 and not x.is_contiguous()


def last_format(ndim: int) -> torch.memory_format:
    """Return the channels-last format for tensors of ``ndim`` axes (the default one in 1-D)."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return formats.get(ndim, torch.contiguous_format)


def empty_map(y: Tensor, sizes: Sequence[int]) -> Tensor:
    """Allocate a map of other spatial sizes, in the layout of ``y``."""
    layout = last_format(y.ndim) if channels_last(y) else torch.contiguous_format
    shape = (*y.shape[:2], *sizes)
    return torch.empty(shape, dtype=y.dtype, device=y.device, memory_format=layout)
