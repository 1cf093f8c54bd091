"""A U-Net in one, two or three dimensions that is exactly equivariant to shifts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trueshift._validate import check_dim, check_positive
from trueshift.exact import fixed_layout, follow_layout
from trueshift.layers.conv import same_conv
from trueshift.layers.filters import NORMS
from trueshift.layers.spec import Sampling
from trueshift.models.down import build_down, max_and_sample
from trueshift.models.features import Feature, Step, check_image, multiples
from trueshift.models.saving import saveable
from trueshift.models.upsampling import build_ups


def _double_conv(in_channels: int, channels: int, spec: Sampling) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before in (in_channels, channels):
        layers.append(same_conv(before, channels, 3, spec.padding_mode, dim=spec.dim))
        layers += [NORMS[spec.dim](channels), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class MaxDown(nn.Module):
    """Max filter of two pixels per axis, then the sampling of ``spec``.

    With plain striding this is max pooling by 2.
    """

    def __init__(self, channels: int, spec: Sampling) -> None:
        super().__init__()
        self.mode, self.select_from = spec.padding_mode, spec.select_from
        self.down = build_down(spec, channels, 2, channels)

    def forward(self, x: Tensor) -> tuple[Tensor, Step]:
        return max_and_sample(self.down, x, self.mode, self.select_from)


class UNet(nn.Module):
    """Encoder and decoder of the same depth, joined by skip connections on every level.

    With circular padding and method ``"lps"`` or ``"aps"``, in eval mode, the output for a
    circularly shifted input is bitwise the shifted output.

    Args:
        spec: How to sample.
        in_channels: Channels of the input.
        num_classes: Channels of the output.
        widths: Channels of each level, the finest first.
        up: ``"polyphase"`` (LPU), ``"linear"``, or ``None`` to choose by the method.

    Shape:
        ``(B, in_channels, *spatial)`` to ``(B, num_classes, *spatial)``; with circular padding,
        sizes must be multiples of ``required_multiple``.
    """

    def __init__(
        self,
        spec: Sampling,
        in_channels: int = 3,
        num_classes: int = 2,
        widths: Sequence[int] = (32, 64, 128, 256),
        up: str | None = None,
    ) -> None:
        super().__init__()
        check_positive("UNet", in_channels=in_channels, num_classes=num_classes)
        if len(widths) < 2:
            raise ValueError(f"UNet: widths needs at least two levels, got {tuple(widths)}.")
        self.spec, self.in_channels, self.num_levels = spec, in_channels, len(widths)
        specs = spec.per_layer(len(widths) - 1)
        levels = list(zip((in_channels, *widths), widths, strict=False))
        self.encoder = nn.ModuleList(_double_conv(a, b, spec) for a, b in levels)
        self.downs = nn.ModuleList(MaxDown(w, s) for w, s in zip(widths, specs, strict=False))
        pairs = list(itertools.pairwise(widths))  # (fine, coarse)
        self.ups = nn.ModuleList(build_ups(up, spec, coarse, 1) for _, coarse in pairs)
        self.decoder = nn.ModuleList(_double_conv(f + c, f, spec) for f, c in pairs)
        self.head = same_conv(widths[0], num_classes, 1, spec.padding_mode, dim=spec.dim, bias=True)

    @property
    def required_multiple(self) -> int | tuple[int, ...]:
        """What every size must be a multiple of."""
        return multiples(self.spec, 2 ** (self.num_levels - 1))

    def features(self, x: Tensor) -> list[Feature]:
        """Return the map of every encoder level, with its phases and strides."""
        check_image("UNet", x, self.in_channels, self.required_multiple, self.spec.dim)
        features = [Feature(self.encoder[0](fixed_layout(self, x)), ())]
        for down, convs in zip(self.downs, self.encoder[1:], strict=True):
            x, step = down(features[-1].x)
            features.append(Feature(convs(x), (*features[-1].steps, step)))
        return features

    def forward(self, x: Tensor) -> Tensor:
        *skips, bottom = self.features(x)
        y, steps = bottom.x, bottom.steps
        for level in reversed(range(len(skips))):
            y = self.ups[level](y, steps[level : level + 1])
            y = self.decoder[level](torch.cat([skips[level].x, y], dim=1))
        return follow_layout(x, self.head(y))


@saveable
def unet(
    spec: Sampling,
    in_channels: int = 3,
    num_classes: int = 2,
    widths: Sequence[int] = (32, 64, 128, 256),
    dim: int | None = None,
    up: str | None = None,
) -> UNet:
    """Build a U-Net.

    Args:
        spec: How to sample.
        in_channels: Channels of the input.
        num_classes: Channels of the output.
        widths: Channels of each level, the finest first.
        dim: Number of spatial axes; ``None`` means that of ``spec``.
        up: See :class:`UNet`.

    Examples:
        >>> model = unet(Sampling("lps", "tri3"), 1, 2, widths=(8, 16), dim=1).eval()
        >>> x = torch.randn(1, 1, 12)
        >>> torch.equal(model(x.roll(5, 2)), model(x).roll(5, 2))
        True
    """
    if dim is not None:
        check_dim("unet", dim)
        spec = spec.replace(dim=dim)
    return UNet(spec, in_channels, num_classes, widths, up)
