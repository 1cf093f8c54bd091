"""``ts.optimize``: the same function, faster; and what must not be folded."""

import copy

import pytest
import torch
from networks import trained
from torch import nn
from torch.nn.utils import parametrizations

import trueshift as ts
from trueshift.optimize import _NORMS
from trueshift.shifts import circular_shift

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A convolution and a norm, called by ``call(self, x)``."""

    def __init__(self, call, conv=None, **options):
        super().__init__()
        self.conv, self.norm = conv or nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4, **options)
        self.call = call

    def forward(self, x):
        return self.call(self, x)


class Standardized(nn.Conv2d):
    def forward(self, x):
        return self._conv_forward(x, self.weight / self.weight.std(), self.bias)


def in_turn(net, x):
    return net.norm(net.conv(x))


def with_activation():
    layers = pytest.importorskip("timm.layers")
    return nn.Sequential(nn.Conv2d(3, 4, 3), layers.BatchNormAct2d(4))


def of_two_names():
    net = Net(lambda net, x: net.other(net.conv(x)))
    net.other = net.norm
    return net


def plain_net():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
    )


def ours(method="lps", antialias="tri3", block="basic", **options):
    spec = ts.Sampling(method, antialias, hidden=4, groups=4, **options)
    return ts.models.resnet(spec, (1, 1), (8, 16), block, num_classes=4)


EXACT = {
    "lps": ours,
    "lps from input": lambda: ours(select_from="input"),
    "lps adapt3": lambda: ours("lps", "adapt3", "bottleneck"),
    "lps adapt3 from input": lambda: ours("lps", "adapt3", "bottleneck", select_from="input"),
    "aps": lambda: ours("aps", None, "bottleneck"),
    "unet": lambda: ts.models.unet(ts.Sampling("lps", "tri3"), widths=(4, 8)),
    "converted": lambda: ts.convert(trained(plain_net()), "lps", X),
    "converted from input": lambda: ts.convert(trained(plain_net()), "aps", X, select_from="input"),
}
FOLDED = EXACT | {
    "plain": plain_net,
    "stride": lambda: ours("stride", None),
    "in turn": lambda: Net(in_turn),
    "without affine": lambda: Net(in_turn, affine=False),
    "by name": lambda: Net(lambda net, x: net.norm(input=net.conv(input=x))),
    "twice together": lambda: Net(lambda net, x: in_turn(net, x) + in_turn(net, x.flip(0))),
    "dict": lambda: Net(lambda net, x: {"y": in_turn(net, x), "n": 3, "none": None}),
    "mask": lambda: Net(lambda net, x: (y := in_turn(net, x), y > 0)),
    "infinite": lambda: Net(lambda net, x: in_turn(net, x).masked_fill(x[:, :1] > 1, -torch.inf)),
    "activation": with_activation,
    "two names": of_two_names,
}
KEPT = {
    "no statistics": lambda: Net(in_turn, track_running_stats=False),
    "transposed": lambda: Net(in_turn, nn.ConvTranspose2d(3, 4, 3)),
    "overwritten between": lambda: Net(lambda net, x: net.norm(net.conv(x).relu_())),
    "shared": lambda: Net(lambda net, x: in_turn(net, x) + net.conv(x)),
    "before two norms": lambda: Net(
        lambda net, x: net.conv(in_turn(net, x)[:, :3]), nn.Conv2d(3, 4, 3, padding=1)
    ),
    "standardized": lambda: Net(in_turn, Standardized(3, 4, 3)),
    "weight norm": lambda: Net(in_turn, parametrizations.weight_norm(nn.Conv2d(3, 4, 3))),
}


def norms(model):
    adaptive = [m.bn for m in model.modules() if isinstance(m, ts.AdaptiveBlur)]  # these stay
    return [m for m in model.modules() if isinstance(m, _NORMS) and m not in adaptive]


@torch.no_grad()
@pytest.mark.parametrize("name", [*FOLDED, *KEPT])
def test_the_copy_computes_the_same_without_the_norms_that_can_be_folded(name):
    model = trained((FOLDED | KEPT)[name]()).eval()
    before = copy.deepcopy(model.state_dict())
    fast = ts.optimize(model, X)
    assert norms(model)
    assert bool(norms(fast)) == (name in KEPT)
    outputs = [net(X)["y"] if name == "dict" else net(X) for net in (fast, model)]
    torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-4)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(parameter.requires_grad for parameter in fast.parameters())
    assert all(p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in fast.modules())


@torch.no_grad()
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("name", EXACT)
def test_exact_networks_stay_exact(name, channels_last):
    fast = copy.deepcopy(ts.optimize(trained(EXACT[name]()), X, channels_last=channels_last))
    expected = fast(X)
    for shift in [(1, 0), (0, 3), (7, 5)]:
        same = expected if expected.ndim == 2 else circular_shift(expected, *shift)
        assert torch.equal(fast(circular_shift(X, *shift)), same)


@torch.inference_mode()
def test_norms_are_folded_in_inference_mode_too():
    net = trained(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    fast = ts.optimize(net, X)
    assert not any(isinstance(module, _NORMS) for module in fast.modules())


def test_a_network_in_channels_last_computes_in_it():
    fast = ts.optimize(trained(ours()), X)
    seen = []
    fast.conv1.register_forward_hook(lambda *args: seen.append(args[2]))
    fast(X)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


def test_a_hook_keeps_seeing_what_it_saw():
    net, seen = trained(Net(in_turn)).eval(), []
    net.conv.register_forward_hook(lambda module, args, output: seen.append(output.clone()))
    net(X)
    fast = ts.optimize(net, X)
    seen[1:] = []
    fast(X)
    torch.testing.assert_close(seen[0], seen[1])


def test_what_cannot_be_compared_or_is_read_elsewhere_is_an_error():
    with pytest.raises(TypeError, match="no tensors"):
        ts.optimize(Net(lambda net, x: "text"), X)
    with pytest.raises(RuntimeError, match=r"outputs differ(?s:.*) tied.* pass an example"):
        ts.optimize(trained(Net(lambda net, x: net.norm(y := net.conv(x)) + y)), X)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types(dtype):
    fast = ts.optimize(trained(Net(in_turn)).eval().to(dtype), X.to(dtype))
    assert not norms(fast)
    assert fast(X.to(dtype)).dtype == dtype


def test_arguments_by_position_and_by_name():
    model = trained(plain_net())
    for example in (X, (X,), {"input": X}):
        assert not norms(ts.optimize(model, example))
