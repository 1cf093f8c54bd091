"""How close selectors came to a tie, and what they chose."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trueshift.audit.probes import Seen, logits_of, observe_choices, selecting_layers
from trueshift.functional import polyphase_split

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
    """Records margins and choices of the selectors of a network.

    Args:
        model: The network.
    """

    def __init__(self, model: nn.Module) -> None:
        self.layers = selecting_layers(model)
        self.choices: dict[str, Choice] = {}
        self._margins: dict[str, list[Tensor]] = {}
        self._relative: dict[str, float] = {}
        self._seen: dict[str, int] = {}  # images so far: a batch may come in parts

    @contextlib.contextmanager
    def recording(self, rows: int, picture: int | None = None) -> Iterator[None]:
        """Record what selectors do with the first ``rows`` images of a batch.

        Args:
            rows: How many images count; the others of the batch repeat them.
            picture: Row of the image whose components are kept, if any.
        """
        self._seen.clear()
        record = functools.partial(self._record, rows, picture)
        with observe_choices(self.layers, record):
            yield

    def margins(self) -> tuple[Margin, ...]:
        """Return the margins of the selectors that chose."""
        result = []
        for name in (name for name in self.layers if name in self._margins):
            values = torch.cat(self._margins[name])
            ties = int((values == 0).sum())
            low, middle = float(values.min()), float(values.median())
            relative = self._relative[name]
            result.append(Margin(_selector(name), low, relative, middle, ties, len(values)))
        return tuple(result)

    def _record(self, rows: int, picture: int | None, name: str, seen: Seen) -> None:
        first, selector = self._seen.get(name, 0), self.layers[name].selector
        self._seen[name] = first + len(seen.x)
        x = seen.x[: max(rows - first, 0)]
        if not len(x):
            return
        logits = logits_of(selector, x, seen.stride)
        best, second = logits.topk(2, dim=1).values.unbind(1)
        scale = logits.abs().amax(1).clamp(min=torch.finfo(torch.float64).tiny)
        self._margins.setdefault(name, []).append((best - second).float())
        smallest = float(((best - second) / scale).min())
        self._relative[name] = min(self._relative.get(name, math.inf), smallest)
        row = -1 if picture is None else picture - first
        if 0 <= row < len(x) and x.ndim == 4 and logits.shape[1] <= _MOST_COMPONENTS:
            chosen = int(seen.phase[row].argmax() if seen.phase.ndim > 1 else seen.phase[row])
            one = x[row : row + 1]
            self.choices[name] = _choice(_selector(name), selector, one, seen.stride, chosen)


def _selector(layer: str) -> str:
    return f"{layer}.selector".removeprefix(".")


def _choice(name: str, selector: Any, x: Tensor, stride: Any, chosen: int) -> Choice:
    components = polyphase_split(x.detach().float(), stride)[0]  # (P, C, h, w)
    norms = components.flatten(1).norm(dim=1)
    maps = components.mean(1)[:, :_PICTURE, :_PICTURE]
    low, high = float(maps.min()), float(maps.max())
    grey = (maps - low) * (255 / max(high - low, 1e-12))
    pictures = grey.round().to(torch.uint8).cpu()
    return Choice(name, pictures, chosen, int(norms.argmax()), _filters(selector))


def _filters(selector: Any) -> Tensor | None:
    conv = getattr(selector, "conv1", None)
    if conv is None or conv.weight.ndim != 4:
        return None
    taps = conv.weight.detach().float().mean(1)[:_MOST_FILTERS]  # (F, 3, 3)
    scaled = taps * (127 / float(taps.abs().max().clamp(min=1e-12))) + 128
    return scaled.round().to(torch.uint8).cpu()
