"""What learned selectors read: the narrowest of the maps that pointwise operations link."""

import pytest
import torch
from networks import trained
from torch import nn
from user_nets import image

from trueshift.convert import convert
from trueshift.layers.spec import Sampling
from trueshift.shifts import circular_shift

X = image(4, 3, 32, 16)
LPS = Sampling("lps", select_from="input")


class Expanded(nn.Module):
    """An inverted bottleneck: a narrow map becomes a wide one, which is sampled."""

    def __init__(self, kernel=1, stride=1):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU())
        padding = kernel // 2
        self.expand = nn.Conv2d(6, 24, kernel, stride, padding, bias=False)
        self.norm, self.relu = nn.BatchNorm2d(24), nn.ReLU6(inplace=True)
        self.down = nn.Conv2d(24, 24, 3, 2, 1, groups=24)
        self.head = nn.Linear(24, 5)

    def forward(self, x):
        x = self.relu(self.norm(self.expand(self.stem(x))))
        return self.head(self.down(x).mean((2, 3)))


class Coloured(nn.Module):
    """The widest and the narrowest map are one product apart; bytes come before both."""

    def __init__(self):
        super().__init__()
        self.register_buffer("colours", torch.tensor([0.2, 0.5, 0.3]).view(1, 3, 1, 1))
        self.down = nn.Conv2d(3, 8, 3, 2, 1)

    def forward(self, x):
        return self.down(x * self.colours).mean((2, 3))


def seen(model, spec, x=X):
    new = convert(model, spec, x)
    selectors = [m for m in new.modules() if type(m).__name__ == "ConvSelector"]
    y = new(x)
    for shift in ((1, 0), (0, 3), (5, 2)):
        assert new(circular_shift(x, *shift)).equal(y)
    return [selector.channels for selector in selectors]


@pytest.mark.parametrize("inplace", [False, True])  # the narrow map may be overwritten
def test_before_an_expansion(inplace):
    model = trained(Expanded())
    model.stem[1] = nn.ReLU(inplace=inplace)
    assert seen(model, LPS) == [6]


class OfTwo(Expanded):
    """Two maps make one, one of them narrower than the sum."""

    def forward(self, x):
        x = self.stem(x)
        x = self.relu(self.norm(self.expand(x + x[:, :1])))
        return self.head(self.down(x).mean((2, 3)))


@pytest.mark.parametrize(
    ("build", "spec", "widths"),
    [
        (lambda: Expanded(kernel=3), LPS, [24]),  # a window lies between
        (lambda: Expanded(stride=2), LPS, [6, 24]),  # another down-sampling
        (OfTwo, LPS, [6]),  # two maps meet
        (Expanded, Sampling("lps"), [24]),  # chosen from the output
    ],
)
def test_not_beyond_what_is_not_pointwise(build, spec, widths):
    assert seen(trained(build()), spec) == widths


def test_norms_cost_little_and_stay_where_they_are():
    new, widths = convert(trained(Expanded()), Sampling("aps", select_from="input"), X), []
    choice = new.get_submodule("sampling.down_phase")
    choice.register_forward_pre_hook(lambda _, args: widths.append(args[0].shape[1]))
    new(X)
    assert widths == [24]


def test_beyond_a_product_but_not_to_bytes():
    model, gray = trained(Coloured()), (X[:, :1] * 40 + 128).byte()
    assert seen(model, LPS, X[:, :1]) == [1]
    assert seen(model, LPS, gray) == [3]


def test_selectors_there_learn():
    new = convert(trained(Expanded()), LPS, X).train()
    new(X).square().sum().backward()
    (selector,) = [m for m in new.modules() if type(m).__name__ == "ConvSelector"]
    assert selector.conv1.weight.grad.abs().sum() > 0
