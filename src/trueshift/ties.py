"""The hard choice of a phase, with ties broken so that the choice still moves with the map.

The paper's proofs need a unique largest logit. ``x = [1, 1, 0, 0]`` at stride 2 has two equal
components and no symmetry: every score of single components ties, and taking the lowest index is
not equivariant. Among the tied phases we take the one from which the *whole* map, seen from its
best position, has the largest fingerprint. Equal fingerprints mean that the map equals itself
shifted; then both phases give the same component.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trueshift._adjoint import offset_blocks

# Arithmetic modulo a prime below 2**31: products of two residues fit in int64, and integer sums are
# exact in any order, on any device and in any runtime.
_PRIME = 2**31 - 1
_BASES = (1_103_515_245, 1_664_525, 214_013)
_MIX = 48_271
_DIGIT = 2.0**26


def argmax_phase(logits: Tensor, x: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Return the phase of the largest logit, ties broken equivariantly (paper section 4.1, k-star).

    Args:
        logits: ``(B, P)``; must permute with the shift of ``x`` (equation 9).
        x: The feature map ``(B, C, *spatial)`` that the logits were computed from.
        stride: Sampling factor of each axis.

    Returns:
        Hard phase ``(B,)``. A shift of ``x`` moves it along, whenever the shifted map differs from
        ``x``.
    """
    tied = logits == logits.amax(1, keepdim=True)
    # A traced graph cannot branch on values, so there the fingerprints are always computed.
    if torch.compiler.is_compiling() or bool((tied.sum(1) > 1).any()):
        logits = torch.where(tied, _fingerprints(x, stride), -1)
    return logits.argmax(1)


def _fingerprints(x: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Largest fingerprint of the map over the positions of each phase: int64 ``(B, P)``."""
    code = _codes(x)
    for axis, base in zip(range(1, x.ndim - 1), _BASES, strict=False):
        code = _rolling(code, axis, base)
    blocks = offset_blocks(code[:, None], stride)  # (B, 1, s, s, h, w)
    dim = len(stride)
    return blocks.amax(tuple(range(2 + dim, 2 + 2 * dim))).reshape(x.shape[0], math.prod(stride))


def _codes(x: Tensor) -> Tensor:
    """Hash the channels of every pixel to one residue: int64 ``(B, *spatial)``."""
    wide = x.to(torch.float32 if x.device.type == "mps" else torch.float64)
    largest = wide.abs().amax(tuple(range(1, x.ndim)), keepdim=True)
    scaled = torch.where(largest > 0, wide / largest, 0.0) * _DIGIT
    high = scaled.floor()
    low = ((scaled - high) * _DIGIT).floor()
    channel = torch.arange(1, x.shape[1] + 1, device=x.device)
    code = torch.zeros_like(x[:, 0], dtype=torch.int64)
    for digit, salt in ((high, _BASES[0]), (low, _BASES[1])):
        weight = channel * salt % _PRIME * _MIX % _PRIME  # (C,)
        weight = weight.view(-1, *[1] * (x.ndim - 2))
        code = code + (digit.long() % _PRIME * weight % _PRIME).sum(1)
    code = code % _PRIME
    return (code * code + _MIX) % _PRIME


def _rolling(code: Tensor, axis: int, base: int) -> Tensor:
    """Fold a whole axis, as seen from every position, into that position.

    Doubling: after ``r`` rounds every position knows the ``2 ** r`` values that follow it, in
    order.
    """
    size = code.shape[axis]
    rounds = (size - 1).bit_length() if isinstance(size, int) else 16
    for r in range(rounds):
        ahead = code.roll(-(2**r), axis)
        code = (code + ahead * pow(base, 2**r, _PRIME)) % _PRIME
    return (code * code + _MIX) % _PRIME
