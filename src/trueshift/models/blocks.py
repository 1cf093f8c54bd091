"""Residual blocks and stages of them; strided ones sample as a ``Sampling`` says."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn import functional as F

from trueshift.layers.conv import SameConv, same_conv
from trueshift.layers.spec import Sampling
from trueshift.models.down import build_down, conv_and_sample
from trueshift.models.features import Step


class BasicBlock(nn.Module):
    """Two 3x3 convolutions next to a shortcut; sampling comes after the first one."""

    expansion = 1

    def __init__(
        self, in_channels: int, channels: int, stride: int, dilation: int, spec: Sampling
    ) -> None:
        super().__init__()
        mode, plain = spec.padding_mode, stride if spec.is_plain else 1
        self.conv1 = same_conv(in_channels, channels, 3, mode, stride=plain, dilation=dilation)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = same_conv(channels, channels, 3, mode, dilation=dilation)
        self.bn2 = nn.BatchNorm2d(channels)
        self.down = build_down(spec, channels, stride, in_channels)
        self.follow, self.downsample = _shortcut(spec, in_channels, channels, stride)
        self.stride, self.select_from = stride, spec.select_from

    def forward(self, x: Tensor) -> tuple[Tensor, Step | None]:
        main, step = _conv_and_sample(self, self.conv1, self.bn1, x)
        main = self.bn2(self.conv2(main))
        main += _identity(self, x, step)
        return F.relu(main, inplace=True), step


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions next to a shortcut; sampling comes after the 3x3 one."""

    expansion = 4

    def __init__(
        self, in_channels: int, channels: int, stride: int, dilation: int, spec: Sampling
    ) -> None:
        super().__init__()
        mode, plain = spec.padding_mode, stride if spec.is_plain else 1
        out_channels = channels * self.expansion
        self.conv1 = same_conv(in_channels, channels, 1, mode)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = same_conv(channels, channels, 3, mode, stride=plain, dilation=dilation)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = same_conv(channels, out_channels, 1, mode)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.down = build_down(spec, channels, stride, channels)
        self.follow, self.downsample = _shortcut(spec, in_channels, out_channels, stride)
        self.stride, self.select_from = stride, spec.select_from

    def forward(self, x: Tensor) -> tuple[Tensor, Step | None]:
        main = F.relu(self.bn1(self.conv1(x)), inplace=True)
        main, step = _conv_and_sample(self, self.conv2, self.bn2, main, x)
        main = self.bn3(self.conv3(main))
        main += _identity(self, x, step)
        return F.relu(main, inplace=True), step


def _shortcut(
    spec: Sampling, in_channels: int, out_channels: int, stride: int
) -> tuple[nn.Module | None, nn.Module | None]:
    """Build what the shortcut needs: a follower of the main branch's phase, and a projection."""
    if stride == 1 and in_channels == out_channels:
        return None, None
    plain = stride if spec.is_plain else 1
    follow = spec.follow(in_channels, stride) if stride > plain else None
    project = same_conv(in_channels, out_channels, 1, spec.padding_mode, stride=plain)
    return follow, nn.Sequential(project, nn.BatchNorm2d(out_channels))


def _conv_and_sample(
    block: BasicBlock | Bottleneck,
    conv: SameConv,
    norm: nn.Module,
    x: Tensor,
    source: Tensor | None = None,
) -> tuple[Tensor, Step | None]:
    if block.stride == 1:
        return F.relu(norm(conv(x)), inplace=True), None
    return conv_and_sample(conv, norm, block.down, x, block.stride, block.select_from, source)


def _identity(block: BasicBlock | Bottleneck, x: Tensor, step: Step | None) -> Tensor:
    if block.follow is not None and step is not None:
        x = block.follow(x, phase=step.phase)
    return x if block.downsample is None else block.downsample(x)


BLOCKS: dict[str, type[BasicBlock] | type[Bottleneck]] = {
    "basic": BasicBlock,
    "bottleneck": Bottleneck,
}


def stage_strides(
    num_stages: int, stem_stride: int, output_stride: int | None
) -> list[tuple[int, int]]:
    """Return (stride, dilation) of each stage; dilation takes over at ``output_stride``."""
    total, dilation, strides = stem_stride, 1, [(1, 1)]
    for _ in range(num_stages - 1):
        if output_stride is None or total < output_stride:
            total *= 2
            strides.append((2, dilation))
        else:
            dilation *= 2
            strides.append((1, dilation))
    if output_stride is not None and total != output_stride:
        allowed = ", ".join(str(stem_stride * 2**i) for i in range(num_stages))
        raise ValueError(
            f"ResNet: output_stride must be one of {allowed} for this stem and number of stages,"
            f" got {output_stride!r}."
        )
    return strides


def build_stage(
    in_channels: int,
    channels: int,
    depth: int,
    block: str,
    sampling: tuple[int, int],
    specs: Iterator[Sampling],
    spec: Sampling,
) -> nn.Sequential:
    """Build one stage; as in torchvision, its first block has the dilation of the stage before."""
    stride, dilation = sampling
    before = max(dilation // 2, 1) if stride == 1 else dilation
    kind = BLOCKS[block]
    first = kind(in_channels, channels, stride, before, next(specs) if stride > 1 else spec)
    wide = channels * kind.expansion
    rest = [kind(wide, channels, 1, dilation, spec) for _ in range(depth - 1)]
    return nn.Sequential(first, *rest)
