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

from trueshift._dispatch import formula

# Products of two residues fit in int64, and the powers of 2 have (PRIME - 1) / 2 residues or more.
_PRIME = 2**31 - 69
_BASES = (1_103_515_245, 1_664_525, 214_013)  # one for each spatial axis
_CHANNEL_BASE = 1_812_433_253
_TABLE = 4096  # how many powers are at hand; a graph for all sizes serves axes up to this length


TieBreaker = Tensor | Callable[[], Tensor]


@formula
def argmax_phase(logits: Tensor, x: TieBreaker, stride: tuple[int, ...]) -> Tensor:
    """Return the phase of the largest logit, ties broken equivariantly (paper section 4.1, k-star).

    Args:
        logits: ``(B, P)``; must permute with the shift of ``x`` (paper section 4.1).
        x: The feature map ``(B, C, *spatial)`` that is to be sampled, further axes before those of
            the stride allowed; or a function that returns it, called only if needed.
        stride: Sampling factor of each axis.

    Returns:
        Hard phase ``(B,)``. A shift of ``x`` moves it along, whenever the shifted map differs from
        ``x``.
    """
    # A graph cannot branch on values and an accelerator should not, so there is no test for ties.
    return break_ties(logits, x if isinstance(x, Tensor) else x(), stride)


def break_ties(logits: Tensor, x: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Return what :func:`argmax_phase` does, by the same operations whatever the values are."""
    stride = (1,) * (x.ndim - 2 - len(stride)) + stride  # axes that the scored map does not have
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
    sizes = [n for size, s in zip(x.shape[2:], stride, strict=True) for n in (size // s, s)]
    blocks = code.reshape(x.shape[0], *sizes)  # (B, h, s, w, s)
    return blocks.amax(tuple(range(1, blocks.ndim, 2))).flatten(1)


def _pixels(x: Tensor) -> Tensor:
    """Hash the channels of every pixel to one residue: int64 ``(B, *spatial)``."""
    weight = _look_up(_weights, _CHANNEL_BASE, torch.arange(x.shape[1], device=x.device))
    terms = (_distinct(x) * _before(weight, x.ndim - 2)).long()
    return (terms % _PRIME).sum(1) % _PRIME


def _distinct(x: Tensor) -> Tensor:
    """Map different values to different ones of float64: up to 2**9, at least 2**-36 apart.

    Only correctly rounded operations, so that all runtimes agree; no bits, which ONNX cannot read.
    """
    if x.dtype != torch.float64:
        x = x.double()
        return x.sign() * x.abs().sqrt().sqrt().sqrt().sqrt()
    # The value times 2**1074 is an integer: its residue, which fmod computes exactly. The numbers
    # are tensors because the ONNX exporter rounds Python's to float32.
    prime, scale = torch.tensor([_PRIME, 2.0**537], dtype=torch.float64).unbind()
    x = x.fmod(prime)
    for _ in range(2):
        x = (x * scale).fmod(prime)
    return x * 2.0**-22


def _whole_axis(code: Tensor, axis: int, base: int) -> Tensor:
    """Fold a whole axis, as seen from every position, into that position.

    With base ``b`` and size ``n``, position ``i`` gets the sum of ``b ** k`` times the code that is
    ``k`` steps after ``i + 1``. That is ``b ** -(i + 1)`` times the sum over all positions ``j`` of
    ``b ** j`` times the code at ``j``, those up to ``i`` times ``b ** n``: a cumulative sum.
    """
    place, after = torch.arange(code.shape[axis], device=code.device), code.ndim - axis - 1
    power = _before(_look_up(_powers, base, place), after)
    inverse = _before(_look_up(_powers, pow(base, -1, _PRIME), place), after)
    terms = code * power % _PRIME
    wrapped = terms.cumsum(axis) % _PRIME * (power[-1] - 1)
    return (terms.sum(axis, keepdim=True) + wrapped) % _PRIME * inverse % _PRIME


def _before(vector: Tensor, num_axes: int) -> Tensor:
    """Add axes of one element after that of a vector."""
    for _ in range(num_axes):
        vector = vector.unsqueeze(-1)
    return vector


def _powers(base: int, size: int) -> Tensor:
    """The residues of ``base ** 1`` to ``base ** size`` or beyond."""
    powers = torch.tensor([base])
    while len(powers) < size:
        powers = torch.cat([powers, powers * pow(base, len(powers), _PRIME) % _PRIME])
    return powers


def _weights(base: int, size: int) -> Tensor:
    """The same from 2**38 to 2**40, in float64.

    Products with what :func:`_distinct` returns then differ by more than 1, and remain below 2**51,
    beyond which some vectorized casts to int64 are wrong.
    """
    return (_powers(base, size) + 2**30).double() * 2.0**8


def _look_up(make: Callable[[int, int], Tensor], base: int, place: Tensor) -> Tensor:
    """Return the elements of a table at places counted up from 0."""
    table, size = _TABLES[base], place.shape[0]
    if isinstance(size, int) and size > _TABLE:
        table = make(base, size)
    # A copy that blocks would make the host wait for the device.
    return table.to(place.device, non_blocking=True).index_select(0, place)


_TABLES = {base: _powers(base, _TABLE) for b in _BASES for base in (b, pow(b, -1, _PRIME))}
_TABLES[_CHANNEL_BASE] = _weights(_CHANNEL_BASE, _TABLE)
