"""Work on a few images at a time, so that large intermediates stay in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trueshift._cpu.conditions import LIMITS


def by_chunks(fn: Callable[..., Tensor], *maps: Tensor, per_image: int) -> Tensor:
    """Apply ``fn`` to a few images at a time, where no backward pass follows.

    Args:
        fn: Every image of its result must depend on that image of its arguments alone.
        maps: Tensors that begin with the batch axis.
        per_image: Elements that ``fn`` computes for an image.
    """
    if torch.is_grad_enabled() or maps[0].shape[0] * per_image <= LIMITS.chunk:
        return fn(*maps)
    return torch.cat([fn(*chunk) for chunk in chunks(*maps, per_image=per_image)])


def by_chunks_twice(fn: Callable[..., Tensor], *maps: Tensor, per_image: int) -> Tensor:
    """Apply ``fn`` to a few images at a time, and again in the backward pass.

    Intermediates are not kept. Large maps that only take a pass or two through memory are computed
    faster twice than once into memory that was never used.

    Args:
        fn: As for :func:`by_chunks`; it must not draw random numbers.
        maps: As for :func:`by_chunks`.
        per_image: As for :func:`by_chunks`.
    """
    if not _may_checkpoint() or maps[0].shape[0] * per_image <= LIMITS.chunk:
        return fn(*maps)
    parts = [
        checkpoint(fn, *chunk, use_reentrant=False, preserve_rng_state=False)
        for chunk in chunks(*maps, per_image=per_image)
    ]
    return torch.cat(parts)


def chunks(*maps: Tensor, per_image: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield a few images of every map at a time; arguments as for :func:`by_chunks`."""
    size = max(1, LIMITS.chunk // per_image)
    yield from zip(*(m.split(size) for m in maps), strict=True)


def _may_checkpoint() -> bool:
    hooks = torch._C._autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]
    return torch.is_grad_enabled() and bool(hooks)  # torch.func takes none
