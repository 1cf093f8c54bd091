import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import trueshift as ts
from trueshift import exact
from trueshift.layers.activations import EXACT, make_exact

LAST = torch.channels_last
FUNCTIONS = {
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu": F.elu,
    "mish": F.mish,
    "softplus": F.softplus,
    "pow": lambda x: x.abs().pow(1.7),
}


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST])
@pytest.mark.parametrize("shape", [(5, 3, 5, 5), (4, 30, 28, 28), (2, 33, 41, 39)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits_do_not_depend_on_the_place(name, shape, layout, threads):
    x = (2 * torch.randn(shape)).contiguous(memory_format=layout)
    y = exact.elementwise(FUNCTIONS[name], x)
    torch.testing.assert_close(y, FUNCTIONS[name](x))
    assert y.is_contiguous(memory_format=layout)
    for shift in ((1, 2), (3, 0), (2, 4)):
        moved = x.roll(shift, (2, 3)).contiguous(memory_format=layout)
        assert torch.equal(exact.elementwise(FUNCTIONS[name], moved), y.roll(shift, (2, 3)))


def test_other_strides_and_sizes():
    x = torch.randn(4, 6, 5, 7)
    half = x[:, ::2]
    assert torch.equal(
        exact.elementwise(F.silu, half), exact.elementwise(F.silu, half.contiguous())
    )
    for count in (0, 1, 63, 64, 65, 3 * exact._GRAIN + 5):
        flat = torch.randn(count)
        torch.testing.assert_close(exact.elementwise(F.silu, flat), F.silu(flat))


@pytest.mark.parametrize("kind", EXACT)
def test_modules_are_those_of_torch(kind):
    plain = nn.Sequential(kind())
    new = copy.deepcopy(plain)
    make_exact(new)
    assert type(new[0]) is EXACT[kind]
    assert repr(new) == repr(plain)
    x = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(new.eval()(x), plain(x))
    assert torch.equal(new.train()(x), plain(x))
    assert type(pickle.loads(pickle.dumps(new))[0]) is EXACT[kind]


def test_gradients_pass():
    x = torch.randn(1, 3, 5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: exact.elementwise(F.silu, t), x)


@pytest.mark.parametrize("shape", [(1, 3, 5, 5), (1, 64, 4, 4)])
def test_in_place_means_in_place(shape):
    x = torch.randn(shape)
    expected = F.silu(x)
    net = nn.Sequential(nn.SiLU(inplace=True)).eval()
    make_exact(net)
    torch.testing.assert_close(net(x), expected)
    torch.testing.assert_close(x, expected)


class Functions(nn.Module):
    """Activations as functions and methods."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, 2, 1)

    def forward(self, x):
        y = self.conv(x)
        return F.silu(y) + F.gelu(y, approximate="tanh") * y.sigmoid() + torch.sigmoid_(y * 2)


@pytest.mark.parametrize("images", [1, 5])
@pytest.mark.parametrize("act", [nn.GELU, nn.SiLU, nn.ELU, None])
def test_converted_networks_are_exact(act, images, threads):
    layers = [Functions()] if act is None else [nn.Conv2d(3, 5, 3, 2, 1), nn.BatchNorm2d(5), act()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1)).eval()
    new = ts.convert(net, "aps", torch.randn(1, 3, 10, 10))
    for _ in range(10):
        x = torch.randn(images, 3, 10, 10)
        expected = new(x)
        for shift in ((1, 3), (4, 2), (7, 5)):
            assert torch.equal(new(x.roll(shift, (2, 3))), expected)
