"""What segmenters have and classifiers do not: pyramids of dilated convolutions, pooled maps."""

import pytest
import torch
from networks import trained
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import trueshift as ts


class Pyramid(nn.Module):
    """A stride, dilations wider than the map, a pooled branch, and back up."""

    def __init__(self, rate=5, factor=2):
        super().__init__()
        self.down = nn.Conv2d(3, 16, 3, 2, 1)
        self.near, self.far = (nn.Conv2d(16, 16, 3, padding=r, dilation=r) for r in (1, rate))
        self.pooled, self.factor = nn.Conv2d(16, 16, 1), factor

    def forward(self, x):
        y = self.down(x).relu()
        one = self.pooled(F.adaptive_avg_pool2d(y, 1))
        spread = F.interpolate(one, size=y.shape[-2:], mode="bilinear", align_corners=False)
        y = torch.cat([self.near(y), self.far(y), spread], 1)
        return F.interpolate(y, scale_factor=self.factor, mode="bilinear", align_corners=True)


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.numel = max(self.numel, result.numel())
        return result


def bits_move(new, x, shift=(3, 5)):
    with torch.inference_mode():
        moved = new(x.roll(shift, (2, 3)))
        return torch.equal(moved, new(x).roll(shift, (2, 3)))


@pytest.mark.parametrize("rate", [5, 6, 8, 13, 36])  # on a circle of 8 pixels
def test_a_dilated_convolution_goes_the_short_way_round(rate):
    torch.manual_seed(0)
    model, x = Pyramid(rate), torch.randn(2, 3, 16, 16)
    new = ts.convert(model, ts.Sampling("stride"), x).eval()
    part = new.sampling.far
    y = torch.randn(2, 16, 8, 8)
    expected = F.conv2d(y.repeat(1, 1, 11, 11), *model.far.parameters(), dilation=rate)
    start = -rate % 8  # the first output has its centre at pixel `rate`
    expected = expected[..., start : start + 8, start : start + 8]
    with Largest() as seen, torch.no_grad():
        result = part(y, None, model.far.weight, model.far.bias)
    torch.testing.assert_close(result, expected)
    assert seen.numel <= y.numel() * (9 if rate % 8 == 0 else 4)


def test_a_pooled_value_is_the_same_everywhere():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 24, 40)
    new = ts.convert(trained(Pyramid()), "aps", x).eval()
    assert bits_move(new, x)
    assert bits_move(new, x[..., :16, :24])  # the size is the map's, not the example's
