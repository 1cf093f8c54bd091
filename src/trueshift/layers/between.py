"""Up-sampling by 2 with a filter of three taps: what lies between two values is their mean."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from trueshift._adjoint import Slices, component_view, empty_map
from trueshift.padding import pad


def fill_between(y: Tensor, phase: Tensor, mode: str) -> Tensor:
    """Place a map at hard phases of stride 2 and filter with Tri-3, scaled to keep the mean.

    No zero is placed and read again. Every value is a mean that is computed in the same way
    wherever it stands.

    Args:
        y: ``(B, C, *spatial)``.
        phase: Hard ``(B,)``.
        mode: Border, ``"circular"`` or ``"zeros"``.

    Returns:
        ``(B, C, *spatial * 2)``.

    Examples:
        >>> fill_between(torch.tensor([[[1.0, 3.0]]]), torch.tensor([0]), "circular")
        tensor([[[1., 2., 3., 2.]]])
    """
    dim = y.ndim - 2
    means = _means(pad(y, ((1, 1),) * dim, mode))
    out = empty_map(y, [2 * size for size in y.shape[2:]])
    components = component_view(out, (2,) * dim)  # (B, 2, 2, C, h, w)
    places = list(itertools.product((0, 1), repeat=dim))
    for image, (parts, place) in enumerate(zip(components, phase.tolist(), strict=True)):
        offsets = places[place]
        for between, source in means.items():
            there = tuple(o ^ b for o, b in zip(offsets, between, strict=True))
            starts = [1 - (o & b) for o, b in zip(offsets, between, strict=True)]
            here: Slices = tuple(slice(i, i + n) for i, n in zip(starts, y.shape[2:], strict=True))
            parts[there].copy_(source[image][(..., *here)])
    return out


def _means(x: Tensor) -> dict[tuple[int, ...], Tensor]:
    """Return, for every set of axes, the means of neighbours along these axes."""
    means = {(0,) * (x.ndim - 2): x}
    for bits in itertools.islice(itertools.product((0, 1), repeat=x.ndim - 2), 1, None):
        axis = len(bits) - 1 - bits[::-1].index(1)
        before = means[(*bits[:axis], 0, *bits[axis + 1 :])]
        size = before.shape[2 + axis] - 1
        pair = before.narrow(2 + axis, 0, size), before.narrow(2 + axis, 1, size)
        means[bits] = torch.add(*pair).mul_(0.5)
    return means
