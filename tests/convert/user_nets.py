"""Networks as users write them: functional calls, branches, one to three axes, several inputs."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    """A convolution and whatever a test wants of its map."""

    def __init__(self, after, **options):
        super().__init__()
        self.after, self.conv = after, nn.Conv2d(3, 4, 3, **({"padding": 1} | options))

    def forward(self, x):
        return self.after(self.conv(x.to(self.conv.weight.dtype)))


class Block(nn.Module):
    """A strided residual block with a shortcut."""

    def __init__(self, channels, out_channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out_channels, 3, 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1)
        self.short = nn.Conv2d(channels, out_channels, 1, 2)

    def forward(self, x):
        return F.relu(self.conv2(F.relu(self.bn1(self.conv1(x)))) + self.short(x))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 7, 2, 3)
        self.block1, self.block2 = Block(8, 8), Block(8, 12)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        return self.head(self.block2(self.block1(x)).mean((2, 3)))


class FunctionalUnet(nn.Module):
    """Encoder and decoder with skips; every sampling is a function call."""

    def __init__(self, mode="nearest", align_corners=None):
        super().__init__()
        self.options = {"mode": mode, "align_corners": align_corners}
        self.a = nn.Conv2d(3, 6, 3, padding=1)
        self.b = nn.Conv2d(6, 8, 3, padding=1)
        self.c = nn.Conv2d(8, 8, 3, padding=1)
        self.d = nn.Conv2d(16, 6, 3, padding=1)
        self.e = nn.Conv2d(12, 3, 1)

    def forward(self, x):
        a = F.relu(self.a(x))
        b = F.relu(self.b(F.max_pool2d(a, 2)))
        c = F.relu(self.c(F.avg_pool2d(b, 2)))
        up = F.interpolate(c, size=b.shape[-2:], **self.options)
        d = F.relu(self.d(torch.cat([up, b], 1)))
        up = F.interpolate(d, scale_factor=2, **self.options)
        return self.e(torch.cat([up, a], 1))


class JumpUnet(nn.Module):
    """A stride-4 stem next to two strides of 2, transposed convolutions, a jump of 4."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 6, 4, 4)
        self.one, self.two = nn.Conv2d(3, 6, 3, 2, 1), nn.Conv2d(6, 6, 3, 2, 1)
        self.up = nn.ConvTranspose2d(6, 4, 4, 2, 1)
        self.up2 = nn.ConvTranspose2d(4, 4, 2, 2)
        self.last = nn.Conv2d(4 + 6, 2, 3, padding=1)

    def forward(self, x):
        y = self.patch(x) + self.two(F.relu(self.one(x)))
        fine = self.up2(F.relu(self.up(y)))
        return self.last(torch.cat([fine, F.interpolate(y, size=x.shape[2:], mode="bicubic")], 1))


class SuperResolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        return self.b(F.pixel_shuffle(F.relu(self.a(x)), 2)) + F.interpolate(x, scale_factor=2)


class Signal(nn.Module):
    """1-D, strides 3 and 2, squeeze-excitation."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv1d(2, 8, 9, 3, 4), nn.Conv1d(8, 8, 5, 2, 2)
        self.gate, self.head = nn.Conv1d(8, 8, 1), nn.Linear(8, 4)

    def forward(self, x):
        x = F.gelu(self.b(F.gelu(self.a(x))))
        x = x * torch.sigmoid(self.gate(F.adaptive_avg_pool1d(x, 1)))
        return self.head(torch.amax(x, -1))


class Profile(nn.Module):
    """A 1-D map of an image: rows are averaged, columns are sampled."""

    def __init__(self):
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 6, 3, 2, 1), nn.Conv1d(6, 8, 3, 2, 1)
        self.short, self.head = nn.Conv1d(6, 8, 1, 2), nn.Linear(8, 4)

    def forward(self, x):
        x = F.relu(self.stem(x)).mean(2)
        return self.head((F.relu(self.down(x)) + self.short(x)).mean(2))


class Volume(nn.Module):
    """3-D, anisotropic stride, trilinear up-sampling."""

    def __init__(self):
        super().__init__()
        self.a = nn.Conv3d(1, 4, 3, (1, 2, 2), 1)
        self.b = nn.Conv3d(4, 6, 3, 2, 1)
        self.c = nn.Conv3d(10, 2, 3, padding=1)

    def forward(self, x):
        a = F.relu(self.a(x))
        b = F.interpolate(F.relu(self.b(a)), scale_factor=2, mode="trilinear")
        return F.interpolate(self.c(torch.cat([a, b], 1)), size=x.shape[2:], mode="nearest")


class TwoInputs(nn.Module):
    """Two images that meet at half size, and a vector of other features."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 3, 2, 1), nn.Conv2d(1, 6, 3, 2, 1)
        self.c, self.head = nn.Conv2d(12, 8, 3, 2, 1), nn.Linear(8 + 4, 3)

    def forward(self, image, depth, features):
        x = torch.cat([F.relu(self.a(image)), F.relu(self.b(depth))], 1)
        x = F.adaptive_avg_pool2d(F.relu(self.c(x)), 1).flatten(1)
        return self.head(torch.cat([x, features], 1))


class Siamese(nn.Module):
    """Two images that never meet in space: they may move independently."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1))

    def forward(self, left, right):
        return (self.body(left).mean((2, 3)) * self.body(right).mean((2, 3))).sum(1)


class Focus(nn.Module):
    """Space to channels by slices, then valid convolutions with a crop that matches them."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(12, 8, 3), nn.Conv2d(8, 8, 5)

    def forward(self, x):
        parts = [x[..., i::2, j::2] for i in (0, 1) for j in (0, 1)]
        x = F.relu(self.a(torch.cat(parts, 1)))
        return (self.b(x) + x[:, :, 2:-2, 2:-2]).amax((2, 3))


class Attention(nn.Module):
    """Attention from all positions to those of a strided map, without positions."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.q, self.k, self.v = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 2, 2), nn.AvgPool2d(2)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x):
        x = F.relu(self.stem(x))
        b, c, h, w = x.shape
        q = self.q(x).reshape(b, 2, c // 2, h * w).transpose(-1, -2)
        k = self.k(x).reshape(b, 2, c // 2, -1)
        v = self.v(x).reshape(b, 2, c // 2, -1).transpose(-1, -2)
        y = (torch.softmax(q @ k, -1) @ v).transpose(-1, -2).reshape(b, c, h, w)
        y = self.norm((x + y).permute(0, 2, 3, 1))
        return self.head(y.mean((1, 2)))


class Pyramid(nn.Module):
    """Pools to bins that do not divide the map, and returns (PSPNet)."""

    def __init__(self):
        super().__init__()
        self.stem, self.mix = nn.Conv2d(3, 6, 3, 2, 1), nn.Conv2d(6, 4, 1)
        self.last = nn.Conv2d(6 + 8, 2, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.stem(x))
        size = x.shape[2:]
        bins = [self.mix(F.adaptive_avg_pool2d(x, n)) for n in (1, 3)]
        parts = [F.interpolate(part, size=size, mode="bilinear") for part in bins]
        return F.interpolate(self.last(torch.cat([x, *parts], 1)), scale_factor=2)


class SamePadding(nn.Module):
    """TensorFlow's padding, computed from sizes; a branch on them; a dropout in the code."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, 2), nn.Conv2d(8, 8, 3, 2)

    def forward(self, x):
        for conv in (self.a, self.b):
            height, width = x.shape[-2:]
            rows = max((-(-height // 2) - 1) * 2 + 3 - height, 0)
            columns = max((-(-width // 2) - 1) * 2 + 3 - width, 0)
            if rows > 0 or columns > 0:
                x = F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
            x = F.relu(conv(x))
        return F.dropout(x.mean((2, 3)), 0.5, self.training)


def sequential():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        nn.GroupNorm(2, 8),
        nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


def image(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


def fit(new, loss_of, steps=20):
    """Train for a few steps; return the losses and the selectors' weights that did not change."""
    before = {n: p.detach().clone() for n, p in new.named_parameters() if "selector" in n}
    optimizer = torch.optim.Adam(new.train().parameters(), 1e-2)
    losses = []
    for _ in range(steps):
        loss = loss_of(new)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    after = dict(new.eval().named_parameters())
    return losses, [name for name, value in before.items() if torch.equal(after[name], value)]


RGB = (2, 3, 24, 16)
NETS = {
    "sequential": (sequential, (image(*RGB),)),
    "residual": (Residual, (image(2, 3, 32, 48),)),
    "unet nearest": (FunctionalUnet, (image(*RGB),)),
    "unet bilinear": (lambda: FunctionalUnet("bilinear", False), (image(*RGB),)),
    "unet corners": (lambda: FunctionalUnet("bilinear", True), (image(*RGB),)),
    "jump unet": (JumpUnet, (image(*RGB),)),
    "super resolution": (SuperResolution, (image(2, 3, 6, 5),)),
    "signal": (Signal, (image(2, 2, 36),)),
    "profile": (Profile, (image(*RGB),)),
    "volume": (Volume, (image(1, 1, 4, 8, 12),)),
    "two inputs": (TwoInputs, (image(*RGB), image(2, 1, 24, 16), image(2, 4))),
    "siamese": (Siamese, (image(*RGB), image(*RGB).flip(2))),
    "focus": (Focus, (image(2, 3, 32, 24),)),
    "attention": (Attention, (image(*RGB),)),
    "pyramid": (Pyramid, (image(2, 3, 20, 16),)),
    "same padding": (SamePadding, (image(*RGB),)),
}
