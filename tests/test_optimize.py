import copy

import pytest
import torch
from networks import trained
from torch import nn

import trueshift as ts
from trueshift.optimize import _NORMS

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def plain_net():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


def ours(method="lps", antialias="tri3", **options):
    spec = ts.Sampling(method, antialias, hidden=4, groups=4, **options)
    return ts.models.resnet(spec, (1, 1), (8, 16), num_classes=4)


NETWORKS = {
    "plain": plain_net,
    "lps": ours,
    "lps from input": lambda: ours(select_from="input"),
    "aps": lambda: ours("aps", None),
    "stride": lambda: ours("stride", None),
    "unet": lambda: ts.models.unet(ts.Sampling("lps", "tri3"), widths=(4, 8)),
    "converted": lambda: ts.convert(trained(plain_net()), "lps", X),
    "converted from input": lambda: ts.convert(trained(plain_net()), "aps", X, select_from="input"),
}
EXACT = [name for name in NETWORKS if name not in ("plain", "stride")]


def norms(model):
    return [m for m in model.modules() if isinstance(m, _NORMS)]


@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_the_copy_computes_the_same_without_norms(name):
    model = trained(NETWORKS[name]()).eval()
    before = copy.deepcopy(model.state_dict())
    fast = ts.optimize(model, X)
    assert norms(model)
    assert not norms(fast)
    torch.testing.assert_close(fast(X), model(X), rtol=1e-4, atol=1e-4)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(parameter.requires_grad for parameter in fast.parameters())
    assert all(p.requires_grad for p in model.parameters())


@torch.no_grad()
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("name", EXACT)
def test_exact_networks_stay_exact(name, channels_last):
    fast = ts.optimize(trained(NETWORKS[name]()), X, channels_last=channels_last)
    expected = fast(X)
    for shift in [(1, 0), (0, 3), (7, 5)]:
        moved = fast(ts.shifts.circular_shift(X, *shift))
        assert torch.equal(
            moved, expected if expected.ndim == 2 else ts.shifts.circular_shift(expected, *shift)
        )


def test_a_network_in_channels_last_computes_in_it():
    fast = ts.optimize(trained(ours()), X)
    seen = []
    fast.conv1.register_forward_hook(lambda *args: seen.append(args[2]))
    fast(X)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


class Twice(nn.Module):
    """Uses what a convolution returns before and after its norm."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y


class Shared(nn.Module):
    """One convolution before two norms, and an output that is a dict."""

    def __init__(self):
        super().__init__()
        self.conv, self.first, self.second = (
            nn.Conv2d(3, 3, 3, padding=1),
            nn.BatchNorm2d(3),
            nn.BatchNorm2d(3),
        )

    def forward(self, x):
        return {"out": self.second(self.conv(self.first(self.conv(x)).relu()))}


def test_what_cannot_be_folded_is_an_error_or_left_alone():
    with pytest.raises(RuntimeError, match="outputs differ"):
        ts.optimize(trained(Twice()), X)
    shared = ts.optimize(trained(Shared()), X)
    assert len(norms(shared)) == 2
    without = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))
    assert len(norms(ts.optimize(without, X))) == 1
    not_affine = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False))
    assert not norms(ts.optimize(not_affine, X))


def test_norms_with_an_activation_keep_it():
    layers = pytest.importorskip("timm.layers")
    net = nn.Sequential(nn.Conv2d(3, 4, 3), layers.BatchNormAct2d(4))
    fast = ts.optimize(trained(net), X)
    assert not norms(fast)
    assert (fast(X) >= 0).all()


def test_arguments_by_position_and_by_name():
    model = trained(plain_net())
    for example in (X, (X,), {"input": X}):
        assert not norms(ts.optimize(model, example))
