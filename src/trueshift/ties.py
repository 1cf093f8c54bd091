"""The hard choice of a phase, with ties broken so that the choice still moves with the map.

The paper's proofs need a unique largest logit. ``x = [1, 1, 0, 0]`` at stride 2 has two equal
components and no symmetry: every score of single components ties, and taking the lowest index is
not equivariant. Among the tied phases we take the one from which the *whole* map, seen from its
best position, has the largest fingerprint. Equal fingerprints mean that the map equals itself
shifted; then both phases give the same component.

The fingerprint is a polynomial in one variable per axis, modulo a prime: integers, so the order of
a sum does not matter, on any device and in any runtime. It takes few operations because an exported
graph holds them for every down-sampling.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Products of two residues fit in int64, and the powers of 2 have (PRIME - 1) / 2 residues or more.
_PRIME = 2**31 - 69
_BASES = (1_103_515_245, 1_664_525, 214_013)  # one for each spatial axis
_CHANNEL_BASE = 1_812_433_253
_TABLE = 4096  # how many powers are at hand; a graph for all sizes serves axes up to this length


def argmax_phase(
    logits: Tensor, x: Tensor | Callable[[], Tensor], stride: tuple[int, ...]
) -> Tensor:
    """Return the phase of the largest logit, ties broken equivariantly (paper section 4.1, k-star).

    Args:
        logits: ``(B, P)``; must permute with the shift of ``x`` (equation 9).
        x: The feature map ``(B, C, *spatial)`` that is to be sampled; or a function that returns
            it, called only if there is a tie to break.
        stride: Sampling factor of each axis.

    Returns:
        Hard phase ``(B,)``. A shift of ``x`` moves it along, whenever the shifted map differs from
        ``x``.
    """
    # A traced graph cannot branch on values, so there the fingerprints are always computed.
    if torch.compiler.is_compiling() or has_tie(logits):
        return break_ties(logits, x if isinstance(x, Tensor) else x(), stride)
    return logits.argmax(1)


def has_tie(logits: Tensor) -> bool:
    """Whether any image has two largest logits; reads values, so it waits for the device."""
    return bool(((logits == logits.amax(1, keepdim=True)).sum(1) > 1).any())


def break_ties(logits: Tensor, x: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Return what :func:`argmax_phase` does, by the same operations whatever the values are."""
    fingerprints = _fingerprints(x, stride)  # (B, P)
    num_phases = logits.shape[1]
    # Where the map repeats itself any tied phase will do: the lowest, in every runtime.
    ranks = fingerprints * num_phases - torch.arange(num_phases, device=x.device)
    tied = logits == logits.amax(1, keepdim=True)
    return torch.where(tied, ranks, -num_phases).argmax(1)


def _fingerprints(x: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Largest fingerprint of the map over the positions of each phase: int64 ``(B, P)``."""
    code = _pixels(x)
    for axis, base in zip(range(1, x.ndim - 1), _BASES, strict=False):
        code = _whole_axis(code, axis, base)
    for axis, step in enumerate(stride, 1):
        code = code.unflatten(axis, (-1, step)).amax(axis)
    return code.flatten(1)


def _pixels(x: Tensor) -> Tensor:
    """Hash the channels of every pixel to one residue: int64 ``(B, *spatial)``."""
    channel = torch.arange(x.shape[1], device=x.device)
    # Between 2**38 and 2**40: neighbouring values differ by more than 1 and none exceeds 2**49,
    # beyond which some vectorized casts are wrong.
    weight = (_powers(_CHANNEL_BASE, channel) + 2**30).double() * 2.0**8
    terms = (_distinct(x) * weight.view(-1, *[1] * (x.ndim - 2))).long()
    return (terms % _PRIME).sum(1) % _PRIME


def _distinct(x: Tensor) -> Tensor:
    """Map different values to different ones of float64, none beyond 2**9, 2**-36 apart or more.

    Only correctly rounded operations, so that all runtimes agree; no bits, which ONNX cannot read.
    """
    if x.dtype != torch.float64:
        size = x.double().abs()
        return x.double().sign() * size.sqrt().sqrt().sqrt().sqrt()
    # The value times 2**1074 is an integer: its residue, which fmod computes exactly. The scale is
    # a tensor because the ONNX exporter rounds numbers to float32.
    prime, scale = torch.tensor([_PRIME, 2.0**537], dtype=torch.float64).unbind()
    x = x.fmod(prime)
    for _ in range(2):
        x = (x * scale).fmod(prime)
    return x * 2.0**-22


def _whole_axis(code: Tensor, axis: int, base: int) -> Tensor:
    """Fold a whole axis, as seen from every position, into that position.

    With ``b`` the base and ``n`` the size, position ``i`` gets the sum of ``b ** k`` times the code
    ``k`` steps after ``i + 1``. That is ``b ** -(i + 1)`` times the sum of ``b ** j`` times the code
    at ``j``, over all ``j``, if those up to ``i`` are counted ``b ** n`` times: a cumulative sum.
    """
    place = torch.arange(code.shape[axis], device=code.device)
    after = [1] * (code.ndim - axis - 1)
    power = _powers(base, place).view(-1, *after)
    inverse = _powers(pow(base, -1, _PRIME), place).view(-1, *after)
    terms = code * power % _PRIME
    wrapped = terms.cumsum(axis) % _PRIME * (power[-1] - 1)
    return (terms.sum(axis, keepdim=True) + wrapped) % _PRIME * inverse % _PRIME


def _powers(base: int, exponent: Tensor) -> Tensor:
    """Return ``base ** (exponent + 1)`` as residues, for an exponent counted up from 0."""
    table, size = _TABLES[base], exponent.shape[0]
    if isinstance(size, int) and size > _TABLE:
        table = _table(base, size)
    # A copy that waits would make the host wait for the device.
    return table.to(exponent.device, non_blocking=True).index_select(0, exponent)


def _table(base: int, size: int) -> Tensor:
    powers = torch.tensor([base])
    while len(powers) < size:
        powers = torch.cat([powers, powers * pow(base, len(powers), _PRIME) % _PRIME])
    return powers


_TABLES = {
    base: _table(base, _TABLE)
    for one in (_CHANNEL_BASE, *_BASES)
    for base in (one, pow(one, -1, _PRIME))
}
