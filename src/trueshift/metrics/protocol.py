"""Which pairs of shifts are compared: drawn at random for every image, or all of them."""

from __future__ import annotations

import torch
from torch import Tensor


def random_pairs(
    num_images: int, num_pairs: int, max_shift: int, generator: torch.Generator
) -> Tensor:
    """Draw h1, w1, h2, w2 uniformly from ``0..max_shift`` (inclusive) for every image.

    Images come first in the stream of random numbers: the draws do not depend on how images are
    batched.

    Args:
        num_images: Number of images, ``B``.
        num_pairs: Number of pairs per image.
        max_shift: Largest shift.
        generator: Source of randomness; the global one is left alone.

    Returns:
        int64 ``(B, num_pairs, 2, 2)``: image, pair, first or second view, (vertical, horizontal).

    Examples:
        >>> random_pairs(4, 3, max_shift=32, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([4, 3, 2, 2])
    """
    return torch.randint(0, max_shift + 1, (num_images, num_pairs, 2, 2), generator=generator)


def process_generator(seed: int) -> torch.Generator:
    """Return a CPU generator of its own, seeded with ``seed`` plus the rank of this process.

    Examples:
        >>> process_generator(3).initial_seed()
        3
    """
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank = torch.distributed.get_rank() if distributed else 0
    return torch.Generator().manual_seed(seed + rank)
