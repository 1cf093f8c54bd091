import copy
import pickle

import layer_oracles as oracles
import pytest
import torch
from helpers import all_shifts, assert_circularly_equivariant, phase_offsets
from torch.nn import functional as F

import trueshift as ts
from benchmarks import reference

MODES = ["circular", "zeros", "reflect", "replicate"]
STRIDES = [(1, 2), (1, 3), (2, 2), (2, 3), (2, (2, 3)), (3, 2), (3, (1, 2, 3))]
SIZES = {1: (12,), 2: (12, 6), 3: (8, 6, 6)}  # every axis wider than half of the largest filter


def pixels(dim, channels=3, batch=2, dtype=torch.float64):
    return torch.randn(batch, channels, *SIZES[dim], dtype=dtype)


def adaptive(channels=4, size=3, groups=2, padding_mode="circular", dim=2):
    layer = ts.AdaptiveBlur(channels, size, groups, padding_mode, dim=dim).double()
    with torch.no_grad():
        layer.bn.weight.uniform_(0.5, 2)
        layer.bn.bias.uniform_(-1, 1)
        layer.bn.running_mean.uniform_(-0.3, 0.3)
        layer.bn.running_var.uniform_(0.3, 2)
    return layer


def phases_of(stride, dim, batch):
    """One phase for all images, then a different one for each image."""
    count = len(phase_offsets(stride, dim))
    return [*range(count), torch.randint(count, (batch,)), torch.arange(batch) % count]


class TestBlur:
    @pytest.mark.parametrize("padding_mode", MODES)
    @pytest.mark.parametrize("size", range(1, 8))
    @pytest.mark.parametrize("dim", [1, 2])
    def test_is_the_sum_of_neighbours_with_binomial_weights(self, dim, size, padding_mode):
        x = pixels(dim)
        y = ts.Blur(3, size, padding_mode, dim=dim).double()(x)
        assert y.shape == x.shape
        torch.testing.assert_close(y, oracles.blur(x, size, padding_mode))

    @pytest.mark.parametrize("size", [2, 3, 5])
    def test_in_three_dimensions(self, size):
        x = pixels(3)
        torch.testing.assert_close(ts.Blur(3, size, dim=3).double()(x), oracles.blur(x, size))

    def test_sizes_one_to_three_in_figures(self):
        x = torch.tensor([[[4.0, 8.0, 0.0, 0.0]]])
        assert torch.equal(ts.Blur(1, 1, dim=1)(x), x)
        assert ts.Blur(1, 2, dim=1)(x).tolist() == [[[6.0, 4.0, 0.0, 2.0]]]
        assert ts.Blur(1, 3, dim=1)(x).tolist() == [[[4.0, 5.0, 2.0, 1.0]]]

    def test_equals_the_reference_formula(self):
        x, layer = torch.randn(2, 5, 8, 12), ts.Blur(5, 4)
        torch.testing.assert_close(layer(x), reference.blur(x, layer))

    @pytest.mark.parametrize("padding_mode", MODES)
    @pytest.mark.parametrize("size", range(1, 8))
    def test_at_a_phase_is_filter_then_slice(self, size, padding_mode):
        x, layer = pixels(2, batch=4), ts.Blur(3, size, padding_mode).double()
        for phase in phases_of((2, 3), 2, 4):
            expected = oracles.keep(layer(x), phase, (2, 3))
            torch.testing.assert_close(layer.at(x, phase, (2, 3)), expected)

    @pytest.mark.parametrize(("dim", "stride"), STRIDES)
    def test_at_a_phase_for_all_dimensions_and_strides(self, dim, stride):
        x, layer = pixels(dim), ts.Blur(3, 3, dim=dim).double()
        for phase in phases_of(stride, dim, 2):
            expected = oracles.keep(layer(x), phase, stride)
            torch.testing.assert_close(layer.at(x, phase, stride), expected)

    @pytest.mark.parametrize("size", range(1, 8))
    def test_keeps_the_mean(self, size):
        x = pixels(2)
        torch.testing.assert_close(ts.Blur(3, size).double()(x).mean((2, 3)), x.mean((2, 3)))

    @pytest.mark.parametrize("size", range(1, 8))
    def test_is_bitwise_equivariant(self, size):
        x = pixels(2, dtype=torch.float32)
        assert_circularly_equivariant(ts.Blur(3, size), x, all_shifts(SIZES[2]))

    def test_a_filter_wider_than_the_map_wraps_more_than_once(self):
        x = torch.randn(2, 3, 2, 1, dtype=torch.float64)
        torch.testing.assert_close(ts.Blur(3, 7).double()(x), oracles.blur(x, 7))

    @pytest.mark.parametrize("padding_mode", MODES)
    def test_gradcheck(self, padding_mode):
        layer = ts.Blur(2, 3, padding_mode).double()
        x = torch.randn(2, 2, 4, 6, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(layer, x)
        for phase in (1, torch.tensor([0, 3])):
            assert torch.autograd.gradcheck(lambda x, k=phase: layer.at(x, k, 2), x)

    def test_the_kernel_is_no_weight(self):
        layer = ts.Blur(3)
        assert not layer.state_dict()
        assert not list(layer.parameters())

    def test_repr_shows_the_arguments(self):
        assert repr(ts.Blur(3, 5, "zeros")) == "Blur(3, size=5, padding_mode=zeros)"


class TestAdaptiveBlur:
    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    @pytest.mark.parametrize("padding_mode", MODES)
    @pytest.mark.parametrize(("dim", "size"), [(1, 3), (1, 5), (2, 1), (2, 3), (2, 5), (3, 3)])
    def test_is_the_sum_of_neighbours_with_predicted_weights(
        self, dim, size, padding_mode, training
    ):
        x = pixels(dim, channels=4)
        ours = adaptive(size=size, padding_mode=padding_mode, dim=dim).train(training)
        theirs = copy.deepcopy(ours)
        torch.testing.assert_close(ours(x), oracles.adaptive_blur(x, theirs))
        assert_same_statistics(ours, theirs)

    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    @pytest.mark.parametrize("size", [3, 5])
    def test_equals_the_unfolding_reference_formula(self, size, training):
        x = pixels(2, channels=4)
        ours = adaptive(size=size).train(training)
        theirs = copy.deepcopy(ours)
        torch.testing.assert_close(ours(x), reference.adaptive_blur(x, theirs))
        assert_same_statistics(ours, theirs)

    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    @pytest.mark.parametrize("padding_mode", MODES)
    @pytest.mark.parametrize("size", [1, 3, 5])
    def test_at_a_phase_is_filter_then_slice(self, size, padding_mode, training):
        x = pixels(2, channels=4, batch=4)
        for phase in phases_of((2, 3), 2, 4):
            ours = adaptive(size=size, padding_mode=padding_mode).train(training)
            theirs = copy.deepcopy(ours)
            expected = oracles.keep(oracles.adaptive_blur(x, theirs), phase, (2, 3))
            torch.testing.assert_close(ours.at(x, phase, (2, 3)), expected)
            assert_same_statistics(ours, theirs)

    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    @pytest.mark.parametrize(("dim", "stride"), STRIDES)
    def test_at_a_phase_for_all_dimensions_and_strides(self, dim, stride, training):
        x = pixels(dim, channels=4)
        for phase in phases_of(stride, dim, 2):
            ours = adaptive(dim=dim).train(training)
            theirs = copy.deepcopy(ours)
            expected = oracles.keep(oracles.adaptive_blur(x, theirs), phase, stride)
            torch.testing.assert_close(ours.at(x, phase, stride), expected)
            assert_same_statistics(ours, theirs)

    def test_training_moves_the_running_statistics(self):
        layer = adaptive().train()
        before = layer.bn.running_mean.clone()
        layer(pixels(2, channels=4))
        assert not torch.equal(layer.bn.running_mean, before)
        assert layer.bn.num_batches_tracked == 1

    @pytest.mark.parametrize("phase", [None, 1, torch.tensor([2, 1])], ids=["map", "int", "each"])
    def test_gradients_equal_those_of_the_reference_formula(self, phase):
        x = pixels(2, channels=4)
        ours = adaptive().train()
        theirs = copy.deepcopy(ours)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        y = ours(a) if phase is None else ours.at(a, phase, 2)
        z = reference.adaptive_blur(b, theirs)
        z = z if phase is None else oracles.keep(z, phase, 2)
        weights = torch.randn_like(y)
        (y * weights).sum().backward()
        (z * weights).sum().backward()
        torch.testing.assert_close(a.grad, b.grad)
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert mine.grad.abs().max() > 0
            torch.testing.assert_close(mine.grad, other.grad)

    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    @pytest.mark.parametrize("phase", [None, 1, torch.tensor([0, 3])], ids=["map", "int", "each"])
    def test_gradcheck(self, phase, training):
        layer = adaptive(channels=2, groups=1).train(training)
        layer.bn.momentum = 0.0  # running statistics stay, so the function stays the same
        x = torch.randn(2, 2, 4, 4, dtype=torch.float64, requires_grad=True)
        weights = (layer.conv.weight, layer.bn.weight, layer.bn.bias)

        def run(x, *_):
            return layer(x) if phase is None else layer.at(x, phase, 2)

        assert torch.autograd.gradcheck(run, (x, *weights))

    def test_is_bitwise_equivariant_at_test_time(self):
        layer = adaptive(channels=8).float().eval()
        x = pixels(2, channels=8, dtype=torch.float32)
        assert_circularly_equivariant(layer, x, all_shifts(SIZES[2]))

    def test_one_softmax_runs_over_all_groups_and_taps(self):
        layer = adaptive(channels=4, groups=2).eval()
        ones = torch.ones(1, 4, 6, 6, dtype=torch.float64)
        shares = layer(ones)[:, ::2]  # one channel of each group: the sum of its weights
        torch.testing.assert_close(shares.sum(1), torch.ones(1, 6, 6, dtype=torch.float64))
        assert (shares < 1).all()

    def test_state_dict_round_trip(self):
        ours, other, x = adaptive().eval(), adaptive().eval(), pixels(2, channels=4)
        assert not torch.equal(ours(x), other(x))
        other.load_state_dict(ours.state_dict())
        assert torch.equal(ours(x), other(x))

    def test_parameters_are_one_convolution_and_one_batch_norm(self):
        shapes = {name: tuple(p.shape) for name, p in ts.AdaptiveBlur(16).named_parameters()}
        assert shapes == {"conv.weight": (72, 16, 3, 3), "bn.weight": (72,), "bn.bias": (72,)}

    def test_repr_shows_the_arguments(self):
        assert "8, size=3, groups=4, padding_mode=circular" in repr(ts.AdaptiveBlur(8, 3, 4))


def assert_same_statistics(ours, theirs):
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        torch.testing.assert_close(getattr(ours.bn, name), getattr(theirs.bn, name))


FILTERS = {
    "blur2": lambda: ts.Blur(8, 2),
    "blur3": lambda: ts.Blur(8, 3),
    "adaptive": lambda: ts.AdaptiveBlur(8, groups=4),
}


@pytest.mark.parametrize("name", FILTERS)
class TestEveryFilter:
    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    @pytest.mark.parametrize("batch", [0, 1])
    def test_any_batch(self, name, batch, training):
        layer, x = FILTERS[name]().train(training), torch.randn(batch, 8, 4, 6)
        assert layer(x).shape == x.shape
        each = torch.zeros(batch, dtype=torch.int64)
        assert layer.at(x, 0, 2).shape == layer.at(x, each, 2).shape == (batch, 8, 2, 3)

    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
    def test_any_floating_type(self, name, dtype, training):
        x = torch.randn(2, 8, 6, 8)
        exact = FILTERS[name]().train(training)
        lower = copy.deepcopy(exact).to(dtype)
        y = lower(x.to(dtype))
        assert y.dtype == dtype
        tolerance = 1e-5 if dtype == torch.float64 else 0.05
        torch.testing.assert_close(y.float(), exact(x), rtol=tolerance, atol=tolerance)

    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    def test_autocast(self, name, training):
        layer = FILTERS[name]().train(training)
        x = torch.randn(2, 8, 6, 8, requires_grad=True)
        for source in (x, x.bfloat16()):
            with torch.autocast("cpu", torch.bfloat16):
                y = layer(source)
            y.float().sum().backward()
            torch.testing.assert_close(y.float(), layer(x), rtol=0.05, atol=0.05)
            assert torch.isfinite(x.grad).all()

    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    def test_channels_last_stays_channels_last(self, name, training):
        layer, x = FILTERS[name]().train(training), torch.randn(2, 8, 6, 8)
        last = x.contiguous(memory_format=torch.channels_last)
        for y, expected in (
            (layer(last), layer(x)),
            (layer.at(last, 1, 2), layer.at(x, 1, 2)),
            (layer.at(last, torch.tensor([1, 2]), 2), layer.at(x, torch.tensor([1, 2]), 2)),
        ):
            assert y.is_contiguous(memory_format=torch.channels_last)
            torch.testing.assert_close(y, expected)

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_copies_filter_alike(self, name, duplicate):
        layer, x = FILTERS[name]().eval(), torch.randn(2, 8, 6, 8)
        assert torch.equal(duplicate(layer)(x), layer(x))

    def test_gradients_do_not_change_a_bit(self, name):
        layer, x = FILTERS[name]().eval(), torch.randn(2, 8, 6, 8)
        with torch.no_grad():
            expected = layer(x)
        assert torch.equal(layer(x.requires_grad_()).detach(), expected)


def test_a_binomial_filter_is_a_depthwise_convolution():
    x, layer = torch.randn(2, 3, 8, 8), ts.Blur(3, 3, "zeros")
    kernel = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]) / 16
    expected = F.conv2d(x, kernel.expand(3, 1, 3, 3), padding=1, groups=3)
    torch.testing.assert_close(layer(x), expected)
