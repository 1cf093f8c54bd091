"""How close selectors came to a tie, and what they chose."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trueshift._validate import stride_per_axis
from trueshift.functional import polyphase_split
from trueshift.layers.selectors import ConvSelector, NormSelector
from trueshift.ties import argmax_phase

_PICTURE = 64  # largest side of a kept component
_MOST_COMPONENTS, _MOST_FILTERS = 16, 32


@dataclass(frozen=True)
class Margin:
    """Distance of the best from the second best component, over the unshifted images.

    Attributes:
        name: The selector.
        smallest: Smallest difference of the two largest logits.
        relative: Smallest difference as a fraction of the image's largest absolute logit.
        median: Median difference.
        num_ties: Images with an exact tie.
        num_images: Images seen.
    """

    name: str
    smallest: float
    relative: float
    median: float
    num_ties: int
    num_images: int


@dataclass(frozen=True)
class Choice:
    """The components of one image that a selector saw, as pictures.

    Attributes:
        name: The selector.
        components: Mean over channels, uint8 ``(P, h, w)``, all on one scale.
        chosen: The component that the selector kept.
        largest: The component of the largest l2 norm, which APS would keep.
        filters: Those of a learned selector's first convolution, mean over their input channels,
            uint8 ``(F, 3, 3)``, 0 mapped to 128; None for the others.
    """

    name: str
    components: Tensor
    chosen: int
    largest: int
    filters: Tensor | None


class SelectorRecorder:
    """Notes the logits of every learned or norm selector of a network.

    Selectors are asked by method, not by call, so hooks do not see them; their methods are
    replaced while :meth:`recording` lasts.

    Args:
        model: The network.
    """

    def __init__(self, model: nn.Module) -> None:
        self.selectors = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, ConvSelector | NormSelector)
        }
        self._margins: dict[str, list[Tensor]] = {}
        self._relative: dict[str, float] = {}
        self._seen: dict[str, int] = {}  # images so far: a batch may come in parts
        self.choices: dict[str, Choice] = {}

    @contextlib.contextmanager
    def recording(self, rows: int, picture: int | None = None) -> Iterator[None]:
        """Record what selectors do with the first ``rows`` images of a batch.

        Args:
            rows: How many images count; the others of the batch repeat them.
            picture: Row of the image whose components are kept, if any.
        """
        methods = {}
        self._seen.clear()
        for name, selector in self.selectors.items():
            method = "scores" if isinstance(selector, ConvSelector) else "_norms"
            methods[name] = method
            original = getattr(selector, method)
            tell = functools.partial(self._record, name, rows, picture)
            setattr(selector, method, _telling(original, tell))
        try:
            yield
        finally:
            for name, selector in self.selectors.items():
                delattr(selector, methods[name])

    def _record(
        self, name: str, rows: int, picture: int | None, logits: Tensor, x: Tensor, stride: Any
    ) -> None:
        first = self._seen.get(name, 0)
        self._seen[name] = first + len(logits)
        logits = logits[: max(rows - first, 0)].detach().double().cpu()
        if not len(logits):
            return
        best, second = logits.topk(2, dim=1).values.unbind(1)
        margin = best - second
        scale = logits.abs().amax(1).clamp(min=torch.finfo(torch.float64).tiny)
        self._margins.setdefault(name, []).append(margin.float())
        smallest = float((margin / scale).min())
        self._relative[name] = min(self._relative.get(name, math.inf), smallest)
        here = picture is not None and first <= picture < first + len(logits)
        if picture is not None and here and x.ndim == 4 and logits.shape[1] <= _MOST_COMPONENTS:
            row = slice(picture - first, picture - first + 1)
            steps = stride_per_axis("audit", stride, 2)
            chosen = int(argmax_phase(logits[row], x[row].cpu(), steps))
            self.choices[name] = _choice(name, self.selectors[name], x[row], stride, chosen)

    def margins(self) -> tuple[Margin, ...]:
        """Return the margins of the selectors that were asked."""
        found = []
        for name in self.selectors:
            if name not in self._margins:
                continue
            values = torch.cat(self._margins[name])
            ties = int((values == 0).sum())
            low, middle = float(values.min()), float(values.median())
            found.append(Margin(name, low, self._relative[name], middle, ties, len(values)))
        return tuple(found)


def _telling(
    original: Callable[..., Tensor], tell: Callable[[Tensor, Tensor, Any], None]
) -> Callable[..., Tensor]:
    def call(x: Tensor, stride: Any, **options: Any) -> Tensor:
        if options.get("exact"):  # a second look at images that are close to a tie
            return original(x, stride, **options)
        rounds = "exact" in options
        scores = original(x, stride, **options)
        tell(original(x, stride, exact=True) if rounds else scores, x, stride)  # sums hide ties
        return scores

    return call


def _choice(name: str, selector: nn.Module, x: Tensor, stride: Any, chosen: int) -> Choice:
    components = polyphase_split(x.detach().float(), stride)[0]  # (P, C, h, w)
    norms = components.flatten(1).norm(dim=1)
    maps = components.mean(1)[:, :_PICTURE, :_PICTURE]
    low, high = float(maps.min()), float(maps.max())
    grey = (maps - low) * (255 / max(high - low, 1e-12))
    pictures = grey.round().to(torch.uint8).cpu()
    return Choice(name, pictures, chosen, int(norms.argmax()), _filters(selector))


def _filters(selector: nn.Module) -> Tensor | None:
    if not isinstance(selector, ConvSelector) or selector.dim != 2:
        return None
    taps = selector.conv1.weight.detach().float().mean(1)[:_MOST_FILTERS]  # (F, 3, 3)
    scaled = taps * (127 / float(taps.abs().max().clamp(min=1e-12))) + 128
    return scaled.round().to(torch.uint8).cpu()
