"""Work on a few images at a time, so that large intermediates stay in the cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from trueshift._eager import only_result

Maps = TypeVar("Maps", Tensor, tuple[Tensor, ...])

_CHUNK_ELEMENTS = 2**21


def by_chunks(fn: Callable[..., Maps], *maps: Tensor, per_image: int | None = None) -> Maps:
    """Apply ``fn`` to a few images at a time where nothing is kept for a backward pass.

    Args:
        fn: Takes the maps and returns one or several; every image of its result must depend on
            that image of its arguments alone.
        maps: Tensors that begin with the batch axis.
        per_image: Elements that ``fn`` makes of an image; ``None`` counts those of the first map.
    """
    first = maps[0]
    per_image = math.prod(first.shape[1:]) if per_image is None else per_image
    if not only_result() or first.device.type != "cpu":
        return fn(*maps)
    if first.shape[0] * per_image <= _CHUNK_ELEMENTS or per_image == 0:
        return fn(*maps)
    size = max(1, _CHUNK_ELEMENTS // per_image)
    parts = [fn(*chunk) for chunk in zip(*(m.split(size) for m in maps), strict=True)]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    return tuple(torch.cat(results) for results in zip(*parts, strict=True))
