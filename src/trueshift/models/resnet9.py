"""A short residual network for small images, with little work at full resolution.

Its shape is that of the bodies with which CIFAR-10 is trained in minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trueshift._validate import Mode, check_positive
from trueshift.layers.conv import SameConv2d, same_conv
from trueshift.layers.pooling import GlobalAvgPool
from trueshift.layers.spec import Sampling
from trueshift.models.down import build_down, conv_and_sample
from trueshift.models.features import Feature, StagedClassifier, Step, check_image, multiples
from trueshift.models.resnet import initialize
from trueshift.models.saving import saveable
from trueshift.windows import pad


class ConvNorm(nn.Module):
    """3x3 convolution, batch norm and ReLU."""

    def __init__(self, in_channels: int, channels: int, mode: Mode) -> None:
        super().__init__()
        self.conv = same_conv(in_channels, channels, 3, mode)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)), inplace=True)


class Stage(nn.Module):
    """A convolution that is down-sampled, then perhaps two more next to a shortcut."""

    def __init__(self, in_channels: int, channels: int, residual: bool, spec: Sampling) -> None:
        super().__init__()
        plain = 2 if spec.is_plain else 1
        self.conv = same_conv(in_channels, channels, 3, spec.padding_mode, stride=plain)
        self.norm = nn.BatchNorm2d(channels)
        # Its maps are narrow: selectors as narrow as their input lost accuracy.
        self.down = build_down(spec, channels, 2, in_channels, like=channels)
        convs = (ConvNorm(channels, channels, spec.padding_mode) for _ in range(2))
        self.residual = nn.Sequential(*convs) if residual else None
        self.select_from = spec.select_from

    def forward(self, x: Tensor) -> tuple[Tensor, Step]:
        x, step = conv_and_sample(self.conv, self.norm, self.down, x, 2, self.select_from)
        return (x if self.residual is None else x + self.residual(x)), step


class ResNet9(StagedClassifier):
    """A stem and a few down-sampled stages, some with a residual pair of convolutions.

    With circular padding and method ``"lps"`` or ``"aps"``, in eval mode, the output is bitwise the
    same for every circular shift of the image.

    Args:
        spec: How to sample.
        num_classes: Outputs.
        stem: Channels of the first convolution, at full resolution.
        widths: Channels of each stage; every stage samples by 2.
        residual: Which stages end with a residual pair.
        in_channels: Channels of the image.
        whitened: For quick training: the stem is not trained but set by :meth:`whiten`, other
            convolutions start as the identity where they can, and batch norms have no scale.

    Shape:
        ``(B, in_channels, H, W)`` to ``(B, num_classes)``; with circular padding ``H`` and ``W``
        must be multiples of ``required_multiple``.
    """

    def __init__(
        self,
        spec: Sampling,
        num_classes: int = 10,
        stem: int = 16,
        widths: Sequence[int] = (32, 64, 128),
        residual: Sequence[bool] = (False, True, True),
        in_channels: int = 3,
        whitened: bool = False,
    ) -> None:
        super().__init__()
        check_positive("ResNet9", num_classes=num_classes, stem=stem, in_channels=in_channels)
        if len(widths) != len(residual) or not widths:
            raise ValueError(
                "ResNet9: widths and residual need one value per stage, got"
                f" {tuple(widths)} and {tuple(residual)}."
            )
        if spec.dim != 2:
            raise ValueError(f"ResNet9: works on images, got a Sampling with dim={spec.dim}.")
        self.spec, self.in_channels = spec, in_channels
        self.stem = ConvNorm(in_channels, stem, spec.padding_mode)
        self.stages = nn.ModuleList(
            Stage(*arguments)
            for arguments in zip(
                (stem, *widths[:-1]), widths, residual, spec.per_layer(len(widths)), strict=True
            )
        )
        self.avgpool, self.fc = GlobalAvgPool(), nn.Linear(widths[-1], num_classes)
        initialize(self)
        self.whitened = whitened
        if whitened:
            self._start_near_identity()

    def _start_near_identity(self) -> None:
        self.stem.conv.weight.requires_grad_(False)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.requires_grad_(False)
            if isinstance(module, SameConv2d):
                nn.init.kaiming_uniform_(module.weight, nonlinearity="linear")
                nn.init.dirac_(module.weight.data[: module.weight.shape[1]])

    @torch.no_grad()
    def whiten(self, images: Tensor) -> None:
        """Set the stem to the leading principal components of patches, and their negatives.

        Args:
            images: ``(B, in_channels, H, W)``, normalized.
        """
        if not self.whitened:
            return
        num = self.stem.conv.weight.shape[0] // 2
        patches = F.unfold(pad(images, ((1, 1), (1, 1)), self.spec.padding_mode), 3)
        patches = patches.movedim(1, 2).flatten(0, 1).double()  # (B H W, C 9)
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        filters = (vectors / (values + 5e-4).sqrt()).T.flip(0)[:num]
        self.stem.conv.weight.copy_(torch.cat([filters, -filters]).view_as(self.stem.conv.weight))

    @property
    def required_multiple(self) -> int | tuple[int, ...]:
        """What every image size must be a multiple of."""
        return multiples(self.spec, 2 ** len(self.stages))

    def _features(self, x: Tensor) -> Iterator[Feature]:
        check_image("ResNet9", x, self.in_channels, self.required_multiple)
        x = self.stem(x)
        steps: tuple[Step, ...] = ()
        for stage in self.stages:
            x, step = stage(x)
            steps = (*steps, step)
            yield Feature(x, steps)


@saveable
def resnet9(spec: Sampling, num_classes: int = 10, **options: Any) -> ResNet9:
    """Build a :class:`ResNet9`; ``options`` are its further arguments.

    Examples:
        >>> import torch
        >>> model = resnet9(Sampling("lps", hidden="eighth")).eval()
        >>> x = torch.randn(1, 3, 32, 32)
        >>> torch.equal(model(x), model(x.roll((3, 5), (2, 3))))
        True
    """
    return ResNet9(spec, num_classes, **options)
