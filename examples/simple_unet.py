"""An encoder and decoder whose output moves exactly with its input.

A convolution, a learnable down-sampling layer, a second convolution, and up-sampling back to where
the pixels came from: the second network of the paper's appendix ("LPU usage illustration"), here in
float32. Run it::

    python examples/simple_unet.py
"""

import torch
from torch import Tensor, nn

import trueshift as ts


class SimpleUNet(nn.Module):
    """Features ``(B, 32, H, W)`` of RGB images with even height and width."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1, padding_mode="circular")
        self.down = ts.LPD(32)
        self.conv2 = nn.Conv2d(32, 32, 3, padding=1, padding_mode="circular")
        self.up = ts.LPU(32, antialias="tri3")

    def forward(self, x: Tensor) -> Tensor:
        y, phase = self.down(self.conv1(x), return_phase=True)
        return self.up(self.conv2(y), phase)


def main() -> float:
    """Print and return the largest difference to the shifted output, over every circular shift."""
    torch.manual_seed(0)
    model = SimpleUNet().eval()
    image = torch.rand(1, 3, 18, 12)
    height, width = image.shape[2:]
    shifts = [(dy, dx) for dy in range(height) for dx in range(width)]
    with torch.inference_mode():
        features = model(image)
        difference = 0.0
        for dy, dx in shifts:
            moved = model(ts.shifts.circular_shift(image, dy, dx))
            back = ts.shifts.circular_shift(moved, -dy, -dx)
            difference = max(difference, (back - features).abs().max().item())
    print("image:", tuple(image.shape), "features:", tuple(features.shape))
    print(f"largest difference over all {len(shifts)} shifts: {difference}")
    return difference


if __name__ == "__main__":
    main()
