"""The hard choice of a phase, with ties broken so that the choice still moves with the map.

The paper's proofs need a unique largest logit. ``x = [1, 1, 0, 0]`` at stride 2 has two equal
components and no symmetry: every score of single components ties, and taking the lowest index is
not equivariant. Among the tied phases we take the one from which the *whole* map, seen from its
best position, has the largest fingerprint. Equal fingerprints mean that the map equals itself
shifted; then both phases give the same component.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from trueshift._dispatch import formula
from trueshift.windows import axis_length, offset_blocks

# Arithmetic modulo a prime below 2**31: products of two residues fit in int64, and integer sums are
# exact in any order, on any device and in any runtime.
_PRIME = 2**31 - 1
_BASES = (1_103_515_245, 1_664_525, 214_013)
_MIX = 48_271
_DIGIT = 2**26
_RADIX = 8  # an exported graph holds every round: fewer and wider ones make it smaller
_ROUNDS = 4  # enough for 4096 pixels along an axis


@formula
def argmax_phase(
    logits: Tensor, x: Tensor | Callable[[], Tensor], stride: tuple[int, ...]
) -> Tensor:
    """Return the phase of the largest logit, ties broken equivariantly (paper section 4.1, k-star).

    Args:
        logits: ``(B, P)``; must permute with the shift of ``x`` (equation 9).
        x: The feature map ``(B, C, *spatial)`` that is to be sampled, further axes before those of
            the stride allowed; or a function that returns it, called only if needed.
        stride: Sampling factor of each axis.

    Returns:
        Hard phase ``(B,)``. A shift of ``x`` moves it along, whenever the shifted map differs from
        ``x``.
    """
    # A graph cannot branch on values and an accelerator should not, so there is no test for ties.
    return break_ties(logits, x, stride)


def break_ties(logits: Tensor, x: Tensor | Callable[[], Tensor], stride: tuple[int, ...]) -> Tensor:
    """Return the phase of the largest logit; among equal ones that of the largest fingerprint."""
    x = x if isinstance(x, Tensor) else x()
    stride = (1,) * (x.ndim - 2 - len(stride)) + stride  # axes that the scored map does not have
    num_phases = logits.shape[1]
    index = torch.arange(num_phases, device=x.device)
    # Where the map repeats itself any tied phase will do: the lowest, in every runtime.
    ranks = _fingerprints(x, stride) * num_phases - index
    tied = logits == logits.amax(1, keepdim=True)
    return torch.where(tied, ranks, -num_phases).argmax(1)


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
    bits = _bits(x)
    channel = torch.arange(1, x.shape[1] + 1, device=x.device).view(-1, *[1] * (x.ndim - 2))
    high, low = bits // _DIGIT % _PRIME, bits % _DIGIT
    terms = high * (channel * _BASES[0] % _PRIME) + low * (channel * _BASES[1] % _PRIME)
    return _scramble((terms % _PRIME).sum(1) % _PRIME)


def _bits(x: Tensor) -> Tensor:
    """Tell all values apart, zeros of both signs excepted: the bits of each as one int64."""
    x = x.to(torch.promote_types(x.dtype, torch.float32)) + 0.0
    if not torch.onnx.is_in_onnx_export():
        return x.view(torch.int64 if x.dtype == torch.float64 else torch.int32).long()
    # ONNX cannot look at bits: the same integer, from exponent and mantissa of a float32.
    size = x.double().abs()
    powers = torch.tensor([2.0**e for e in range(-126, 128)], dtype=torch.float64, device=x.device)
    guess = (size.clamp_min(2.0**-126).log2().floor().long() + 126).clamp(0, 253)
    unit = powers[guess]  # the logarithm is rounded: off by one beside a power of two
    exponent = (guess + (size >= 2 * unit).long() - (size < unit).long()).clamp_min(0)
    mantissa = ((size / powers[exponent] - 1) * 2.0**23).long()
    subnormal = (size * 2.0**75 * 2.0**74).long()  # the exporter keeps constants in float32
    field = torch.where(size < 2.0**-126, subnormal, (exponent + 1) * 2**23 + mantissa)
    return torch.where(x < 0, field - 2**31, field)


def _rolling(code: Tensor, axis: int, base: int) -> Tensor:
    """Fold a whole axis, as seen from every position, into that position.

    After ``r`` rounds every position knows the ``_RADIX ** r`` values from it on, in order.
    """
    size, after = code.shape[axis], [1] * (code.ndim - axis)
    place, length = torch.arange(size, device=code.device), axis_length(size, code.device)
    steps = [[_RADIX**r * k for k in range(_RADIX)] for r in range(_num_rounds(size))]
    powers = [[pow(base, step, _PRIME) for step in row] for row in steps]
    step = torch.tensor(steps, dtype=torch.int64, device=code.device)  # (rounds, radix)
    factor = torch.tensor(powers, dtype=torch.int64, device=code.device)
    factor = (factor * (step < length)).view(-1, _RADIX, *after)  # beyond the size: no weight
    ahead = ((place + step[..., None]) % length).flatten(1)  # (rounds, radix * size)
    for r in range(len(steps)):
        parts = code.index_select(axis, ahead[r]).unflatten(axis, (_RADIX, -1))
        code = (parts * factor[r] % _PRIME).sum(axis) % _PRIME
    return _scramble(code)


def _num_rounds(size: int | torch.SymInt) -> int:
    """How many rounds see a whole axis; as many as may be needed, if only running tells."""
    if not isinstance(size, torch.SymInt):
        return next(r for r in itertools.count() if _RADIX**r >= size)
    # Imported here because it takes as long as a third of torch, and only tracing needs it.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    known = (r for r in range(_ROUNDS) if statically_known_true(size <= _RADIX**r))
    return next(known, _ROUNDS)


def _scramble(code: Tensor) -> Tensor:
    """Permute the residues: 5 shares no factor with ``_PRIME - 1``, so the power is a bijection."""
    square = code * code % _PRIME
    return (square * square % _PRIME * code + _MIX) % _PRIME
