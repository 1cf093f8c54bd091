"""What may be done where only a result is wanted: no backward pass, no traced graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trueshift._layout import channels_last, last_format

# From this number of images on, faster operations outweigh weights that must be rearranged.
_MANY = 4
_LARGE_IMAGE = 2**15  # pixels, for the same reason
_PRECISE = (torch.float32, torch.float64)


def only_result() -> bool:
    """Whether nothing is kept but the result, so that maps may be overwritten or made in parts."""
    return not (torch.is_grad_enabled() or traced())


def traced() -> bool:
    """Whether a graph is made, in which sizes stand for others."""
    return torch.compiler.is_compiling() or bool(torch._C._is_tracing())


def by_hand(x: Tensor, *others: Tensor) -> bool:
    """Whether a backward pass written by hand for CPUs may be used: for tensors of one dtype."""
    if traced() or not torch.is_grad_enabled():
        return False
    usual = x.device.type == "cpu" and in_full_precision(x) and x.numel() > 0
    return usual and all(other.dtype == x.dtype for other in others)


def in_full_precision(x: Tensor) -> bool:
    """Whether what is computed of a tensor is computed in float32 or float64."""
    return x.dtype in _PRECISE and not torch.is_autocast_enabled(x.device.type)


def hooked(module: nn.Module) -> bool:
    """Whether hooks look at what a module takes or returns, or at their gradients."""
    forward = module._forward_hooks or module._forward_pre_hooks
    return bool(forward or module._backward_hooks or module._backward_pre_hooks)


def watched(module: nn.Module) -> bool:
    """Whether a module or a part of it is hooked."""
    return any(map(hooked, module.modules()))


def needs_whole_batch(*modules: nn.Module) -> bool:
    """Whether a part mixes images, as batch norms in training do, or hooks look at its maps."""
    return any(part.training or hooked(part) for module in modules for part in module.modules())


def is_batch(x: Tensor) -> bool:
    """Whether only a result is wanted of several images on a CPU, so that preparations pay."""
    return only_result() and x.device.type == "cpu" and x.shape[0] >= _MANY


def faster_layout(x: Tensor, *, training: bool = False) -> Tensor:
    """Return images in the layout that a network computes in at test time, whatever theirs is.

    The layout decides how convolutions round, so that it must not depend on the images: shifting
    them with ``torch.roll`` may already change theirs. On a CPU the faster one for a batch, where
    only a result is wanted, is channels-last; it costs little, as images have few channels.
    Training is not faster in it, and keeps the layout of the images.
    """
    return _in_layout(x, x.ndim == 4 and is_batch(x), training)


def faster_map_layout(x: Tensor, *, training: bool = False) -> Tensor:
    """Do as :func:`faster_layout` does, for networks that return maps and for large images only.

    The number of images must not matter: a map has the same bits in every batch.
    """
    large = x.ndim == 4 and only_result() and x.shape[2] * x.shape[3] >= _LARGE_IMAGE
    return _in_layout(x, large, training)


def usual_layout(x: Tensor, *, training: bool = False) -> Tensor:
    """Return a map in the default layout at test time; in training it keeps its own."""
    return _in_layout(x, False, training)


def in_layout_of(x: Tensor, y: Tensor, *, training: bool = False) -> Tensor:
    """Return ``y``, which was made of ``x`` in a layout of our choice, in that of ``x``."""
    return _in_layout(y, channels_last(x) and y.ndim == x.ndim, training)


def _in_layout(x: Tensor, last: bool, training: bool) -> Tensor:
    if training or traced() or x.device.type != "cpu":  # a graph takes any size
        return x
    layout = last_format(x.ndim) if last else torch.contiguous_format
    y = x.contiguous(memory_format=layout)
    strides = torch.empty(y.shape, device="meta", memory_format=layout).stride()
    # A map of one channel counts as both, but torch goes by its strides.
    return y if y.stride() == strides else y.as_strided(y.shape, strides)
