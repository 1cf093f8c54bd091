"""Small networks that several test files share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import trueshift as ts

SPECS = {
    "lps": ts.Sampling("lps", groups=4, hidden=4),
    "aps": ts.Sampling("aps", groups=4),
    "lps+tri3": ts.Sampling("lps", "tri3", groups=4, hidden=4),
    "aps+rect2": ts.Sampling("aps", "rect2", groups=4),
    "lps+adapt3": ts.Sampling("lps", "adapt3", groups=4, hidden=4),
    "lps+tri3, scored before the filter": ts.Sampling(
        "lps", "tri3", groups=4, hidden=4, score_filtered=False
    ),
    "lps+adapt3, scored before the filter": ts.Sampling(
        "lps", "adapt3", groups=4, hidden=4, score_filtered=False
    ),
}


def conv(channels: int, out_channels: int, size: int = 3) -> nn.Conv2d:
    """Build a convolution that wraps around."""
    return nn.Conv2d(
        channels, out_channels, size, padding=size // 2, padding_mode="circular", bias=False
    )


class ResidualDown(nn.Module):
    """Convolution, batch norm, ReLU and down-sampling, beside a shortcut that follows the phase."""

    def __init__(self, spec: ts.Sampling, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(channels, out_channels), nn.BatchNorm2d(out_channels)
        self.down = spec.down(out_channels)
        self.conv2, self.bn2 = conv(out_channels, out_channels), nn.BatchNorm2d(out_channels)
        self.follow = spec.follow(channels)
        self.project, self.bn3 = conv(channels, out_channels, 1), nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        main, phase = self.down(self.bn1(self.conv1(x)).relu(), return_phase=True)
        main = self.bn2(self.conv2(main))
        return (main + self.bn3(self.project(self.follow(x, phase=phase)))).relu()


class Classifier(nn.Module):
    """Three residual stages at total stride 8, global average pooling, a linear layer."""

    def __init__(self, spec: ts.Sampling, in_channels: int = 3, num_classes: int = 5) -> None:
        super().__init__()
        self.stem = conv(in_channels, 8)
        self.stages = nn.Sequential(
            ResidualDown(spec, 8, 8), ResidualDown(spec, 8, 12), ResidualDown(spec, 12, 16)
        )
        self.pool, self.head = ts.GlobalAvgPool(), nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.stages(self.stem(x))))


class EncoderDecoder(nn.Module):
    """Two levels down, two levels up with the same phases, a skip connection on each level."""

    def __init__(self, spec: ts.Sampling, in_channels: int = 3, num_classes: int = 3) -> None:
        super().__init__()
        self.conv1, self.bn1, self.down1 = conv(in_channels, 8), nn.BatchNorm2d(8), spec.down(8)
        self.conv2, self.bn2, self.down2 = conv(8, 12), nn.BatchNorm2d(12), spec.down(12)
        self.bottom = conv(12, 12)
        self.up2, self.conv3 = spec.up(12), conv(12, 8)
        self.up1, self.conv4 = spec.up(8), conv(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.bn1(self.conv1(x)).relu()
        half, phase1 = self.down1(fine, return_phase=True)
        middle = self.bn2(self.conv2(half)).relu()
        quarter, phase2 = self.down2(middle, return_phase=True)
        y = self.bottom(quarter).relu()
        y = self.conv3(self.up2(y, phase2) + middle).relu()
        return self.conv4(self.up1(y, phase1) + fine)


def trained(network: nn.Module, seed: int = 0) -> nn.Module:
    """Give every batch norm the state that a trained one could have, and set eval mode."""
    generator = torch.Generator().manual_seed(seed)

    def fill(tensor: Tensor | None, low: float, high: float) -> None:
        if tensor is not None:
            tensor.uniform_(low, high, generator=generator)

    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                fill(module.running_mean, -0.3, 0.3)
                fill(module.running_var, 0.2, 1.5)
                fill(module.weight, 0.5, 1.5)
                fill(module.bias, -0.3, 0.5)
    return network.eval()
