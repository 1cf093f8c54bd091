"""Inputs and outputs of all kinds with ``padding="seam"``: right, or refused with the reason."""

import pytest
import torch
from torch import nn
from user_nets import Net

from trueshift.convert import ConversionError, convert, plan
from trueshift.convert.trace.trees import leaves
from trueshift.shifts import circular_shift

X = torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(3))


OUTPUTS = {
    "chunks": (lambda y: y.chunk(2, 1), (2, 3)),
    "channels": (lambda y: y.unbind(1), (1, 2)),
    "largest": (lambda y: y.max(1), (1, 2)),
    "twice": (lambda y: {"a": y, "b": [y, y + 1]}, (2, 3)),
    "channels last": (lambda y: y.permute(0, 2, 3, 1), (1, 2)),
    "batch last": (lambda y: y.permute(1, 2, 3, 0), (1, 2)),
    "labels": (lambda y: y.argmax(1), (1, 2)),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_move_with_the_picture(name):
    after, axes = OUTPUTS[name]
    new = convert(Net(after).eval(), "stride", X, padding="seam")
    with torch.no_grad():
        moved = list(leaves(new(X.roll((3, 5), (2, 3)))))
        expected = [y.roll((3, 5), axes) for y in leaves(new(X))]
    assert len(moved) > 0
    assert all(torch.equal(one, other) for one, other in zip(moved, expected, strict=True))


REFUSED = {
    "positions as one axis": (Net(lambda y: y.flatten(2)), "positions are one axis"),
    "heat map": (Net(lambda y: y[:, 0].flatten(1).softmax(1)), "positions are one axis|counted"),
    "no batch": (Net(lambda y: y.mean(0)), "without an axis for the images"),
    "valid": (Net(lambda y: y, padding=0), "6 positions where the grid has 8"),
    "crop": (Net(lambda y: y[:, :, 1:-1, 1:-1]), "6 positions where the grid has 8"),
    "not understood": (Net(lambda y: y.cumsum(-1)), "the result must not be a map"),
    "flat": (Net(lambda y: y[:, 0].cumsum(-1).flatten(1)), "the result must not be a map"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_maps_that_cannot_be_moved_back_are_refused(name):
    net, reason = REFUSED[name]
    with pytest.raises(ConversionError, match=reason):
        convert(net.eval(), "stride", X, padding="seam")


class TwoInputs(nn.Module):
    def __init__(self, join):
        super().__init__()
        self.join, self.a, self.b = join, nn.Conv2d(3, 2, 3, 1, 1), nn.Conv2d(3, 2, 3, 1, 1)

    def forward(self, x, other):
        return self.join(self.a(x), self.b(other))


def test_positions_of_several_inputs_are_not_distinguished():
    net = TwoInputs(lambda x, y: torch.cat([x.flatten(1), y.flatten(1)], 1).sum(1)).eval()
    with pytest.raises(ConversionError, match="several inputs"):
        convert(net, "stride", (X, X.flip(0)), padding="seam")


def test_inputs_that_meet_share_a_seam():
    net = TwoInputs(lambda x, y: (x + y).mean((2, 3))).eval()
    new = convert(net, "stride", (X, X.flip(0)), padding="seam")
    with torch.no_grad():
        y = new(X, X.flip(0))
        assert torch.equal(new(X.roll((3, 5), (2, 3)), X.flip(0).roll((3, 5), (2, 3))), y)
        assert not torch.allclose(new(X, X.flip(0).roll((3, 5), (2, 3))), y)


def test_one_picture_for_a_whole_batch():
    net = TwoInputs(lambda x, y: (x + y).mean((2, 3))).eval()
    new = convert(net, "stride", (X, X), padding="seam")
    with torch.no_grad():
        y = new(X, X[:1])
        assert torch.equal(new(*(circular_shift(x, 3, 5) for x in (X, X[:1]))), y)


class WithText(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 4, 3, 1, 1), nn.Linear(5, 4)

    def forward(self, x, text):
        return self.conv(x).mean((2, 3)) + self.linear(text).mean(1)


def test_inputs_that_are_no_pictures_are_not_moved():
    with pytest.raises(ConversionError, match="which input is a picture"):
        convert(WithText().eval(), "stride", (X, torch.randn(2, 6, 5)), padding="seam")


def test_frames_of_a_film_are_no_volume():
    class Film(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, 1, 1)

        def forward(self, x):
            return self.conv(x.flatten(0, 1)).mean((2, 3)).unflatten(0, x.shape[:2]).mean(1)

    with pytest.raises(ConversionError):
        convert(Film().eval(), "stride", torch.randn(2, 2, 3, 8, 12), padding="seam")


def test_integer_pictures():
    x = torch.full((1, 3, 8, 12), 7, dtype=torch.uint8)
    new = convert(Net(lambda y: y).eval(), "stride", x, padding="seam")
    picture = torch.randint(0, 256, (1, 3, 8, 12), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.equal(new(circular_shift(picture, 3, 5)), circular_shift(new(picture), 3, 5))


def test_examples_are_left_alone_and_any_number_of_classes_is_no_map():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.token = nn.Conv2d(3, 12, 4, 4), nn.Parameter(torch.randn(1, 1, 12))

        def forward(self, x):
            y = self.embed(x.sub_(0.5)).flatten(2).transpose(1, 2)
            return torch.cat([self.token.expand(y.shape[0], -1, -1), y], 1).cumsum(1).sum(1)

    example = X.clone()
    new = convert(Tokens().eval(), "stride", example, padding="seam")
    assert torch.equal(example, X)
    assert new(X.clone()).shape == (2, 12)
    assert not plan(Tokens().eval(), X, "stride", padding="seam").refusals
    assert plan(Tokens().eval(), X, "aps", padding="seam").refusals
