"""Starts that depend on the data: a whitening stem, logits that stand above the noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trueshift.training.tau import selectors


def calibrate(network: nn.Module, images: Tensor) -> None:
    """Fit what depends on the data, before training: :func:`scale_logits`, and a whitening stem.

    Args:
        network: Changed in place. If it has a method ``whiten(images)``, that is called.
        images: Training images ``(B, C, *spatial)``.
    """
    whiten = getattr(network, "whiten", None)
    if whiten is not None:
        whiten(images)
    scale_logits(network, images)


@torch.no_grad()
def scale_logits(network: nn.Module, images: Tensor, spread: float = 1.0) -> None:
    """Scale the second convolution of learned selectors so that logits of an image differ enough.

    As they start, they differ by thousandths, and the Gumbel noise of training (deviation 1.28)
    hides them.

    Args:
        network: Changed in place; batch norms keep their running statistics.
        images: Training images ``(B, C, *spatial)``.
        spread: The mean standard deviation of the logits of an image.
    """
    buffers = {buffer: buffer.clone() for buffer in network.buffers()}
    found: dict[nn.Module, float] = {}

    def note(selector: nn.Module, _: object, logits: Tensor) -> None:
        found[selector] = float(logits.std(1).mean())

    hooks = [selector.register_forward_hook(note) for selector in selectors(network)]
    training = network.training
    try:
        network.train()(images)
    finally:
        network.train(training)
        for hook in hooks:
            hook.remove()
        for buffer, value in buffers.items():
            buffer.copy_(value)
    for selector in selectors(network):
        for parameter in selector.conv2.parameters():
            parameter.mul_(spread / max(found[selector], 1e-12))
