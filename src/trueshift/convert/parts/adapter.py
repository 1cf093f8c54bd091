"""``tie_breaker`` for selectors and layers that do not take one yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trueshift._validate import stride_per_axis
from trueshift.convert.parts.phases import fit
from trueshift.layers.resample import PolyphaseDown
from trueshift.ties import argmax_phase

TieBreaker = Callable[[], Tensor]


def choose(
    selector: Any, x: Tensor, stride: tuple[int, ...], tie_breaker: TieBreaker | None = None
) -> Tensor:
    """Return ``selector.choose(x, stride, tie_breaker)``."""
    compares = hasattr(selector, "scores") and getattr(selector, "test_rule", "argmax") == "argmax"
    if tie_breaker is None or selector.training or not compares:
        phase: Tensor = selector.choose(x, stride)
        return phase
    with torch.no_grad():
        scores = selector.scores(x, stride)
        if not torch.compiler.is_compiling() and not bool(
            ((scores == scores.amax(1, keepdim=True)).sum(1) > 1).any()
        ):
            return scores.argmax(1)
        image = tie_breaker()
        more = image.ndim - 2 - len(stride)  # axes of the image that the map does not have
        return argmax_phase(scores, image, (1,) * more + stride)


class Down(PolyphaseDown):
    """:class:`PolyphaseDown` whose methods take a tie-breaker."""

    def forward(
        self,
        x: Tensor,
        phase: Tensor | None = None,
        return_phase: bool = False,
        tie_breaker: TieBreaker | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        if phase is None and tie_breaker is not None:
            phase = self.choose(x, tie_breaker)
        return super().forward(x, phase, return_phase)

    def fit(self, x: Tensor) -> Tensor:
        if self.padding_mode == "circular":
            return super().fit(x)
        return fit(x, stride_per_axis("PolyphaseDown", self.stride, x.ndim - 2))

    def choose(self, x: Tensor, tie_breaker: TieBreaker | None = None) -> Tensor:  # type: ignore[override]
        x = self.fit(x)
        stride = stride_per_axis("PolyphaseDown", self.stride, x.ndim - 2)
        filtered = self.antialias(x) if self._selects_on_filtered else x  # type: ignore[misc]
        return choose(self.selector, filtered, stride, tie_breaker)
