"""The layers, written as their definitions say, for any number of axes and any padding mode.

``benchmarks/reference.py`` holds the paper's formulas in 2-D; what it does not cover is here: other
dimensions, strides per axis and borders that do not wrap.
"""

import itertools
import math

import torch
from helpers import phase_offsets, steps_of

import trueshift as ts

SIZES = {1: (12,), 2: (12, 6), 3: (6, 4, 6)}
CONVS = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}


def split(x, stride):
    """Slice out the components: ``(B, P, C, *spatial // stride)``."""
    steps = steps_of(stride, x.ndim - 2)
    parts = [
        x[(..., *(slice(o, None, step) for o, step in zip(offsets, steps, strict=True)))]
        for offsets in phase_offsets(steps, len(steps))
    ]
    return torch.stack(parts, dim=1)


def keep(x, phase, stride):
    """Keep the component of a hard phase (one for all images, or one per image), or mix them."""
    components = split(x, stride)
    if isinstance(phase, int):
        return components[:, phase]
    if phase.dtype == torch.int64:
        return torch.stack([image[k] for image, k in zip(components, phase.tolist(), strict=True)])
    return (components * phase.to(x.dtype)[(..., *[None] * (x.ndim - 1))]).sum(1)


def place(y, phase, stride):
    """Put a map at a hard phase, or its share at every phase of a soft one."""
    steps = steps_of(stride, y.ndim - 2)
    sizes = [size * step for size, step in zip(y.shape[2:], steps, strict=True)]
    out = y.new_zeros(*y.shape[:2], *sizes)
    for k, offsets in enumerate(phase_offsets(steps, len(steps))):
        spans = (slice(o, None, step) for o, step in zip(offsets, steps, strict=True))
        share = (phase == k).to(y.dtype) if phase.dtype == torch.int64 else phase[:, k].to(y.dtype)
        out[(..., *spans)] = y * share.view(-1, *[1] * (y.ndim - 1))
    return out


def bordered(x, before, after, mode):
    """Extend every spatial axis, one index at a time."""
    for axis in range(2, x.ndim):
        size = x.shape[axis]
        index = torch.arange(-before, size + after)
        inside = (index >= 0) & (index < size)
        if mode == "circular":
            index = index % size
        elif mode == "reflect":
            index = index.abs()
            index = torch.where(index >= size, 2 * (size - 1) - index, index)
        else:
            index = index.clamp(0, size - 1)
        x = x.index_select(axis, index)
        if mode == "zeros":
            x = x * inside.to(x.dtype).view(-1, *[1] * (x.ndim - 1 - axis))
    return x


def taps(padded, size, sizes):
    """Yield every offset of a window and the map that it reads."""
    for corner in itertools.product(range(size), repeat=len(sizes)):
        spans = (slice(start, start + n) for start, n in zip(corner, sizes, strict=True))
        yield corner, padded[(..., *spans)]


def blur(x, size, mode="circular"):
    """Sum the neighbours of every pixel with binomial weights."""
    padded = bordered(x, (size - 1) // 2, size // 2, mode)
    out = torch.zeros_like(x)
    for corner, near in taps(padded, size, x.shape[2:]):
        weight = math.prod(math.comb(size - 1, i) / 2 ** (size - 1) for i in corner)
        out = out + weight * near
    return out


def adaptive_blur(x, layer):
    """Sum the neighbours of every pixel with predicted weights."""
    padded = bordered(x, layer.size // 2, layer.size // 2, layer.padding_mode)
    scores = layer.bn(CONVS[layer.dim](padded, layer.conv.weight))
    weights = scores.softmax(1).unflatten(1, (layer.groups, -1))  # (B, G, taps, *spatial)
    out = torch.zeros_like(x)
    for tap, (_, near) in enumerate(taps(padded, layer.size, x.shape[2:])):
        out = out + near * weights[:, :, tap].repeat_interleave(x.shape[1] // layer.groups, 1)
    return out


def filtered(x, antialias):
    """Apply the definition of a filter, or nothing."""
    if antialias is None:
        return x
    if isinstance(antialias, ts.AdaptiveBlur):
        return adaptive_blur(x, antialias)
    return blur(x, antialias.size, antialias.padding_mode)


def conv_logits(x, selector, stride):
    """Run f_theta on every component: two convolutions, then the mean over channels and space."""
    components = split(x, stride).unbind(1)
    scores = [selector.conv2(selector.conv1(part).relu()).flatten(1).mean(1) for part in components]
    return torch.stack(scores, dim=1)


def norm_logits(x, p, stride):
    """Take the l_p norm of every component."""
    return torch.linalg.vector_norm(split(x, stride).flatten(2), ord=p, dim=2)


def logits(x, selector, stride):
    """Score the components as the selector's definition says."""
    if isinstance(selector, ts.ConvSelector):
        return conv_logits(x, selector, stride)
    if isinstance(selector, ts.NormSelector):
        return norm_logits(x, selector.p, stride)
    scores = x.new_zeros(len(x), math.prod(steps_of(stride, x.ndim - 2)))
    scores[:, selector.index] = 1
    return scores


def down(x, layer):
    """Filter, score, choose, keep: what :class:`trueshift.PolyphaseDown` stands for."""
    low = filtered(x, layer.antialias)
    scores = logits(low if layer.score_filtered else x, layer.selector, layer.stride)
    soft = isinstance(layer.selector, ts.ConvSelector) and layer.training
    phase = (scores / layer.selector.tau).softmax(1) if soft else scores.argmax(1)
    return keep(low, phase, layer.stride), phase


def up(y, phase, layer):
    """Place, filter, scale by the stride: what :class:`trueshift.PolyphaseUp` stands for."""
    placed = place(y, phase, layer.stride)
    if layer.antialias is None:
        return placed
    scale = math.prod(steps_of(layer.stride, y.ndim - 2))
    return scale * filtered(placed, layer.antialias)
