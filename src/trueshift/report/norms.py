"""What learned selectors do that the largest norm would not (paper section 5.3)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trueshift._validate import Stride
from trueshift.layers.selectors import ConvSelector, NormSelector
from trueshift.report.choices import selecting_layers


@dataclass(frozen=True)
class NormComparison:
    """A network with learned selectors beside the same one with the norm's.

    Attributes:
        num_images: How many images were compared.
        accuracy: Of the network as it is.
        norm_accuracy: With every learned selector replaced by APS's, without training again.
        same_choice: For each layer, the share of images whose kept component has the largest norm.
    """

    num_images: int
    accuracy: float
    norm_accuracy: float
    same_choice: dict[str, float]

    @property
    def mean_same_choice(self) -> float:
        """The share over all layers."""
        return sum(self.same_choice.values()) / len(self.same_choice)


class _Watched:
    """Stands for a selector's ``choose`` and notes how often that keeps the largest norm."""

    def __init__(self, selector: ConvSelector) -> None:
        self.choose, self.norm = selector.choose, NormSelector(2).eval()
        self.same = self.total = 0

    def __call__(self, x: Tensor, stride: Stride, witness: Tensor | None = None) -> Tensor:
        phase = self.choose(x, stride, witness)
        sampled = x if witness is None else witness
        self.same += int((phase == self.norm.choose(sampled, stride)).sum())
        self.total += len(phase)
        return phase


def compare_with_norms(
    network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]
) -> NormComparison:
    """Compare a trained LPS classifier with itself under the selectors of APS.

    Args:
        network: A classifier with learned selectors; left as it is.
        batches: Images ``(B, C, H, W)`` and labels ``(B,)``.
    """
    watched, replaced = copy.deepcopy(network).eval(), copy.deepcopy(network).eval()
    learned = {
        name: layer
        for name, layer in selecting_layers(watched).items()
        if isinstance(layer.selector, ConvSelector)
    }
    if not learned:
        raise ValueError(
            "compare_with_norms: no learned selector here, so there is none to replace."
        )
    watchers = {name: _Watched(layer.selector) for name, layer in learned.items()}  # type: ignore[arg-type]
    for name, watcher in watchers.items():
        learned[name].selector.choose = watcher  # type: ignore[union-attr]
        replaced.get_submodule(name).selector = NormSelector(2)
    right, norm_right, num_images = 0, 0, 0
    with torch.inference_mode():
        for images, labels in batches:
            right += int((watched(images).argmax(1) == labels).sum())
            norm_right += int((replaced(images).argmax(1) == labels).sum())
            num_images += len(labels)
    if not num_images:
        raise ValueError("compare_with_norms: there were no images.")
    shares = {name: watcher.same / watcher.total for name, watcher in watchers.items()}
    return NormComparison(num_images, right / num_images, norm_right / num_images, shares)
