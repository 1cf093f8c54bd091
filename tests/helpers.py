"""Slow, literal definitions to test against, and assertions about shifts.

The oracles loop over single positions and share no code with the library.
"""

import itertools
import math

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


def make_phase(kind, batch, stride, dim, generator=None, dtype=torch.float64):
    """A phase: ``"hard"`` (one per image), ``"soft"`` (weights) or ``"int"`` (one for all)."""
    count = len(phase_offsets(stride, dim))
    if kind == "int":
        return count - 1
    if kind == "hard":
        return torch.randint(count, (batch,), generator=generator)
    return torch.randn(batch, count, generator=generator, dtype=torch.float64).softmax(1).to(dtype)


def oracle_split(x, stride):
    """``components[b, k, c, n] = x[b, c, stride * n + offset_k]``."""
    steps = steps_of(stride, x.ndim - 2)
    offsets = phase_offsets(stride, x.ndim - 2)
    sizes = [size // step for size, step in zip(x.shape[2:], steps, strict=True)]
    out = x.new_zeros(x.shape[0], len(offsets), x.shape[1], *sizes)
    for k, offset in enumerate(offsets):
        for n in all_shifts(sizes):
            fine = (i * step + o for i, step, o in zip(n, steps, offset, strict=True))
            out[(slice(None), k, slice(None), *n)] = x[(..., *fine)]
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


def shares(phase, batch, stride, dim):
    """What every component counts for in every image: ``{b: {k: weight}}``."""
    if isinstance(phase, int):
        return {b: {phase: 1.0} for b in range(batch)}
    if phase.dtype == torch.int64:
        return {b: {int(phase[b]): 1.0} for b in range(batch)}
    count = len(phase_offsets(stride, dim))
    return {b: {k: phase[b, k] for k in range(count)} for b in range(batch)}


def oracle_down(x, phase, stride):
    """``y[b] = Poly(x[b])_k`` for a hard phase, the weighted sum of components for a soft one."""
    components = oracle_split(x, stride)
    out = torch.zeros_like(components[:, 0])
    for b, weights in shares(phase, len(x), stride, x.ndim - 2).items():
        for k, weight in weights.items():
            out[b] += weight * components[b, k]
    return out


def oracle_up(y, phase, stride):
    """``Poly(u)_k = y`` at a hard phase and zero elsewhere, ``z_k y`` everywhere for a soft one."""
    components = y.new_zeros(y.shape[0], len(phase_offsets(stride, y.ndim - 2)), *y.shape[1:])
    for b, weights in shares(phase, len(y), stride, y.ndim - 2).items():
        for k, weight in weights.items():
            components[b, k] = weight * y[b]
    return oracle_merge(components, stride)


def pixel(x, position, mode):
    """``x[..., position]``, where ``position`` may lie outside: each axis has its rule."""
    modes = (mode,) * len(position) if isinstance(mode, str) else mode
    inside = []
    for n, size, rule in zip(position, x.shape[2:], modes, strict=True):
        if rule == "zeros" and not 0 <= n < size:
            return torch.zeros_like(x[(..., *[0] * len(position))])
        if rule == "circular":
            n %= size
        elif rule == "replicate":
            n = min(max(n, 0), size - 1)
        elif rule == "reflect":
            n = abs(n) if n < size else 2 * (size - 1) - n
        inside.append(n)
    return x[(..., *inside)]


def oracle_pad(x, widths, mode):
    """``out[n] = x[n - before]``."""
    pairs = zip(x.shape[2:], widths, strict=True)
    out = x.new_zeros(*x.shape[:2], *(size + before + after for size, (before, after) in pairs))
    for n in all_shifts(out.shape[2:]):
        source = [i - before for i, (before, _) in zip(n, widths, strict=True)]
        out[(..., *n)] = pixel(x, source, mode)
    return out


def oracle_read(x, starts, lengths):
    """``y[b, c, n] = x[b, c, (starts[b] + n) % size]``."""
    out = x.new_zeros(*x.shape[:2], *lengths)
    for b in range(len(x)):
        for n in all_shifts(lengths):
            source = [int(start[b]) + i for start, i in zip(starts, n, strict=True)]
            out[(b, slice(None), *n)] = pixel(x[b : b + 1], source, "circular")[0]
    return out


def oracle_window(x, phase, stride, widths, mode):
    """Cut what is read at the positions of a phase, from ``before`` the first one on."""
    axes = list(zip(x.shape[2:], widths, stride, strict=True))
    lengths = [size + before + after - step + 1 for size, (before, after), step in axes]
    out = x.new_zeros(*x.shape[:2], *lengths)
    offsets = phase_offsets(stride, len(stride))
    for b, weights in shares(phase, len(x), stride, len(stride)).items():
        for k, weight in weights.items():
            for n in all_shifts(lengths):
                at = zip(n, offsets[k], widths, strict=True)
                source = [i + offset - before for i, offset, (before, _) in at]
                out[(b, slice(None), *n)] += weight * pixel(x[b : b + 1], source, mode)[0]
    return out


def neighbours(x, n, sizes, mode, dilation=None):
    """Yield every tap of a window and the pixels ``(B, C)`` that it reads for position ``n``.

    An even window reaches one step further to the right.
    """
    for tap in all_shifts(sizes):
        taps = zip(n, tap, sizes, dilation or (1,) * len(sizes), strict=True)
        yield tap, pixel(x, [i + d * t - d * (size - 1) // 2 for i, t, size, d in taps], mode)


def oracle_conv(x, weight, bias, mode, dilation=None, groups=1):
    """Sum, for every position, the weighted pixels that the taps read."""
    out = x.new_zeros(x.shape[0], weight.shape[0], *x.shape[2:])
    grouped = weight.unflatten(0, (groups, -1))
    for n in all_shifts(x.shape[2:]):
        total = 0
        for tap, near in neighbours(x, n, weight.shape[2:], mode, dilation):
            terms = near.unflatten(1, (groups, -1))[:, :, None] * grouped[(..., *tap)]
            total = total + terms.sum(3).flatten(1)
        out[(..., *n)] = total if bias is None else total + bias
    return out


def oracle_mix(x, filters, groups, size, mode):
    """``out[b, c, n]``: the neighbours of a pixel, weighted with the filter of its group."""
    out, weights = torch.zeros_like(x), filters.unflatten(1, (groups, -1))
    per_group = x.shape[1] // groups
    for n in all_shifts(x.shape[2:]):
        window = neighbours(x, n, (size,) * (x.ndim - 2), mode)
        for number, (_, near) in enumerate(window):
            for c in range(x.shape[1]):
                out[(slice(None), c, *n)] += (
                    weights[(slice(None), c // per_group, number, *n)] * (near[:, c])
                )
    return out


def oracle_adaptive_blur(x, weight, norm, groups, mode):
    """DDAC: one softmax over all groups and taps of a pixel, then its weighted neighbours."""
    filters = norm(oracle_conv(x, weight, None, mode)).exp()
    return oracle_mix(x, filters / filters.sum(1, keepdim=True), groups, weight.shape[-1], mode)


def oracle_max(x, sizes):
    """The largest pixel of every window inside the map."""
    lengths = [n - size + 1 for n, size in zip(x.shape[2:], sizes, strict=True)]
    out = x.new_zeros(*x.shape[:2], *lengths)
    for n in all_shifts(lengths):
        window = (slice(i, i + size) for i, size in zip(n, sizes, strict=True))
        out[(..., *n)] = x[(..., *window)].flatten(2).amax(2)
    return out


def oracle_norms(x, p, stride):
    """The l_p norm of every component, summed by Python: float64 ``(B, P)``."""
    rows = oracle_split(x, stride).double().abs().flatten(2).tolist()
    if p == math.inf:
        return torch.tensor([[max(c) for c in row] for row in rows], dtype=torch.float64)
    sums = [[math.fsum(v**p for v in c) ** (1 / p) for c in row] for row in rows]
    return torch.tensor(sums, dtype=torch.float64)


def oracle_logits(x, theta, stride, mode):
    """f_theta of every component, one after the other: ``(B, P)``."""
    weight1, bias1, weight2, bias2 = theta
    logits = []
    for component in oracle_split(x, stride).unbind(1):
        hidden = oracle_conv(component, weight1, bias1, mode).clamp_min(0)
        logits.append(oracle_conv(hidden, weight2, bias2, mode).flatten(1).mean(1))
    return torch.stack(logits, 1)


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
