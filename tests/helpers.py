"""Slow, literal definitions to test against, and assertions about shifts.

The oracles loop over single positions and share no code with the library.
"""

import itertools

import torch

from trueshift.shifts import circular_shift

SHAPE = (2, 3, 12, 8)  # B, C, H, W


def steps_of(stride, dim):
    return (stride,) * dim if isinstance(stride, int) else tuple(stride)


def phase_offsets(stride, dim):
    """Offsets of every phase, row-major: in 2-D ``(i, j)`` for ``k = i * stride + j``."""
    return list(itertools.product(*(range(step) for step in steps_of(stride, dim))))


def phase_index(offsets, stride):
    return phase_offsets(stride, len(offsets)).index(tuple(offsets))


def oracle_split(x, stride):
    """``components[b, k, c, n] = x[b, c, stride * n + offset_k]``."""
    steps = steps_of(stride, x.ndim - 2)
    offsets = phase_offsets(stride, x.ndim - 2)
    sizes = [size // step for size, step in zip(x.shape[2:], steps, strict=True)]
    out = x.new_zeros(x.shape[0], len(offsets), x.shape[1], *sizes)
    for k, offset in enumerate(offsets):
        for n in all_shifts(sizes):
            out[(slice(None), k, slice(None), *n)] = x[(..., *_fine(n, steps, offset))]
    return out


def oracle_merge(components, stride):
    """Read every position of the fine grid from the component that holds it."""
    dim = components.ndim - 3
    steps = steps_of(stride, dim)
    sizes = [size * step for size, step in zip(components.shape[3:], steps, strict=True)]
    out = components.new_zeros(components.shape[0], components.shape[2], *sizes)
    for position in all_shifts(sizes):
        offset = [p % step for p, step in zip(position, steps, strict=True)]
        n = [p // step for p, step in zip(position, steps, strict=True)]
        k = phase_index(offset, steps)
        out[(..., *position)] = components[(slice(None), k, slice(None), *n)]
    return out


def oracle_down(x, phase, stride):
    """``y[b] = Poly(x[b])_k`` for a hard phase, the weighted sum of components for a soft one."""
    components = oracle_split(x, stride)
    out = torch.zeros_like(components[:, 0])
    for b in range(len(x)):
        if phase.dtype == torch.int64:
            out[b] = components[b, int(phase[b])]
            continue
        for k in range(components.shape[1]):
            out[b] += phase[b, k] * components[b, k]
    return out


def oracle_up(y, phase, stride):
    """``Poly(u)_k = y`` at a hard phase and zero elsewhere, ``z_k y`` everywhere for a soft one."""
    num_phases = len(phase_offsets(stride, y.ndim - 2))
    components = y.new_zeros(y.shape[0], num_phases, *y.shape[1:])
    for b in range(len(y)):
        for k in range(num_phases):
            if phase.dtype != torch.int64:
                components[b, k] = phase[b, k] * y[b]
            elif int(phase[b]) == k:
                components[b, k] = y[b]
    return oracle_merge(components, stride)


def all_shifts(sizes):
    """Every shift of a map of these sizes (or every position in it), the zero shift included."""
    return list(itertools.product(*(range(size) for size in sizes)))


def assert_circularly_equivariant(fn, x, shifts, atol=0.0):
    """``fn`` of every shifted map is ``fn(x)``, shifted: bit by bit, unless ``atol`` is given."""
    y = fn(x)
    for shift in shifts:
        actual, expected = fn(circular_shift(x, *shift)), circular_shift(y, *shift)
        if atol:
            torch.testing.assert_close(actual, expected, rtol=0, atol=atol, msg=f"shift {shift}")
        else:
            assert torch.equal(actual, expected), f"not equivariant to the shift {shift}"


def is_circular_shift_of(a, b):
    """Tell whether one image or map ``a`` is ``b``, shifted by anything along its spatial axes."""
    return a.shape == b.shape and any(
        torch.equal(circular_shift(b, *shift), a) for shift in all_shifts(b.shape[1:])
    )


def _fine(n, steps, offset):
    return tuple(i * step + o for i, step, o in zip(n, steps, offset, strict=True))
