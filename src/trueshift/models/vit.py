"""A small vision transformer: patches where the content says, positions on a circle."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from trueshift._validate import check_positive
from trueshift.exact import order_free_mean
from trueshift.layers.resample import PolyphaseDown
from trueshift.layers.spec import Sampling
from trueshift.models.features import check_image
from trueshift.models.saving import saveable
from trueshift.models.tokens import Attention, Patches, from_phase, mlp


class Block(nn.Module):
    """Attention among all tokens, then two linear layers; both next to a shortcut."""

    def __init__(self, width: int, heads: int, side: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, heads, side, circular=True), mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """A vision transformer that knows how far apart, on a circle, any two patches are.

    With circular padding and method ``"lps"`` or ``"aps"``, in eval mode, the output is the same
    for every circular shift of the image: the content chooses where patches begin, and nothing
    else depends on where they are.

    Args:
        spec: How to sample.
        num_classes: Outputs.
        image_size: Height and width of images.
        patch: Size of a patch.
        width: Channels.
        depth: Blocks.
        heads: Heads of attention.
        in_channels: Channels of the image.

    Shape:
        ``(B, in_channels, image_size, image_size)`` to ``(B, num_classes)``.
    """

    def __init__(
        self,
        spec: Sampling,
        num_classes: int = 10,
        image_size: int = 32,
        patch: int = 4,
        width: int = 96,
        depth: int = 6,
        heads: int = 3,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        sizes = {"width": width, "depth": depth, "heads": heads, "patch": patch}
        check_positive("ViT", num_classes=num_classes, in_channels=in_channels, **sizes)
        if image_size % patch or width % heads:
            raise ValueError(
                "ViT: image_size must be a multiple of patch and width one of heads, got"
                f" {image_size}, {patch}, {width} and {heads}."
            )
        self.spec, self.in_channels, self.image_size = spec, in_channels, image_size
        spec = spec.replace(select_from="input")
        self.patches = Patches(spec, in_channels, width, patch)
        side = image_size // patch
        # Which patch comes first changes only how sums round. The content chooses it, by norm.
        selector = None if spec.is_plain else spec.replace(method="aps").selector(width)
        self.first = None if selector is None else PolyphaseDown(selector, side)
        self.blocks = nn.Sequential(*(Block(width, heads, side) for _ in range(depth)))
        self.norm, self.fc = nn.LayerNorm(width), nn.Linear(width, num_classes)

    @property
    def required_multiple(self) -> int:
        """What every image size must be a multiple of: there is one size."""
        return self.image_size

    def forward(self, x: Tensor) -> Tensor:
        check_image("ViT", x, self.in_channels, self.image_size)
        if tuple(x.shape[2:]) != (self.image_size,) * 2:
            raise ValueError(
                f"ViT: built for images of size {self.image_size}, got x of shape"
                f" {tuple(x.shape)}. Resize, or build it with image_size={x.shape[-1]}."
            )
        x = self.patches(x)
        if self.first is not None and not self.training:
            x = from_phase(x, self.first)
        x = self.blocks(x.flatten(2).transpose(1, 2))
        return self.fc(order_free_mean(self.norm(x), 1).to(x.dtype))


@saveable
def vit(spec: Sampling, num_classes: int = 10, **options: Any) -> ViT:
    """Build a :class:`ViT`; ``options`` are its further arguments.

    Examples:
        >>> import torch
        >>> model = vit(Sampling("aps"), depth=1).eval()
        >>> x = torch.randn(1, 3, 32, 32)
        >>> torch.allclose(model(x), model(x.roll((3, 5), (2, 3))), atol=1e-5)
        True
    """
    return ViT(spec, num_classes, **options)
