"""Memory formats change no bit, operations in place keep their meaning, outputs keep their form."""

import pytest
import torch
from networks import trained
from torch import nn
from user_nets import Net

import trueshift as ts
from trueshift.convert import register_rule

EXAMPLE = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def last(x):
    return x.contiguous(memory_format=torch.channels_last)


class Viewed(nn.Module):
    """Asks for a view of a map, which a channels-last one does not give."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = (
            nn.Conv2d(3, 4, 3, 2, 1),
            nn.BatchNorm2d(4),
            nn.Linear(4, 2),
        )

    def forward(self, x):
        y = self.norm(self.conv(x)).relu()
        return self.head(y.view(y.size(0), 4, -1).mean(2)), y


@pytest.mark.parametrize("select", ["input", "output"])
@pytest.mark.parametrize("images", [1, 5])
def test_formats_change_no_bit_and_come_back(images, select):
    new = ts.convert(trained(Viewed()), "aps", EXAMPLE, select_from=select)
    x = torch.randn(images, 3, 8, 12)
    kept, with_gradients = x.clone(), new(x)
    with torch.no_grad():
        scores, maps = new(x)
        other_scores, other_maps = new(last(x))
        moved = new(last(x.roll((2, -4), (2, 3))))
    assert torch.equal(scores, other_scores)
    assert torch.equal(maps, other_maps)
    assert (maps.is_contiguous(), other_maps.is_contiguous()) == (True, False)
    assert torch.equal(moved[0], scores)
    assert torch.equal(moved[1], maps.roll((1, -2), (2, 3)))
    assert torch.equal(with_gradients[1], maps)
    assert torch.equal(x, kept)


def test_training_keeps_the_format():
    new, seen = ts.convert(trained(Viewed()), "aps", EXAMPLE).train(), []
    new.sampling.conv.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x = last(torch.randn(4, 3, 8, 8))
    new(x)
    assert seen[0] is x


class Strict(nn.Module):
    def forward(self, x):
        return x.view(x.size(0), -1).view_as(x)


class Checking(nn.Module):
    def forward(self, x):
        assert x.is_contiguous()
        return x


@pytest.mark.parametrize("layer", [Strict, Checking])
def test_layers_that_need_the_default_format_get_it(layer):
    register_rule(layer, "equivariant")
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), layer(), nn.AdaptiveAvgPool2d(1)).eval()
    new, x = ts.convert(net, "aps", EXAMPLE), torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(new(last(x)), new(x))


def write_through_view(y):
    y.view(-1, 1, *y.shape[2:]).mul_(2)
    return y


class OverwritesInput(nn.Module):
    """The convolution reads its input before the ReLU overwrites it, its norm comes after that."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, 1, 1), nn.BatchNorm2d(3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        x = x * 1
        y = self.conv(x)
        return self.relu(x) + self.norm(y)


@pytest.mark.parametrize("net", [Net(write_through_view, stride=2), OverwritesInput()])
def test_operations_in_place_keep_their_meaning(net):
    net, x = net.eval(), torch.randn(4, 3, 8, 8)
    new = ts.convert(net, "stride", EXAMPLE, padding="keep")
    circular = ts.convert(net, "stride", EXAMPLE)
    inner = (..., slice(1, -1), slice(1, -1))
    with torch.no_grad():
        torch.testing.assert_close(new(x), net(x))
        torch.testing.assert_close(circular(x)[inner], net(x)[inner])


@pytest.mark.parametrize("options", [{"size": (2, 3, -1)}, {"dtype": torch.int32}])
def test_views_by_keyword(options):
    class Keyword(nn.Module):
        def forward(self, x):
            return x, x.view(**options)

    x = torch.randn(2, 3, 8, 8)
    new = ts.convert(Keyword(), "stride", x, verify=False)
    assert torch.equal(new(x)[1], x.view(**options))


class Named(dict):
    """A dict whose items are attributes too."""

    __getattr__ = dict.__getitem__


class Head(nn.Module):
    def forward(self, x):
        return Named(map=x)


def test_containers_of_outputs_keep_their_class():
    register_rule(Head, "equivariant")
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), Head()).eval()
    new = ts.convert(net, "stride", EXAMPLE, verify=False)
    assert new(EXAMPLE).map.is_contiguous()


def test_a_device_without_autocast():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4)).eval()
    new = ts.convert(net, "stride", EXAMPLE).to("meta")
    with torch.no_grad():
        assert new(torch.randn(4, 3, 8, 8, device="meta")).shape == (4, 4, 4, 4)


def test_outputs_need_not_be_floating():
    net, x = Net(lambda y: (y.argmax(1), y > 0), stride=2).eval(), torch.randn(4, 3, 8, 8)
    new = ts.convert(net, "aps", EXAMPLE)
    with torch.no_grad():
        labels, positive = new(x)
        moved = new(x.roll((2, 4), (2, 3)))
    assert torch.equal(moved[0], labels.roll((1, 2), (1, 2)))
    assert torch.equal(moved[1], positive.roll((1, 2), (2, 3)))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2, 1)

    def forward(self, a, b):
        return self.conv(a) + self.conv(b)


def test_results_take_the_format_of_the_first_map():
    x = torch.randn(2, 3, 8, 8)
    new = ts.convert(Two().eval(), "aps", (x, x))
    with torch.no_grad():
        assert new(x, last(x)).is_contiguous()
        assert not new(last(x), b=x).is_contiguous()
        assert torch.equal(new(last(x), x), new(x, x))
        with pytest.raises(TypeError, match="argument"):
            new(x, x, x)
