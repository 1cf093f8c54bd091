"""A classifier whose output does not change when its input moves, not even in the last bit.

A convolution, a learnable down-sampling layer, a global pool and a linear layer: the smallest
network of the paper (its appendix, "LPD usage illustration"), here in float32. Run it::

    python examples/simple_classifier.py
"""

import torch
from torch import Tensor, nn

import trueshift as ts


class SimpleClassifier(nn.Module):
    """Class scores ``(B, num_classes)`` of RGB images with even height and width."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 32, 3, padding=1, padding_mode="circular")
        self.down = ts.LPD(32)
        self.pool = ts.GlobalAvgPool()
        self.linear = nn.Linear(32, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.pool(self.down(self.conv(x))))


def main() -> float:
    """Print and return the largest change of a score over every circular shift of an image."""
    torch.manual_seed(0)
    model = SimpleClassifier().eval()
    image = torch.rand(1, 3, 18, 12)
    height, width = image.shape[2:]
    with torch.inference_mode():
        scores = model(image)
        moved = [
            model(ts.shifts.circular_shift(image, dy, dx))
            for dy in range(height)
            for dx in range(width)
        ]
    difference = max((other - scores).abs().max().item() for other in moved)
    print("scores:", [round(score, 4) for score in scores[0].tolist()])
    print(f"largest difference over all {len(moved)} shifts: {difference}")
    return difference


if __name__ == "__main__":
    main()
