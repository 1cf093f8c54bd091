"""``ts.optimize``: the same function, faster; and what must not be folded."""

import copy

import pytest
import torch
from networks import trained
from torch import nn
from torch.nn.utils import parametrizations

import trueshift as ts

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))


def norm(width=4, **options):
    layer = nn.BatchNorm2d(width, **options)
    for name, low in (("running_mean", -1.0), ("running_var", 0.5), ("weight", 0.5)):
        if getattr(layer, name) is not None:
            nn.init.uniform_(getattr(layer, name), low, 1.5)
    return layer


class Net(nn.Module):
    """A convolution and a norm, called by ``call(self, x)``."""

    def __init__(self, call, conv=None, **options):
        super().__init__()
        self.conv, self.norm = conv or nn.Conv2d(3, 4, 3, padding=1), norm(**options)
        self.call = call

    def forward(self, x):
        return self.call(self, x)


class Standardized(nn.Conv2d):
    def forward(self, x):
        return self._conv_forward(x, self.weight / self.weight.std(), self.bias)


def in_turn(net, x):
    return net.norm(net.conv(x))


def num_norms(net):
    return sum(isinstance(module, nn.BatchNorm2d) for module in net.modules())


FOLDED = {
    "in turn": lambda: Net(in_turn),
    "without affine": lambda: Net(in_turn, affine=False),
    "by name": lambda: Net(lambda net, x: net.norm(input=net.conv(input=x))),
    "twice together": lambda: Net(lambda net, x: in_turn(net, x) + in_turn(net, x.flip(0))),
    "dict": lambda: Net(lambda net, x: {"y": in_turn(net, x), "n": 3, "s": "text", "none": None}),
    "mask": lambda: Net(lambda net, x: (y := in_turn(net, x), y > 0)),
    "infinite": lambda: Net(lambda net, x: in_turn(net, x).masked_fill(x[:, :1] > 1, -torch.inf)),
}
KEPT = {
    "no statistics": lambda: Net(in_turn, track_running_stats=False),
    "transposed": lambda: Net(in_turn, nn.ConvTranspose2d(3, 4, 3)),
    "overwritten between": lambda: Net(lambda net, x: net.norm(net.conv(x).relu_())),
    "shared": lambda: Net(lambda net, x: in_turn(net, x) + net.conv(x)),
    "standardized": lambda: Net(in_turn, Standardized(3, 4, 3)),
    "weight norm": lambda: Net(in_turn, parametrizations.weight_norm(nn.Conv2d(3, 4, 3))),
}


@pytest.mark.parametrize("name", [*FOLDED, *KEPT])
def test_only_what_can_be_folded_is(name):
    net = (FOLDED | KEPT)[name]().eval()
    fast = ts.optimize(net, X)
    assert num_norms(fast) == (name in KEPT)
    assert num_norms(net) == 1
    assert not fast.conv._forward_hooks
    assert not fast.norm._forward_pre_hooks
    torch.testing.assert_close(fast(X), net(X), atol=1e-5, rtol=1e-4) if name != "dict" else None


def test_a_hook_keeps_seeing_what_it_saw():
    net, seen = Net(in_turn).eval(), []
    net.conv.register_forward_hook(lambda module, args, output: seen.append(output.clone()))
    net(X)
    fast = ts.optimize(net, X)
    seen[1:] = []
    fast(X)
    torch.testing.assert_close(seen[0], seen[1])


def test_an_output_that_is_read_elsewhere_is_an_error():
    def call(net, x):
        y = net.conv(x)
        return net.norm(y) + y

    with pytest.raises(RuntimeError, match="outputs differ"):
        ts.optimize(Net(call).eval(), X)


def test_without_tensors_nothing_can_be_compared():
    with pytest.raises(TypeError, match="no tensors"):
        ts.optimize(Net(lambda net, x: "text"), X)


def test_a_norm_of_two_names():
    net = Net(in_turn).eval()
    net.other = net.norm
    net.call = lambda net, x: net.other(net.conv(x))
    assert num_norms(ts.optimize(net, X)) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types(dtype):
    fast = ts.optimize(Net(in_turn).eval().to(dtype), X.to(dtype))
    assert num_norms(fast) == 0
    assert fast(X.to(dtype)).dtype == dtype


@pytest.mark.parametrize("select_from", ["output", "input"])
@pytest.mark.parametrize("antialias", [None, "tri3", "adapt3"])
def test_networks_stay_exact(antialias, select_from):
    torch.manual_seed(0)
    spec = ts.Sampling("lps", antialias, select_from=select_from)
    net = trained(ts.models.resnet(spec, (1, 1), (8, 16), "bottleneck", 5, "imagenet"))
    x = torch.randn(2, 3, 32, 32)
    fast = copy.deepcopy(ts.optimize(net, x))
    torch.testing.assert_close(fast(x), net(x), atol=1e-4, rtol=1e-3)
    for shift in ((1, 2), (5, 3), (0, 7)):
        assert torch.equal(fast(x.roll(shift, (2, 3))), fast(x))


def test_a_converted_network():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), norm(), nn.ReLU()).eval()
    new = ts.convert(net, "aps", X).eval()
    fast = ts.optimize(new, X)
    assert num_norms(fast) == 0
    torch.testing.assert_close(fast(X), new(X), atol=1e-5, rtol=1e-4)
