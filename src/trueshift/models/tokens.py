"""Parts of transformers: patches where the content says, attention with relative positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trueshift.layers.activations import GELU
from trueshift.layers.conv import same_conv
from trueshift.layers.resample import PolyphaseDown
from trueshift.layers.spec import Sampling
from trueshift.windows import phase_window


class Patches(nn.Module):
    """A convolution as large as its stride; the content chooses where patches begin.

    Args:
        spec: How to choose, and what filters the map before.
        in_channels: Channels of the map.
        width: Channels of the patches.
        patch: Size of a patch.

    Shape:
        ``(B, in_channels, H, W)`` to ``(B, width, H // patch, W // patch)``.
    """

    def __init__(self, spec: Sampling, in_channels: int, width: int, patch: int) -> None:
        super().__init__()
        stride = patch if spec.is_plain else 1
        mode = spec.padding_mode
        self.conv = same_conv(in_channels, width, patch, mode, bias=True, stride=stride)
        self.down = None if spec.is_plain else spec.down(in_channels, patch, like=width)

    def forward(self, x: Tensor) -> Tensor:
        if self.down is None:
            return self.conv(x)
        y = self.down.extend(x if self.down.antialias is None else self.down.antialias(x))
        return self.conv(y, self.down.choose(y, x), self.down.stride)


class RelativeBias(nn.Module):
    """A learned bias for every distance between two tokens of a square map.

    Args:
        side: Tokens along each axis.
        heads: Heads of attention.
        circular: Whether distances are those on a circle of ``side`` tokens.
    """

    index: Tensor

    def __init__(self, side: int, heads: int, circular: bool) -> None:
        super().__init__()
        steps = side if circular else 2 * side - 1  # distances along an axis
        self.table = nn.Parameter(torch.randn(steps**2, heads) * 0.02)
        places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).t()  # (2, T)
        ways = (places[:, :, None] - places[:, None]) % steps
        self.register_buffer("index", ways[0] * steps + ways[1], persistent=False)

    def forward(self) -> Tensor:
        return self.table[self.index].permute(2, 0, 1)  # (heads, T, T)


class Attention(nn.Module):
    """Attention among the tokens of a square map, with a bias for their distances.

    Shape:
        ``(N, side * side, width)`` to the same.
    """

    def __init__(self, width: int, heads: int, side: int, circular: bool) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = RelativeBias(side, heads, circular)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        qkv = self.qkv(x).view(n, t, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (N, heads, T, d)
        scores = q * (width // self.heads) ** -0.5 @ k.transpose(-2, -1) + self.bias()
        # Not F.scaled_dot_product_attention, whose bfloat16 gradient is slow on CPUs.
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, width))


def mlp(width: int, ratio: int = 4) -> nn.Sequential:
    """Build the two linear layers of a block."""
    return nn.Sequential(nn.Linear(width, ratio * width), GELU(), nn.Linear(ratio * width, width))


def from_phase(x: Tensor, choice: PolyphaseDown) -> Tensor:
    """Move a map to begin at the phase that its content chooses, as windows or tokens do."""
    window = int(choice.stride)  # type: ignore[arg-type]
    widths = ((0, window - 1),) * (x.ndim - 2)
    return phase_window(x, choice.choose(x), (window,) * (x.ndim - 2), widths, "circular")
