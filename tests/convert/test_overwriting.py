import copy

import pytest
import torch
from torch import nn

import trueshift as ts
from trueshift.convert import register_rule

LAST = torch.channels_last


class Shared(nn.Module):
    """The first map is read by its norm only, the second one by two."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4)
        self.second, self.other = nn.Conv2d(4, 4, 3, 1, 1), nn.BatchNorm2d(4)
        for norm in (self.norm, self.other):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)

    def forward(self, x):
        y = self.second(self.norm(self.first(x)).relu())
        return self.other(y) * y


def test_norms_overwrite_maps_that_nobody_else_reads():
    new = ts.convert(Shared().eval(), "aps", torch.randn(1, 3, 8, 8))
    assert new.code.count("convolve_and_normalize(") == 1
    x = torch.randn(2, 3, 8, 12)
    kept = new(x).detach()
    with torch.no_grad():
        assert torch.equal(new(x), kept)
        assert torch.equal(new(x.roll((2, -4), (2, 3))), kept.roll((1, -2), (2, 3)))


@pytest.mark.parametrize("images", [1, 4])
def test_hooks_of_convolutions_see_what_they_made(images):
    new = ts.convert(Shared().eval(), "stride", torch.randn(1, 3, 8, 8))
    x, seen = torch.randn(images, 3, 8, 8), []
    new.sampling.first.register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        new(x)
        expected = new.sampling.first(x, None, new.first.weight, new.first.bias)
    torch.testing.assert_close(seen[0], expected)


@pytest.mark.parametrize("select", ["input", "output"])
def test_batches_are_as_exact_as_single_images(select):
    new = ts.convert(Shared().eval(), "aps", torch.randn(1, 3, 8, 8), select=select)
    x = torch.randn(5, 3, 8, 12)
    recorded = new(x).detach()
    kept = x.clone()
    with torch.no_grad():
        found = new(x)
        assert torch.equal(new(x.roll((2, -4), (2, 3))), found.roll((1, -2), (2, 3)))
    torch.testing.assert_close(found, recorded)
    assert torch.equal(x, kept)


def test_norms_of_batches_are_part_of_the_convolution():
    new = ts.convert(Shared().eval(), "stride", torch.randn(1, 3, 8, 8))
    calls = []
    new.sampling.first.apply_to = lambda window, steps, tensors: (
        calls.append(tensors[0]) or nn.functional.conv2d(window, *tensors, steps)
    )
    for images in (3, 4):
        with torch.no_grad():
            new(torch.randn(images, 3, 8, 8))
    scale = new.norm.weight / (new.norm.running_var + new.norm.eps).sqrt()
    assert torch.equal(calls[0], new.first.weight)
    torch.testing.assert_close(calls[1], new.first.weight * scale.view(-1, 1, 1, 1))


class Viewed(nn.Module):
    """Asks for a view of a map, which a channels-last one does not give."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, 2, 1), nn.Linear(4, 2)

    def forward(self, x):
        y = self.conv(x).relu()
        return self.head(y.view(y.size(0), 4, -1).mean(2)), y


def test_batches_take_the_faster_layout_and_results_the_usual_one():
    new = ts.convert(Viewed().eval(), "aps", torch.randn(1, 3, 8, 8))
    assert new.any_layout
    seen = []
    new.sampling.conv.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x = torch.randn(4, 3, 8, 8)
    recorded = new(x)
    with torch.no_grad():
        found, asked = new(x), new(x.contiguous(memory_format=LAST))
        few, asked_few = new(x[:3]), new(x[:3].contiguous(memory_format=LAST))
    assert [images.is_contiguous() for images in seen] == [True, False, False, True, True]
    assert torch.equal(few[1], asked_few[1])
    assert not asked_few[1].is_contiguous()
    assert found[1].is_contiguous()
    assert not asked[1].is_contiguous()  # whoever asks for a layout gets it
    for one, other, third in zip(found, asked, recorded, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, third)


class Strict(nn.Module):
    def forward(self, x):
        return x.view(x.size(0), -1).view_as(x)


class Merging(nn.Module):
    def forward(self, x):
        return x.view(-1, 1, *x.shape[2:]).view_as(x)  # of one image alone always a view


class Checking(nn.Module):
    def forward(self, x):
        assert x.is_contiguous()
        return x


@pytest.mark.parametrize("layer", [Strict, Merging, Checking])
def test_layers_that_need_a_layout_keep_it(layer):
    register_rule(layer, "equivariant")
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), layer(), nn.AdaptiveAvgPool2d(1)).eval()
    new = ts.convert(net, "aps", torch.randn(1, 3, 8, 8))
    assert not new.any_layout
    with torch.no_grad():
        assert new(torch.randn(4, 3, 8, 8)).shape == (4, 4, 1, 1)


class WritesThroughView(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2, 1)

    def forward(self, x):
        y = self.conv(x)
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


@pytest.mark.parametrize("build", [WritesThroughView, OverwritesInput])
@pytest.mark.parametrize("images", [1, 4])
def test_operations_in_place_keep_their_meaning(build, images):
    net = build().eval()
    new = ts.convert(net, "stride", torch.randn(1, 3, 8, 8), padding="keep")
    circular = ts.convert(net, "stride", torch.randn(1, 3, 8, 8))
    x = torch.randn(images, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(new(x), net(x))
        found = circular(x)
        torch.testing.assert_close(found[:, :, 1:-1, 1:-1], net(x)[:, :, 1:-1, 1:-1])


@pytest.mark.parametrize("options", [{"size": (2, 3, -1)}, {"dtype": torch.int32}])
def test_views_by_keyword(options):
    class Keyword(nn.Module):
        def forward(self, x):
            return x, x.view(**options)

    new = ts.convert(Keyword(), "stride", torch.randn(2, 3, 8, 8), verify=False)
    x = torch.randn(2, 3, 8, 8)
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
    new = ts.convert(net, "stride", torch.randn(1, 3, 8, 8), verify=False)
    for images in (1, 4):
        with torch.no_grad():
            assert new(torch.randn(images, 3, 8, 8)).map.is_contiguous()


def test_a_device_without_autocast():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4)).eval()
    new = ts.convert(net, "stride", torch.randn(1, 3, 8, 8)).to("meta")
    with torch.no_grad():
        assert new(torch.randn(4, 3, 8, 8, device="meta")).shape == (4, 4, 4, 4)


class Labels(nn.Module):
    """Returns labels and a mask beside the map."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2, 1)

    def forward(self, x):
        y = self.conv(x)
        return y.argmax(1), y > 0


def test_outputs_need_not_be_floating():
    new = ts.convert(Labels().eval(), "aps", torch.randn(1, 3, 8, 8))
    assert new.any_layout
    x = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        labels, positive = new(x)
        moved = new(x.roll((2, 4), (2, 3)))
    assert torch.equal(moved[0], labels.roll((1, 2), (1, 2)))
    assert torch.equal(moved[1], positive.roll((1, 2), (2, 3)))


def test_copies_remember_their_layout():
    new = ts.convert(Viewed().eval(), "aps", torch.randn(1, 3, 8, 8))
    assert copy.deepcopy(new).any_layout


def test_a_wrong_number_of_arguments_is_still_an_error():
    new = ts.convert(Viewed().eval(), "aps", torch.randn(1, 3, 8, 8))
    x = torch.randn(4, 3, 8, 8)
    with torch.no_grad(), pytest.raises(TypeError, match="argument"):
        new(x, x)
    with torch.no_grad():
        assert torch.equal(new(x=x)[0], new(x)[0])


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2, 1)

    def forward(self, a, b):
        return self.conv(a) + self.conv(b)


def test_results_take_the_layout_of_the_first_map():
    x = torch.randn(2, 3, 8, 8)
    new = ts.convert(Two().eval(), "aps", (x, x))
    last = x.contiguous(memory_format=LAST)
    with torch.no_grad():
        assert new(x, last).is_contiguous()
        assert not new(last, x).is_contiguous()
        assert torch.equal(new(last, x), new(x, x))


def test_networks_that_need_the_default_layout_get_it():
    register_rule(Strict, "equivariant")
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), Strict(), nn.AdaptiveAvgPool2d(1)).eval()
    x = torch.randn(2, 3, 8, 8)
    new = ts.convert(net, "aps", x)
    with torch.no_grad():
        assert torch.equal(new(x.contiguous(memory_format=LAST)), new(x))
