"""The paper's formulas, written plainly: what the library is measured against and tested with.

Nothing here is clever on purpose. Components are split off and copied, f_theta runs on each of
them, DDAC unfolds its neighbourhoods, a blur runs on the whole map before it is sliced. Weights
come from the library's own layers, so that both compute the same function.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from trueshift import AdaptiveBlur, Blur, ConvSelector


def split(x: Tensor, stride: int) -> Tensor:
    """Copy out the components ``(B, P, C, h, w)``, row-major."""
    parts = [x[..., i::stride, j::stride] for i in range(stride) for j in range(stride)]
    return torch.stack(parts, dim=1)


def logits(components: Tensor, selector: ConvSelector) -> Tensor:
    """Run f_theta on every component: two convolutions, then the mean over channels and space."""
    batch, num_phases = components.shape[:2]
    hidden = selector.conv2(selector.conv1(components.flatten(0, 1)).relu())
    return hidden.flatten(1).mean(1).view(batch, num_phases)


def index(components: Tensor, phase: Tensor) -> Tensor:
    """Keep one component per image."""
    return components[torch.arange(len(phase)), phase]


def mix(components: Tensor, phase: Tensor) -> Tensor:
    """Sum the components with the weights of a soft phase."""
    return (components * phase[:, :, None, None, None]).sum(1)


def blur(x: Tensor, layer: Blur) -> Tensor:
    """Filter the whole map with the binomial kernel."""
    before, after = (layer.size - 1) // 2, layer.size // 2
    padded = F.pad(x, (before, after, before, after), mode="circular")
    return F.conv2d(padded, layer.kernel, groups=layer.channels)


def adaptive_blur(x: Tensor, layer: AdaptiveBlur) -> Tensor:
    """Filter the whole map with predicted weights, neighbourhoods unfolded."""
    batch, channels, height, width = x.shape
    reach, taps = layer.size // 2, layer.size**2
    padded = F.pad(x, (reach,) * 4, mode="circular")
    weights = layer.bn(layer.conv(padded)).softmax(1)
    weights = weights.view(batch, layer.groups, 1, taps, height, width)
    near = F.unfold(padded, layer.size)
    near = near.view(batch, layer.groups, channels // layer.groups, taps, height, width)
    return (near * weights).sum(3).view(x.shape)


def lpd_eval(x: Tensor, selector: ConvSelector, stride: int = 2) -> Tensor:
    """LPD at test time: split, f_theta on each component, argmax, index."""
    components = split(x, stride)
    return index(components, logits(components, selector).argmax(1))


def lpd_train(x: Tensor, selector: ConvSelector, stride: int = 2) -> Tensor:
    """LPD while training: split, f_theta on each component, Gumbel-softmax, weighted sum."""
    components = split(x, stride)
    phase = F.gumbel_softmax(logits(components, selector), tau=float(selector.tau), dim=1)
    return mix(components, phase)


def aps(x: Tensor, stride: int = 2) -> Tensor:
    """APS: split, norm of each component, argmax, index."""
    components = split(x, stride)
    return index(components, torch.linalg.vector_norm(components.flatten(2), dim=2).argmax(1))


def blur_then_slice(x: Tensor, layer: Blur, stride: int = 2) -> Tensor:
    """LPF: filter the whole map, then slice."""
    return blur(x, layer)[..., ::stride, ::stride].contiguous()


def ddac_then_slice(x: Tensor, layer: AdaptiveBlur, stride: int = 2) -> Tensor:
    """DDAC: filter the whole map by unfolding, then slice."""
    return adaptive_blur(x, layer)[..., ::stride, ::stride].contiguous()


def place(y: Tensor, phase: Tensor, stride: int = 2) -> Tensor:
    """LPU: zeros everywhere but at the chosen component."""
    batch, channels, height, width = y.shape
    out = y.new_zeros(batch, channels, height * stride, width * stride)
    for b, k in enumerate(phase.tolist()):
        out[b, :, k // stride :: stride, k % stride :: stride] = y[b]
    return out
