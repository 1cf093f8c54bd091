"""One description of how a whole network samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from trueshift._validate import (
    Mode,
    Stride,
    axis_modes,
    check_choice,
    check_dim,
    check_mode,
    check_positive,
)
from trueshift.layers.filters import FILTERS, build_filter
from trueshift.layers.resample import PolyphaseDown, PolyphaseUp
from trueshift.layers.selectors import METHODS, TEST_RULES, TRAIN_RULES, NormSelector, Selector

HIDDEN = ("same", "eighth")
SELECT_FROM = ("output", "input")


@dataclass(frozen=True)
class Sampling:
    """How a network samples: a row of the paper's tables.

    The grid of the paper's table 1 is ``method`` x ``antialias``: LPF is ``"stride"`` with a
    ``"tri3"``, DDAC is ``"stride"`` with an ``"adapt3"``, and so on.

    Args:
        method: ``"stride"``, ``"aps"`` or ``"lps"``.
        antialias: ``None``, ``"rect2"``, ``"tri3"``, ``"bin4"`` to ``"bin7"``, ``"adapt3"``,
            ``"adapt5"``.
        padding_mode: Border of every operation, for all axes or one per axis. Networks are exactly
            equivariant to shifts along the ``"circular"`` axes.
        hidden: Width of learned selectors: the ``"same"`` as the map that they read, an
            ``"eighth"`` of it, a number, or one number per down-sampling of a network, in order.
            In stems and in ResNet-9, whose selectors may read a narrow input, the width of the
            output counts.
        dim: Number of spatial axes.
        groups: Groups of adaptive filters.
        norm: ``p`` of the APS norm.
        score_filtered: Whether selectors score filtered components, as in the paper.
        train_rule: ``"gumbel"``, ``"straight"`` or ``"softmax"`` for learned selectors. With
            ``"random"``, APS draws a phase for every image while training; otherwise it chooses as
            at test time.
        test_rule: ``"argmax"`` or ``"softmax"``.
        select_from: Choose the phase from the ``"output"`` of the operation before sampling (as the
            paper does: after convolution, batch norm and ReLU) or from its ``"input"``. Then the
            operation keeps its stride and costs what it does in a plain network. The guarantee is
            the same.
        selector_padding: Border of learned selectors; ``None`` means ``padding_mode``.
        margin: How many cells at each border selectors leave out, along axes that do not wrap.
            What enters and leaves there then changes the choice less often (the idea of CAPS).

    Examples:
        >>> spec = Sampling("lps", antialias="tri3", hidden="eighth")
        >>> spec.down(64).selector.conv1.out_channels
        8
    """

    method: str = "lps"
    antialias: str | None = None
    padding_mode: Mode = "circular"
    hidden: str | int | tuple[int, ...] = "same"
    dim: int = 2
    groups: int = 8
    norm: float = 2
    score_filtered: bool = True
    train_rule: str = "gumbel"
    test_rule: str = "argmax"
    select_from: str = "output"
    selector_padding: Mode | None = None
    margin: int = 0

    def __post_init__(self) -> None:
        check_choice("Sampling", "method", self.method, METHODS)
        check_choice("Sampling", "antialias", self.antialias, (None, *FILTERS))
        check_choice("Sampling", "train_rule", self.train_rule, (*TRAIN_RULES, "random"))
        if self.train_rule == "random" and (self.method == "stride" or METHODS[self.method].learns):
            raise ValueError(
                f"Sampling: method={self.method!r} cannot train with random phases. Pass"
                " method='aps', or another train_rule."
            )
        check_choice("Sampling", "test_rule", self.test_rule, TEST_RULES)
        check_choice("Sampling", "select_from", self.select_from, SELECT_FROM)
        check_dim("Sampling", self.dim)
        for name in ("padding_mode", "selector_padding"):
            mode = getattr(self, name)
            if mode is not None:
                object.__setattr__(self, name, check_mode("Sampling", mode, self.dim, name))
        check_positive("Sampling", groups=self.groups)
        if self.margin != 0:
            check_positive("Sampling", margin=self.margin)
            if all(self.wraps):
                raise ValueError(
                    f"Sampling: margin={self.margin} leaves out borders, but axes with"
                    " padding_mode='circular' have none. Pass another padding_mode, or margin=0."
                )
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

    @property
    def wraps(self) -> tuple[bool, ...]:
        """Along which axes borders are circular, so that the network is exactly equivariant."""
        return tuple(mode == "circular" for mode in axis_modes(self.padding_mode, self.dim))

    def blur(self, channels: int) -> nn.Module | None:
        """Build the filter, or ``None``."""
        return build_filter(
            self.antialias, channels, self.padding_mode, dim=self.dim, groups=self.groups
        )

    def selector(self, channels: int, hidden_channels: int | None = None) -> Selector:
        """Build the selector of the method."""
        selector = METHODS[self.method].from_spec(self, channels, hidden_channels)
        selector.margin = tuple(0 if wraps else self.margin for wraps in self.wraps)
        return selector

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
            input_channels: Channels of the map that the selector reads, if that is another one
                (``select_from="input"``).
            like: Channels that determine the width of a learned selector; ``None`` means
                ``channels``.
        """
        read = channels if self.select_from == "output" else input_channels or channels
        hidden = self.hidden_channels(like or channels) if METHODS[self.method].learns else None
        return self._down(self.selector(read, hidden), channels, stride)

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
            score_filtered=self.score_filtered,
            padding_mode=self.padding_mode,
        )
