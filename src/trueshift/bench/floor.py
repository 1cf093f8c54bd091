"""The same convolutions with free down-sampling: what a polyphase network can cost at best."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trueshift._validate import stride_per_axis
from trueshift.layers.resample import PolyphaseDown
from trueshift.windows import Slices


class Slice(nn.Module):
    """Stand in for a :class:`PolyphaseDown`: a view of the first component, without filter."""

    selector = antialias = None

    def __init__(self, stride: int | tuple[int, ...]) -> None:
        super().__init__()
        self.stride = stride

    def forward(
        self,
        x: Tensor,
        phase: Tensor | None = None,
        return_phase: bool = False,
        tie_breaker: object = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        steps = stride_per_axis("Slice", self.stride, x.ndim - 2)
        first: Slices = (..., *(slice(None, None, step) for step in steps))
        y = x[first]
        if not return_phase:
            return y
        return y, torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)


def without_sampling(model: nn.Module) -> nn.Module:
    """Replace every polyphase down-sampling of a network by a slice, in place.

    What the network then does is not shift-invariant; it only says what its convolutions cost.

    Args:
        model: A network of :mod:`trueshift.models` that selects from outputs.

    Returns:
        The same network.

    Examples:
        >>> from trueshift import Sampling, models
        >>> net = without_sampling(models.resnet18(Sampling("aps"), num_classes=2, stem="cifar"))
        >>> any(isinstance(module, PolyphaseDown) for module in net.modules())
        False
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, PolyphaseDown):
                setattr(parent, name, Slice(child.stride))
    return model
