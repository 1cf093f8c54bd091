"""Starts that depend on the data: a whitening stem, logits that stand above the noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trueshift.training.tau import selectors


@torch.no_grad()
def calibrate(network: nn.Module, images: Tensor, spread: float = 1.0) -> None:
    """Fit the data-dependent parts of a network that is about to be trained.

    A network with a method ``whiten(images)`` whitens its stem. The second convolution of each
    learned selector is scaled so that the logits of an image differ by ``spread``: as they start,
    they differ by thousandths, and the Gumbel noise of training (deviation 1.28) hides them.

    Args:
        network: Changed in place.
        images: Training images ``(B, C, *spatial)``.
        spread: Mean standard deviation of the logits of an image.
    """
    whiten = getattr(network, "whiten", None)
    if whiten is not None:
        whiten(images)
    found: dict[nn.Module, float] = {}

    def note(selector: nn.Module, _: object, logits: Tensor) -> None:
        found[selector] = float(logits.std(1).mean())

    learned = selectors(network)
    hooks = [selector.register_forward_hook(note) for selector in learned]
    try:
        network.train()(images)
    finally:
        for hook in hooks:
            hook.remove()
    for selector in learned:
        for parameter in selector.conv2.parameters():
            parameter.mul_(spread / max(found[selector], 1e-12))
