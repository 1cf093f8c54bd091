"""A small Swin transformer whose windows begin where the content says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from trueshift._validate import check_positive
from trueshift.exact import order_free_mean
from trueshift.layers.resample import PolyphaseDown
from trueshift.layers.spec import Sampling
from trueshift.models.features import check_image
from trueshift.models.saving import saveable
from trueshift.models.tokens import Attention, Patches, from_phase, mlp


class WindowBlock(nn.Module):
    """Attention in windows, then two linear layers; both next to a shortcut.

    Args:
        width: Channels.
        heads: Heads of attention.
        window: Size of a window.
        shift: How far the windows lie behind those of the block before.

    Shape:
        ``(B, H, W, width)`` to the same; windows begin at the corner of the map.
    """

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.window, self.shift = window, shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, heads, window, circular=False), mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attended(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    def _attended(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        n = self.window
        shifts = (self.shift, self.shift)
        x = x.roll([-s for s in shifts], (1, 2)) if self.shift else x
        x = x.view(b, h // n, n, w // n, n, c).transpose(2, 3)  # (B, h', w', n, n, C)
        x = self.attention(x.reshape(-1, n * n, c))
        x = x.view(b, h // n, w // n, n, n, c).transpose(2, 3).reshape(b, h, w, c)
        return x.roll(shifts, (1, 2)) if self.shift else x


class Stage(nn.Module):
    """Patches, then blocks in windows; the content chooses where both begin, once per stage.

    The map stays as the windows need it: on a circle it may begin anywhere.
    """

    def __init__(
        self,
        spec: Sampling,
        channels: tuple[int, int],
        patch: int,
        heads: int,
        depth: int,
        window: int,
    ) -> None:
        super().__init__()
        width = channels[1]
        self.patches = Patches(spec, *channels, patch)
        self.norm = nn.LayerNorm(width)
        self.windows = None
        if spec.method != "stride":
            # By norm for LPS too: nothing is dropped, and a soft choice would mix whole maps.
            self.windows = PolyphaseDown(spec.replace(method="aps").selector(width), window)
        shifts = [window // 2 * (i % 2) for i in range(depth)]
        self.blocks = nn.Sequential(*(WindowBlock(width, heads, window, s) for s in shifts))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        if self.windows is not None:
            x = from_phase(x, self.windows)
        x = self.blocks(self.norm(x.permute(0, 2, 3, 1)))
        return x.permute(0, 3, 1, 2)


class Swin(nn.Module):
    """Stages of attention in windows, every second block half a window further, on a circle.

    With circular padding and method ``"lps"`` or ``"aps"``, in eval mode, the output is the same
    for every circular shift of the image.

    Args:
        spec: How to sample.
        num_classes: Outputs.
        widths: Channels of each stage.
        depths: Blocks of each stage.
        heads: Heads of attention of each stage.
        patch: Size of a patch of the image; later stages join two by two.
        window: Size of a window.
        in_channels: Channels of the image.

    Shape:
        ``(B, in_channels, H, W)`` to ``(B, num_classes)``; ``H`` and ``W`` must be multiples of
        ``required_multiple``.
    """

    def __init__(
        self,
        spec: Sampling,
        num_classes: int = 10,
        widths: Sequence[int] = (48, 96, 192),
        depths: Sequence[int] = (2, 2, 2),
        heads: Sequence[int] = (3, 6, 12),
        patch: int = 2,
        window: int = 4,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        check_positive("Swin", num_classes=num_classes, patch=patch, window=window)
        if not len(widths) == len(depths) == len(heads) > 0:
            raise ValueError(
                "Swin: widths, depths and heads need one value per stage, got"
                f" {tuple(widths)}, {tuple(depths)} and {tuple(heads)}."
            )
        self.spec, self.in_channels = spec, in_channels
        patches = [patch, *[2] * (len(widths) - 1)]
        spec = spec.replace(select_from="input")
        channels = list(zip([in_channels, *widths[:-1]], widths, strict=True))
        self.stages = nn.Sequential(
            *(
                Stage(spec, *sizes, window)
                for sizes in zip(channels, patches, heads, depths, strict=True)
            )
        )
        self.required_multiple = patch * 2 ** (len(widths) - 1) * window
        self.norm, self.fc = nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        check_image("Swin", x, self.in_channels, self.required_multiple)
        x = self.norm(self.stages(x).flatten(2).transpose(1, 2))
        return self.fc(order_free_mean(x, 1).to(x.dtype))


@saveable
def swin(spec: Sampling, num_classes: int = 10, **options: Any) -> Swin:
    """Build a :class:`Swin`; ``options`` are its further arguments.

    Examples:
        >>> import torch
        >>> model = swin(Sampling("aps"), depths=(1, 1, 1)).eval()
        >>> x = torch.randn(1, 3, 32, 32)
        >>> torch.allclose(model(x), model(x.roll((3, 5), (2, 3))), atol=1e-5)
        True
    """
    return Swin(spec, num_classes, **options)
