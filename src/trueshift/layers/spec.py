"""One description of how a whole network samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from trueshift._validate import PADDING_MODES, Stride, check_choice, check_dim, check_positive
from trueshift.layers.antialias import ANTIALIAS, AdaptiveBlur, Blur, build_antialias
from trueshift.layers.resample import SELECT_ON, PolyphaseDown, PolyphaseUp
from trueshift.layers.selectors import (
    TEST_RULES,
    TRAIN_RULES,
    ConvSelector,
    FixedSelector,
    NormSelector,
)

METHODS = ("stride", "aps", "lps")
HIDDEN = ("same", "eighth")
SELECT = ("output", "input")


@dataclass(frozen=True)
class Sampling:
    """How a network samples: a row of the paper's tables.

    The grid of the paper's table 1 is ``method`` x ``antialias``: LPF is ``"stride"`` with a
    ``"tri3"``, DDAC is ``"stride"`` with an ``"adapt3"``, and so on.

    Args:
        method: ``"stride"``, ``"aps"`` or ``"lps"``.
        antialias: ``None``, ``"rect2"``, ``"tri3"``, ``"bin4"`` to ``"bin7"``, ``"adapt3"``,
            ``"adapt5"``.
        padding_mode: Border of every operation; ``"circular"`` makes networks exactly equivariant.
        hidden: Width of learned selectors: the ``"same"`` as the map that they look at (where that
            is narrow, in stems and ResNet-9: as the one made of it), an ``"eighth"`` of it, a
            number, or one number per down-sampling of a network, in order.
        dim: Number of spatial axes.
        groups: Groups of adaptive filters.
        norm: ``p`` of the APS norm.
        select_on: Choose among ``"filtered"`` or ``"unfiltered"`` components.
        train_rule: ``"gumbel"``, ``"straight"`` or ``"softmax"``.
        test_rule: ``"argmax"`` or ``"softmax"``.
        select: Choose the phase from the ``"output"`` of the operation before sampling (as the
            paper does: after convolution, batch norm and ReLU) or from its ``"input"``. Then the
            operation runs strided, at the price of a plain network; the guarantee is the same.
        selector_padding: Border of learned selectors; ``None`` means ``padding_mode``.

    Examples:
        >>> spec = Sampling("lps", antialias="tri3", hidden="eighth")
        >>> spec.down(64).selector.conv1.out_channels
        8
    """

    method: str = "lps"
    antialias: str | None = None
    padding_mode: str = "circular"
    hidden: str | int | tuple[int, ...] = "same"
    dim: int = 2
    groups: int = 8
    norm: float = 2
    select_on: str = "filtered"
    train_rule: str = "gumbel"
    test_rule: str = "argmax"
    select: str = "output"
    selector_padding: str | None = None

    def __post_init__(self) -> None:
        check_choice("Sampling", "method", self.method, METHODS)
        check_choice("Sampling", "antialias", self.antialias, ANTIALIAS)
        check_choice("Sampling", "padding_mode", self.padding_mode, PADDING_MODES)
        check_choice("Sampling", "select_on", self.select_on, SELECT_ON)
        check_choice("Sampling", "train_rule", self.train_rule, TRAIN_RULES)
        check_choice("Sampling", "test_rule", self.test_rule, TEST_RULES)
        check_choice("Sampling", "select", self.select, SELECT)
        if self.selector_padding is not None:
            check_choice("Sampling", "selector_padding", self.selector_padding, PADDING_MODES)
        check_dim("Sampling", self.dim)
        check_positive("Sampling", groups=self.groups)
        NormSelector(self.norm)
        if isinstance(self.hidden, str):
            check_choice("Sampling", "hidden", self.hidden, HIDDEN)
        elif isinstance(self.hidden, Sequence):
            object.__setattr__(self, "hidden", tuple(self.hidden))  # YAML and JSON have only lists
            for width in self.hidden:
                check_positive("Sampling", hidden=width)  # type: ignore[arg-type]
        else:
            check_positive("Sampling", hidden=self.hidden)

    def hidden_channels(self, channels: int) -> int:
        """Return the width of the learned selector of a map with ``channels``."""
        if self.hidden == "same":
            return channels
        if isinstance(self.hidden, tuple):
            raise ValueError(
                f"Sampling: hidden={self.hidden} names one width per layer of a network; a single"
                " layer needs one number."
            )
        return max(1, channels // 8) if self.hidden == "eighth" else int(self.hidden)

    @property
    def is_plain(self) -> bool:
        """Whether this is plain striding without a filter, which a convolution does by itself."""
        return self.method == "stride" and self.antialias is None

    def replace(self, **changes: Any) -> Sampling:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def per_layer(self, num_layers: int) -> list[Sampling]:
        """Return the spec of each of a network's down-samplings, in order."""
        if not isinstance(self.hidden, tuple):
            return [self] * num_layers
        if len(self.hidden) != num_layers:
            raise ValueError(
                f"Sampling: hidden={self.hidden} names {len(self.hidden)} widths, but the network"
                f" has {num_layers} down-samplings."
            )
        return [self.replace(hidden=width) for width in self.hidden]

    def blur(self, channels: int) -> Blur | AdaptiveBlur | None:
        """Build the filter, or ``None``."""
        return build_antialias(
            self.antialias, channels, self.padding_mode, dim=self.dim, groups=self.groups
        )

    def selector(self, channels: int, hidden_channels: int | None = None) -> nn.Module:
        """Build the selector of the method."""
        if self.method == "stride":
            return FixedSelector(0)
        if self.method == "aps":
            return NormSelector(self.norm)
        return ConvSelector(
            channels,
            hidden_channels or self.hidden_channels(channels),
            self.selector_padding or self.padding_mode,
            dim=self.dim,
            train_rule=self.train_rule,
            test_rule=self.test_rule,
        )

    def down(
        self,
        channels: int,
        stride: Stride = 2,
        *,
        input_channels: int | None = None,
        like: int | None = None,
    ) -> PolyphaseDown:
        """Build a layer that selects and down-samples.

        Args:
            channels: Channels of the map that is down-sampled.
            stride: Sampling factor.
            input_channels: Channels of the map that the selector sees, if that is another one
                (``select="input"``).
            like: Channels that the width of a learned selector goes by; ``None`` means
                ``channels``.
        """
        seen = channels if self.select == "output" else input_channels or channels
        hidden = self.hidden_channels(like or channels) if self.method == "lps" else None
        return self._down(self.selector(seen, hidden), channels, stride)

    def follow(self, channels: int, stride: Stride = 2) -> PolyphaseDown:
        """Build a layer that down-samples with the phase of another one, with its own filter."""
        return self._down(None, channels, stride)

    def up(self, channels: int, stride: Stride = 2) -> PolyphaseUp:
        """Build a layer that up-samples with the phase of a down-sampling layer."""
        return PolyphaseUp(stride, self.blur(channels))

    def _down(self, selector: nn.Module | None, channels: int, stride: Stride) -> PolyphaseDown:
        return PolyphaseDown(
            selector,
            stride,
            self.blur(channels),
            select_on=self.select_on,
            padding_mode=self.padding_mode,
        )
