import numpy as np
import pytest
import torch
import zoo
from networks import trained
from torch import nn
from torch.nn import functional as F

from trueshift import models
from trueshift.convert import ConversionError, convert, plan, register_rule
from trueshift.layers.spec import Sampling
from trueshift.shifts import circular_shift

X = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Coordinates(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, 2, 1)

    def forward(self, x):
        rows = torch.linspace(-1, 1, x.shape[2])[None, None, :, None].expand(len(x), 1, -1, 16)
        return self.conv(torch.cat([x, rows], 1)).mean((2, 3))


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.place = nn.Conv2d(3, 4, 3, 2, 1), nn.Parameter(torch.zeros(1, 4, 8, 8))

    def forward(self, x):
        return (self.conv(x) + self.place).mean((2, 3))


class OnValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        if self.conv(x).mean() > 0:
            return x
        return -x


class Special(nn.Module):
    def forward(self, x):
        return torch.special.i0(x)


class Several(nn.Module):
    """Flatten, an unknown operation, flip and pick: every place must be reported."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, 2, 1), nn.Linear(4 * 64, 2)

    def forward(self, x):
        x = self.conv(x)
        return self.head(x.flatten(1)), x.flip(-1), x[:, :, 0], torch.special.i1(x)


CASES = {
    "coordinates": (Coordinates, "differs from position to position"),
    "position embedding": (Positions, "differs from position to position"),
    "control flow": (OnValues, "depends on the values"),
    "unknown op": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), Special()),
        "no rule says what special_i0",
    ),
    "flatten": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Flatten()), "flatten before"),
    "fold": (lambda: nn.Sequential(nn.Unfold(2, stride=2)), "no rule says what Unfold"),
}


@pytest.mark.parametrize("case", CASES)
def test_refuses_and_says_why(case):
    make, reason = CASES[case]
    with pytest.raises(ConversionError, match=reason) as caught:
        convert(make(), "aps", X)
    assert len(caught.value.refusals) == 1
    assert all(refusal.place and refusal.advice for refusal in caught.value.refusals)


def test_all_places_are_reported_at_once():
    with pytest.raises(ConversionError) as caught:
        convert(Several(), "aps", X)
    reasons = [refusal.reason for refusal in caught.value.refusals]
    assert len(reasons) == 4, reasons
    assert "was refused at 4 places" in str(caught.value)
    assert "test_refusals.py" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("torchvision.vgg11_bn", ["flatten"]),
        ("torchvision.alexnet", ["flatten"]),
        ("timm.vit_tiny_patch16_224", ["positions='canonical'"]),
    ],
)
def test_known_networks_that_have_positions(name, reasons):
    size = 224 if "timm" in name else 64
    planned = plan(zoo.build(name), torch.randn(1, 3, size, size))
    assert not planned.converts
    assert any(reason in str(r) for r in planned.refusals for reason in reasons), str(planned)


def test_flatten_by_an_origin():
    net = trained(
        nn.Sequential(
            nn.Conv2d(3, 6, 3, 2, 1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(6 * 16, 5),
        )
    )
    new = convert(net, "aps", X, flatten="canonical")
    with torch.no_grad():
        y = new(X)
        for n in range(16):
            assert torch.equal(new(circular_shift(X, n, 2 * n + 1)), y)
    with pytest.raises(ValueError, match=r"size \(16, 16\) only.*Resize to \(16, 16\)"):
        new(torch.zeros(1, 3, 32, 32))


def test_a_convolution_as_large_as_its_map():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 5, 8), nn.Flatten())
    with pytest.raises(ConversionError, match="flatten"):
        convert(net, "aps", X)
    assert convert(net, "lps", X, flatten="canonical")(X).shape == (1, 5)


def test_register_rule():
    class Wave(nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x)

    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), Wave(), nn.AdaptiveAvgPool2d(1))
    with pytest.raises(ConversionError, match="register_rule"):
        convert(net, "aps", X)
    register_rule(Wave, "equivariant")
    assert convert(net, "aps", X)(X).shape == (1, 4, 1, 1)
    with pytest.raises(ValueError, match="unknown rule 'pointwise'"):
        register_rule(Wave, "pointwise")
    with pytest.raises(TypeError, match="op must be"):
        register_rule(3, "invariant")


def test_verification_catches_a_false_rule():
    class Fade(nn.Module):
        def forward(self, x):
            return x * torch.arange(x.shape[-1], dtype=x.dtype)

    register_rule(Fade, "equivariant")  # which it is not
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), Fade(), nn.AdaptiveAvgPool2d(1))
    with pytest.raises(ConversionError, match="not exact"):
        convert(net, "aps", X)
    assert convert(net, "aps", X, verify=False)(X).shape == (1, 4, 1, 1)


def test_sizes_are_checked_at_the_entry_and_named():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.MaxPool2d(3, 2, 1))
    with pytest.raises(
        ValueError, match=r"multiples of 4, got input of shape .*\(20, 16\) or crop"
    ):
        convert(net, "aps", torch.zeros(1, 3, 18, 16))
    new = convert(net, "aps", X)
    assert new.required_multiple == 4
    with pytest.raises(
        ValueError, match=r"Sequential: .* multiples of 4.*\(20, 16\) or .*\(16, 16\)"
    ):
        new(torch.zeros(1, 3, 17, 16))


def test_hooks_that_make_weights_are_refused():
    with pytest.warns(FutureWarning):
        conv = nn.utils.weight_norm(nn.Conv2d(3, 4, 3))
    with pytest.raises(ConversionError, match=r"hooks change its weights.*parametrizations"):
        convert(nn.Sequential(conv), "aps", X)
    conv = nn.Conv2d(3, 4, 3)
    conv.register_forward_pre_hook(_double)
    with pytest.raises(ConversionError, match="hooks change its weights"):
        convert(nn.Sequential(conv), "aps", X)


def _double(module, args):
    return (2 * args[0],)


def test_a_hook_of_the_whole_network_is_not_lost():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    net.register_forward_hook(lambda module, args, output: output.softmax(1))
    with pytest.raises(ValueError, match=r"forward hooks.* nn.Sequential\(model\)"):
        convert(net, "aps", X)
    new = convert(nn.Sequential(net), "aps", X)
    assert torch.allclose(new(X).sum(1), torch.ones(len(X)))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: convert(nn.Conv2d(3, 4, 3, 2, 1), "aps", X), "converted already"),
        (lambda: models.unet(Sampling("aps"), num_classes=2), r"models\.resample"),
        (lambda: torch.jit.trace(nn.Conv2d(3, 4, 3), X), "Convert the original, then compile"),
        (lambda: torch.compile(nn.Conv2d(3, 4, 3)), "Convert the original, then compile"),
        (lambda: nn.DataParallel(nn.Conv2d(3, 4, 3)), r"Convert model\.module"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_networks_that_are_something_else_already(model, message):
    with pytest.raises(ValueError, match=message):
        convert(model(), "aps", X)


def test_parametrized_weights_are_used():
    conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3, 2, 1))
    new = convert(nn.Sequential(conv), "lps", X)
    new(X).sum().backward()
    assert new.get_submodule("0").parametrizations.weight.original0.grad.abs().max() > 0


def test_arguments():
    net = nn.Conv2d(3, 4, 3)
    with pytest.raises(ValueError, match="unknown select_from 'both'"):
        convert(net, "aps", X, select_from="both")
    with pytest.raises(ValueError, match="unknown flatten"):
        convert(net, "aps", X, flatten="yes")
    with pytest.raises(ValueError, match="unknown padding 'zeros'"):
        convert(net, "aps", X, padding="zeros")
    with pytest.raises(ValueError, match="only circular padding is exact"):
        convert(net, Sampling("aps", padding_mode="zeros"), X)
    with pytest.raises(TypeError, match=r"must be an nn\.Module"):
        convert(F.relu, "aps", X)
    with pytest.raises(TypeError, match=r"type Tensor. Call convert\(model, spec, example_input"):
        convert(net, X, "aps")
    with pytest.raises(ValueError, match="holds no map"):
        convert(nn.Linear(3, 4), "aps", torch.zeros(2, 3))


def test_an_example_without_tensors():
    with pytest.raises(TypeError, match=r"example_input must be a tensor, .* got ndarray"):
        convert(nn.Conv2d(1, 1, 1), "aps", np.zeros((1, 1, 4, 4)))
