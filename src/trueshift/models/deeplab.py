"""DeepLabV3+ with shift-equivariant sampling (paper section 5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from trueshift._validate import Mode, check_positive
from trueshift.exact import follow_layout, layout_of
from trueshift.layers.conv import same_conv
from trueshift.layers.pooling import GlobalAvgPool
from trueshift.layers.spec import Sampling
from trueshift.models import resnet
from trueshift.models.features import Feature
from trueshift.models.resnet import ResNet
from trueshift.models.saving import saveable
from trueshift.models.upsampling import build_ups

_ATROUS_RATES = {8: (12, 24, 36), 16: (6, 12, 18), 32: (6, 12, 18)}


def _conv_bn_relu(
    in_channels: int, out_channels: int, size: int, mode: Mode, **options: Any
) -> Any:
    conv = same_conv(in_channels, out_channels, size, mode, **options)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))


class PooledContext(nn.Sequential):
    """The mean of the map, projected, at every pixel."""

    def __init__(self, in_channels: int, channels: int, mode: Mode) -> None:
        conv = same_conv(in_channels, channels, 1, mode)
        super().__init__(GlobalAvgPool(), conv, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        pool, conv, norm, relu = self
        y = relu(norm(conv(pool(x)[:, :, None, None])))
        return layout_of(x, y.expand(-1, -1, *x.shape[2:]))


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling: convolutions of several reaches, side by side.

    Circular borders wrap as often as a reach needs, on maps smaller than it too.
    """

    def __init__(self, in_channels: int, channels: int, rates: Sequence[int], mode: Mode) -> None:
        super().__init__()
        reaches = [_conv_bn_relu(in_channels, channels, 3, mode, dilation=r) for r in rates]
        self.convs = nn.ModuleList(
            [
                _conv_bn_relu(in_channels, channels, 1, mode),
                *reaches,
                PooledContext(in_channels, channels, mode),
            ]
        )
        self.project = _conv_bn_relu(channels * len(self.convs), channels, 1, mode)
        self.project.append(nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        return self.project(torch.cat([conv(x) for conv in self.convs], dim=1))


class Decoder(nn.Module):
    """Join the pyramid, brought up to stride 4, with low-level features; classify each pixel."""

    def __init__(
        self,
        spec: Sampling,
        up: str | None,
        in_channels: int,
        low_channels: int,
        rates: Sequence[int],
        num_steps: int,
        num_classes: int,
        width: int,
    ) -> None:
        super().__init__()
        mode, low_width = spec.padding_mode, max(width * 3 // 16, 1)
        self.project = _conv_bn_relu(low_channels, low_width, 1, mode)
        self.aspp = ASPP(in_channels, width, rates, mode)
        self.unpool = build_ups(up, spec, width, num_steps)
        self.classifier = _conv_bn_relu(width + low_width, width, 3, mode)
        self.classifier.append(same_conv(width, num_classes, 1, mode, bias=True))

    def forward(self, low: Feature, high: Feature) -> Tensor:
        above = high.steps[len(low.steps) :]
        context = self.unpool(self.aspp(high.x), above)
        return self.classifier(torch.cat([self.project(low.x), context], dim=1))


class DeepLabV3Plus(nn.Module):
    """DeepLabV3+ on a ResNet: atrous pyramid, low-level features, decoder.

    With circular padding and method ``"lps"`` or ``"aps"``, in eval mode, the output for a
    circularly shifted image is bitwise the shifted output: every up-sampling places values by the
    phases of the encoder. With method ``"stride"`` up-sampling is bilinear, as in DeepLabV3+.

    Args:
        spec: How to sample.
        backbone: A :class:`ResNet` with an ImageNet stem and four stages.
        num_classes: Labels.
        up: ``"polyphase"`` (LPU) or ``"linear"``; the paper's "LPD only" is ``"lps"`` with
            ``"linear"``. ``None`` chooses by the method.
        decoder_width: Channels of the pyramid and of the decoder.

    Shape:
        ``(B, 3, H, W)`` to logits ``(B, num_classes, H, W)``.

    Examples:
        >>> model = deeplabv3plus_resnet18(Sampling("lps", "tri3", hidden=4), num_classes=3).eval()
        >>> x = torch.randn(1, 3, 64, 64)
        >>> torch.equal(model(x.roll(5, 2)), model(x).roll(5, 2))
        True
    """

    def __init__(
        self,
        spec: Sampling,
        backbone: ResNet,
        num_classes: int = 21,
        up: str | None = None,
        decoder_width: int = 256,
    ) -> None:
        super().__init__()
        check_positive("DeepLabV3Plus", num_classes=num_classes, decoder_width=decoder_width)
        self.spec, self.backbone = spec, backbone
        backbone.fc = nn.Identity()
        strides = [stage[0].stride for stage in backbone.stages]  # type: ignore[index]
        num_steps = sum(stride > 1 for stride in strides)
        self.classifier = Decoder(
            spec,
            up,
            backbone.stage_channels[-1],
            backbone.stage_channels[0],
            _ATROUS_RATES[4 * 2**num_steps],
            num_steps,
            num_classes,
            decoder_width,
        )
        self.unpool = build_ups(up, spec, num_classes, num_steps=2)
        resnet.initialize(self.classifier)

    @property
    def required_multiple(self) -> int | tuple[int, ...]:
        """What every image size must be a multiple of."""
        return self.backbone.required_multiple

    def features(self, x: Tensor) -> list[Feature]:
        """Return the maps of the backbone's stages, with their phases and strides."""
        return self.backbone.features(x)

    def forward(self, x: Tensor) -> Tensor:
        low, *_, high = self.features(x)
        return follow_layout(x, self.unpool(self.classifier(low, high), low.steps))


class Builder(Protocol):
    """What ``deeplabv3plus_resnet18`` and its like are called with."""

    def __call__(
        self,
        spec: Sampling,
        num_classes: int = 21,
        output_stride: int = ...,
        up: str | None = None,
        *,
        decoder_width: int = 256,
        **options: Any,
    ) -> DeepLabV3Plus: ...


def _builder(name: str, usual_stride: int) -> Builder:
    """Return the function that builds a DeepLabV3+ on the ResNet of a name."""

    def build(
        spec: Sampling,
        num_classes: int = 21,
        output_stride: int = usual_stride,
        up: str | None = None,
        *,
        decoder_width: int = 256,
        **options: Any,
    ) -> DeepLabV3Plus:
        backbone = getattr(resnet, name)(
            spec, num_classes=1, output_stride=output_stride, **options
        )
        return DeepLabV3Plus(spec, backbone, num_classes, up, decoder_width)

    build.__name__ = build.__qualname__ = f"deeplabv3plus_{name}"
    build.__doc__ = f"""Build a DeepLabV3+ on a ResNet-{name.removeprefix("resnet")}.

    Args:
        spec: How to sample.
        num_classes: Labels.
        output_stride: Total stride of the backbone: 32, or 16 or 8 with dilation. The authors'
            ResNet-18 has 32, their ResNet-101 has 16.
        up: ``"polyphase"``, ``"linear"`` or ``None``; see :class:`DeepLabV3Plus`.
        decoder_width: See :class:`DeepLabV3Plus`.
        options: Further arguments of :func:`{name}`, for instance ``weights``.
    """
    return saveable(build)


deeplabv3plus_resnet18 = _builder("resnet18", 32)
deeplabv3plus_resnet50 = _builder("resnet50", 16)
deeplabv3plus_resnet101 = _builder("resnet101", 16)
