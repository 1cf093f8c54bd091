"""Networks on a cylinder: the original padding stays on some axes, others become circular."""

import pytest
import torch
from networks import trained
from torch import nn
from torch.nn import functional as F

import trueshift as ts
from trueshift.convert import ConversionError, convert, plan

CYLINDER = ("keep", "circular")


class Segmenter(nn.Module):
    """Strides, pooling, a shortcut, and three ways up; every border matters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.conv2, self.shortcut = nn.Conv2d(8, 12, 3, 2, 1), nn.Conv2d(8, 12, 1, 2)
        self.up = nn.ConvTranspose2d(12, 8, 3, 2, 1, output_padding=1)
        self.pad, self.conv3 = nn.ZeroPad2d(1), nn.Conv2d(8, 8, 3)
        self.mean, self.head = nn.AvgPool2d(3, 1, 1, count_include_pad=False), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        fine = self.pool(self.bn1(self.conv1(x)).relu())
        y = (self.conv2(fine) + self.shortcut(fine)).relu()
        y = self.conv3(self.pad(self.up(y) + fine)).relu()
        y = F.interpolate(self.mean(y), scale_factor=2, mode="bilinear")
        return F.interpolate(self.head(y), scale_factor=2, mode="bicubic")


def segmenter():
    torch.manual_seed(0)
    return trained(Segmenter())


X = torch.randn(2, 3, 32, 40, generator=torch.Generator().manual_seed(1))


def num_different(new, x, axis):
    """Count the shifts along an axis that do not shift the output, bit for bit."""
    with torch.no_grad():
        y = new(x)
        shifts = range(x.shape[axis])
        return sum(not torch.equal(new(x.roll(d, axis)), y.roll(d, axis)) for d in shifts)


@pytest.mark.parametrize(  # every pair of options
    ("method", "select_from", "antialias"),
    [
        ("aps", "output", None),
        ("aps", "input", "tri3"),
        ("lps", "output", "tri3"),
        ("lps", "input", None),
    ],
)
def test_every_shift_along_the_circular_axis_is_exact(method, select_from, antialias):
    spec = ts.Sampling(method, antialias, hidden=4, groups=4)
    new = convert(segmenter(), spec, X, padding=CYLINDER, select_from=select_from).eval()
    assert new.plan.wraps == (False, True)
    assert num_different(new, X, 3) == 0
    assert num_different(new, X, 2) > 20  # there the border is the original's


def test_the_other_axis_may_be_the_first():
    new = convert(segmenter(), "aps", X, padding=("circular", "keep")).eval()
    assert new.plan.wraps == (True, False)
    assert num_different(new, X, 2) == 0


def test_plain_strides_compute_what_the_original_does_around_the_cylinder():
    model = segmenter().double()
    x = X.double()
    new = convert(model, "stride", x, padding=CYLINDER).eval()
    with torch.no_grad():
        around = model(torch.cat([x] * 3, 3))[..., 40:80]  # three times around: no border in sight
        torch.testing.assert_close(new(x), around, rtol=0, atol=1e-12)


def test_a_volume_that_wraps_along_two_axes():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv3d(2, 4, 3, 2, 1), nn.ReLU(), nn.Upsample(scale_factor=2))
    x = torch.randn(1, 2, 4, 6, 8)
    new = convert(net, "aps", x, padding=("circular", "keep", "circular")).eval()
    assert num_different(new, x, 2) == num_different(new, x, 4) == 0


def test_a_classifier_of_torchvision():
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    x = torch.randn(1, 3, 32, 64)
    new = convert(trained(models.resnet18(num_classes=5)), "aps", x, padding=CYLINDER).eval()
    with torch.no_grad():
        outputs = torch.cat([new(x.roll(d, 3)) for d in (0, 1, 2, 5, 16, 31, 63)])
    assert (outputs == outputs[0]).all()


def test_training_reaches_the_selectors():
    new = convert(segmenter(), ts.Sampling("lps", hidden=4), X, padding=CYLINDER).train()
    new(X).square().mean().backward()
    weights = [p for name, p in new.named_parameters() if "selector" in name]
    assert weights
    assert all(p.grad is not None and p.grad.isfinite().all() for p in weights)


def test_the_plan_says_where_it_is_exact():
    text = str(plan(segmenter(), X, padding=CYLINDER))
    assert "exact for shifts along axis 3 only" in text
    assert "with keep/circular padding" in text
    assert "along axis" not in str(plan(segmenter(), X))


def test_the_same_padding_for_all_axes_is_one():
    assert plan(segmenter(), X, padding=("circular", "circular")).padding == "circular"
    assert plan(segmenter(), X, padding=["keep", "keep"]).padding == "keep"


@pytest.mark.parametrize(
    ("padding", "message"),
    [
        (("keep", "circlar"), "unknown padding of an axis 'circlar'. Did you mean 'circular'"),
        (("keep", "seam"), "unknown padding of an axis 'seam'. .*Choose from: circular, keep"),
        (("keep", "circular", "keep"), r"names 3 axes, got .* of shape \(2, 3, 32, 40\) with 2"),
        ((), "needs one entry per spatial axis"),
        ("zeros", "unknown padding 'zeros'"),
        (None, "unknown padding None"),
    ],
)
def test_paddings_that_do_not_fit(padding, message):
    with pytest.raises(ValueError, match=message):
        convert(segmenter(), "aps", X, padding=padding)


def test_positions_as_features_are_refused():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Flatten(), nn.Linear(4 * 16 * 20, 2))
    with pytest.raises(ConversionError, match="only some axes wrap"):
        convert(net, "aps", X, padding=CYLINDER, flatten="canonical")


def test_sizes_must_divide_as_the_plan_says():
    new = convert(segmenter(), "aps", X, padding=CYLINDER)
    with pytest.raises(ValueError, match=r"multiples of 8, got x of shape .*Pad or resize to"):
        new(X[..., :38])
