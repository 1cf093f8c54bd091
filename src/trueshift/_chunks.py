"""Work on a few images at a time, so that large intermediates stay in the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

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
    per_image = _counted(maps[0], per_image)
    if not only_result() or not _is_large(maps[0], per_image):
        return fn(*maps)
    parts = [fn(*chunk) for chunk in chunks(*maps, per_image=per_image)]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    return tuple(torch.cat(results) for results in zip(*parts, strict=True))


def by_chunks_twice(
    fn: Callable[..., Tensor], *maps: Tensor, per_image: int | None = None
) -> Tensor:
    """Apply ``fn`` to a few images at a time while training, and again in the backward pass.

    What it makes on the way is not kept. Large maps that only take a pass or two through memory are
    made quicker twice than once into memory that was never used.

    Args:
        fn: As for :func:`by_chunks`, with one result; it must not draw random numbers.
        maps: As for :func:`by_chunks`.
        per_image: As for :func:`by_chunks`.
    """
    per_image = _counted(maps[0], per_image)
    if not (_may_checkpoint() and _is_large(maps[0], per_image)):
        return fn(*maps)
    parts = [
        checkpoint(fn, *chunk, use_reentrant=False, preserve_rng_state=False)
        for chunk in chunks(*maps, per_image=per_image)
    ]
    return torch.cat(parts)


def chunks(*maps: Tensor, per_image: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield a few images of every map at a time; arguments as for :func:`by_chunks`."""
    size = max(1, _CHUNK_ELEMENTS // per_image)
    yield from zip(*(m.split(size) for m in maps), strict=True)


def _counted(x: Tensor, per_image: int | None) -> int:
    return math.prod(x.shape[1:]) if per_image is None else per_image


def _may_checkpoint() -> bool:
    if torch.compiler.is_compiling():
        return False
    hooks = torch._C._autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]
    return bool(hooks)  # torch.func takes none


def _is_large(x: Tensor, per_image: int) -> bool:
    return x.device.type == "cpu" and x.shape[0] * per_image > _CHUNK_ELEMENTS
