"""When kernels pay: every threshold, the questions that conditions ask, and work in chunks."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trueshift.exact import channels_last, last_format


@dataclass
class Limits:
    """The thresholds, in elements of a map unless said otherwise; measured on AVX2 and AVX-512.

    Attributes:
        chunk: What is computed at a time, so that intermediates stay in the cache.
        window: From this size of an image on, its window is copied instead of gathered;
            while gradients are recorded, it always is.
        fill: From this size of an image on, up-sampling fills the gaps between values itself.
        close: Scores closer than this share of the sum of their terms' absolute values are computed
            again with exact sums; torch's float32 sums, which add parts of parts, err less.
    """

    chunk: int = 2**21
    window: int = 2**12
    fill: int = 2**13
    close: float = 2.0**-16


LIMITS = Limits()


@contextlib.contextmanager
def limits(**changes: float) -> Iterator[None]:
    """Change thresholds for a while, so that a test can take either side of each."""
    before = dataclasses.asdict(LIMITS)
    unknown = changes.keys() - before.keys()
    if unknown:
        raise ValueError(f"limits: unknown {sorted(unknown)}. Choose from: {', '.join(before)}.")
    try:
        vars(LIMITS).update(changes)
        yield
    finally:
        vars(LIMITS).update(before)


def differentiates(*tensors: Tensor | int | None) -> bool:
    """Whether a backward pass through one of the tensors may follow."""
    if not torch.is_grad_enabled():
        return False
    return any(isinstance(t, Tensor) and t.requires_grad for t in tensors)


def full_precision(x: Tensor) -> bool:
    """Whether what is computed from a tensor is computed in float32 or float64."""
    wide = x.dtype in (torch.float32, torch.float64)
    return wide and not torch.is_autocast_enabled(x.device.type)


def image_size(x: Tensor) -> int:
    """Return the number of elements of one image."""
    return math.prod(x.shape[1:])


def channels_innermost(x: Tensor) -> bool:
    """Whether ``x`` is stored channels-last or was cut from such a map."""
    return x.ndim in (4, 5) and x.stride(1) == 1 and not x.is_contiguous()


def empty_map(y: Tensor, sizes: Sequence[int]) -> Tensor:
    """Allocate a map of other spatial sizes, in the memory format of ``y``."""
    layout = last_format(y.ndim) if channels_last(y) else torch.contiguous_format
    shape = (*y.shape[:2], *sizes)
    return torch.empty(shape, dtype=y.dtype, device=y.device, memory_format=layout)


def by_chunks(
    fn: Callable[..., Tensor], *maps: Tensor, per_image: int, twice: bool = False
) -> Tensor:
    """Apply ``fn`` to a few images at a time, so that large intermediates stay in the cache.

    Args:
        fn: Every image of its result must depend on that image of its arguments alone.
        maps: Tensors that begin with the batch axis.
        per_image: Elements that ``fn`` computes for an image.
        twice: While gradients are recorded, do so too and compute each part again in the backward
            pass. Large maps that only take a pass or two through memory are computed faster twice
            than once into memory that was never used.
    """
    if maps[0].shape[0] * per_image <= LIMITS.chunk:
        return fn(*maps)
    if not torch.is_grad_enabled():
        return torch.cat([fn(*part) for part in chunks(*maps, per_image=per_image)])
    if not (twice and torch._C._autograd._saved_tensors_hooks_is_enabled()):  # type: ignore[attr-defined]
        return fn(*maps)
    parts = [
        checkpoint(fn, *part, use_reentrant=False, preserve_rng_state=False)
        for part in chunks(*maps, per_image=per_image)
    ]
    return torch.cat(parts)


def chunks(*maps: Tensor, per_image: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield a few images of every map at a time; arguments as for :func:`by_chunks`."""
    size = max(1, LIMITS.chunk // per_image)
    yield from zip(*(m.split(size) for m in maps), strict=True)
