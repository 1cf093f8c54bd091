"""ResNets whose every down-sampling is the one that a ``Sampling`` names (paper appendix B).

Names of parameters are those of torchvision, so that its weights load into every variant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn import functional as F

from trueshift._validate import check_choice, check_positive
from trueshift.layers.conv import SameConv2d, same_conv
from trueshift.layers.pooling import GlobalAvgPool
from trueshift.layers.spec import Sampling
from trueshift.models.blocks import BLOCKS, build_stage, stage_strides
from trueshift.models.down import build_down, conv_and_sample, first_phase, max_and_sample
from trueshift.models.features import Feature, StagedClassifier, Step, check_image, multiples
from trueshift.models.pretrained import Weights, load_weights
from trueshift.models.saving import saveable
from trueshift.windows import pad

STEMS = ("imagenet", "cifar")
SIZES = {
    "resnet18": ("basic", (2, 2, 2, 2)),
    "resnet34": ("basic", (3, 4, 6, 3)),
    "resnet50": ("bottleneck", (3, 4, 6, 3)),
    "resnet101": ("bottleneck", (3, 4, 23, 3)),
    "resnet152": ("bottleneck", (3, 8, 36, 3)),
}


class ResNet(StagedClassifier):
    """A residual network that samples as ``spec`` says (paper appendix tables A5 and A6).

    With circular padding and method ``"lps"`` or ``"aps"``, in eval mode, the output is bitwise the
    same for every circular shift of the image.

    Where plain striding without a filter keeps the first component anyway, the convolution before
    it runs strided, which is the same function; the network is then torchvision's.

    Args:
        spec: How to sample.
        depths: Blocks of each stage; every stage but the first begins with a down-sampling.
        widths: Channels of each stage (before the expansion of bottlenecks).
        block: ``"basic"`` or ``"bottleneck"``.
        num_classes: Outputs.
        stem: ``"imagenet"`` (7x7 convolution and max pooling, stride 4) or ``"cifar"`` (3x3
            convolution, stride 1).
        in_channels: Channels of the image.
        strided_conv1: Keep the stride of the first convolution of an ImageNet stem, as the paper's
            standard-shift setting may; not shift-equivariant.
        output_stride: Replace the stride of late stages by dilation, so that the total stride is
            this.

    Shape:
        ``(B, in_channels, H, W)`` to ``(B, num_classes)``; with circular padding ``H`` and ``W``
        must be multiples of ``required_multiple``.

    Examples:
        >>> import torch
        >>> spec = Sampling("lps", hidden="eighth")
        >>> model = resnet18(spec, num_classes=10, stem="cifar").eval()
        >>> x = torch.randn(1, 3, 32, 32)
        >>> torch.equal(model(x), model(x.roll((3, 5), (2, 3))))
        True
    """

    def __init__(
        self,
        spec: Sampling,
        depths: Sequence[int],
        widths: Sequence[int] = (64, 128, 256, 512),
        block: str = "basic",
        num_classes: int = 1000,
        stem: str = "imagenet",
        *,
        in_channels: int = 3,
        strided_conv1: bool = False,
        output_stride: int | None = None,
    ) -> None:
        super().__init__()
        check_choice("ResNet", "stem", stem, STEMS)
        check_choice("ResNet", "block", block, tuple(BLOCKS))
        check_positive("ResNet", num_classes=num_classes, in_channels=in_channels)
        if len(depths) != len(widths) or not depths:
            raise ValueError(
                f"ResNet: depths and widths need one number per stage, got {tuple(depths)} and"
                f" {tuple(widths)}."
            )
        if spec.dim != 2:
            raise ValueError(f"ResNet: works on images, got a Sampling with dim={spec.dim}.")
        strides = stage_strides(len(depths), 4 if stem == "imagenet" else 1, output_stride)
        conv1_samples = stem == "imagenet" and not strided_conv1
        num_layers = conv1_samples + (stem == "imagenet") + sum(s > 1 for s, _ in strides)
        specs = iter(spec.per_layer(num_layers))
        self.spec, self.stem, self.in_channels = spec, stem, in_channels
        self._build_stem(widths[0], specs, conv1_samples)
        self.stage_channels = [width * BLOCKS[block].expansion for width in widths]
        channels = widths[0]
        for number, (depth, width) in enumerate(zip(depths, widths, strict=True), start=1):
            stage = build_stage(channels, width, depth, block, strides[number - 1], specs, spec)
            self.add_module(f"layer{number}", stage)
            channels = self.stage_channels[number - 1]
        self.avgpool, self.fc = GlobalAvgPool(), nn.Linear(channels, num_classes)
        initialize(self)

    def _build_stem(self, width: int, specs: Iterator[Sampling], conv1_samples: bool) -> None:
        mode = self.spec.padding_mode
        self.conv1_down = self.maxpool_down = None
        if self.stem == "cifar":
            self.conv1 = same_conv(self.in_channels, width, 3, mode)
        else:
            first = next(specs).replace(antialias=None) if conv1_samples else None
            plain = first is None or first.is_plain
            self.conv1 = same_conv(self.in_channels, width, 7, mode, stride=2 if plain else 1)
            if first is not None:
                self.conv1_down = build_down(first, width, 2, self.in_channels, like=width)
            # The cost of a learned selector grows with the width of its map, here the largest.
            self.maxpool_down = build_down(next(specs), width, 2, max(1, width // 4), like=width)
        self.bn1 = nn.BatchNorm2d(width)

    @property
    def stages(self) -> list[nn.Module]:
        """The stages ``layer1``, ``layer2``, ..."""
        return [self.get_submodule(f"layer{i + 1}") for i in range(len(self.stage_channels))]

    @property
    def required_multiple(self) -> int | tuple[int, ...]:
        """What every image size must be a multiple of."""
        strides = [stage[0].stride for stage in self.stages]  # type: ignore[index]
        return multiples(self.spec, math.prod([4 if self.stem == "imagenet" else 1, *strides]))

    def _features(self, x: Tensor) -> Iterator[Feature]:
        check_image("ResNet", x, self.in_channels, self.required_multiple)
        x, steps = self._stem(x)
        for stage in self.stages:
            for block in stage:  # type: ignore[attr-defined]
                x, step = block(x)
                steps = steps if step is None else (*steps, step)
            yield Feature(x, steps)

    def _stem(self, x: Tensor) -> tuple[Tensor, tuple[Step, ...]]:
        if self.stem == "cifar":
            return F.relu(self.bn1(self.conv1(x)), inplace=True), ()
        mode, select = self.spec.padding_mode, self.spec.select_from
        y, first = conv_and_sample(self.conv1, self.bn1, self.conv1_down, x, 2, select)
        if self.maxpool_down is not None:
            pooled, second = max_and_sample(self.maxpool_down, y, mode, select)
            return pooled, (first, second)
        pooled = (
            F.max_pool2d(y, 3, 2, padding=1)
            if mode == "zeros"
            else F.max_pool2d(pad(y, ((1, 1), (1, 1)), mode), 3, 2)
        )
        return pooled, (first, first_phase(y, 2))


def initialize(model: nn.Module) -> None:
    """Initialize the trunk as torchvision does; selectors and filters keep their own start."""
    for module in model.modules():
        if isinstance(module, SameConv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class Builder(Protocol):
    """What ``resnet18`` and its like are called with."""

    def __call__(
        self,
        spec: Sampling,
        num_classes: int = 1000,
        stem: str = "imagenet",
        weights: Weights = None,
        **options: Any,
    ) -> ResNet: ...


def _builder(name: str) -> Builder:
    """Return the function that builds the ResNet of a name of :data:`SIZES`."""
    block, depths = SIZES[name]

    def build(
        spec: Sampling,
        num_classes: int = 1000,
        stem: str = "imagenet",
        weights: Weights = None,
        **options: Any,
    ) -> ResNet:
        model = ResNet(spec, depths, block=block, num_classes=num_classes, stem=stem, **options)
        return load_weights(model, weights, name)

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"""Build a ResNet-{name.removeprefix("resnet")}.

    Args:
        spec: How to sample.
        num_classes: Outputs.
        stem: ``"imagenet"`` or ``"cifar"``.
        weights: ``"torchvision"`` downloads its ImageNet weights; or a state dict with
            torchvision's names, or the path of one. Selectors and filters stay at their start, and
            so does the last layer if ``num_classes`` differs.
        options: Further arguments of :class:`ResNet`.
    """
    return saveable(build)


resnet18, resnet34, resnet50, resnet101, resnet152 = map(_builder, SIZES)


@saveable
def resnet(
    spec: Sampling,
    depths: Sequence[int],
    widths: Sequence[int],
    block: str = "basic",
    num_classes: int = 1000,
    stem: str = "imagenet",
    **options: Any,
) -> ResNet:
    """Build a residual network of any depth and width; arguments as for :class:`ResNet`.

    Examples:
        >>> small = resnet(Sampling("aps"), (1, 1, 1), (16, 32, 64), num_classes=10, stem="cifar")
        >>> small.required_multiple
        4
    """
    return ResNet(spec, depths, widths, block, num_classes, stem, **options)
