import copy
import pickle

import pytest
import torch
from helpers import all_shifts, assert_circularly_equivariant, make_phase, steps_of
from torch.nn import functional as F

import trueshift as ts
from trueshift import functional
from trueshift._cpu.conditions import limits
from trueshift.windows import pad

MODES = ["circular", "zeros", "reflect", "replicate", ("zeros", "circular", "replicate")]
GRIDS = [(1, 2), (1, 3), (2, 2), (2, 3), (2, (2, 3)), (3, 2), (3, (1, 2, 3))]
SIZES = {1: (12,), 2: (12, 6), 3: (8, 6, 6)}  # every axis wider than half of the largest filter
TRAINING = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def pixels(dim, channels=4, batch=2, dtype=torch.float64):
    return torch.randn(batch, channels, *SIZES[dim], dtype=dtype)


def own_mode(mode, dim):
    return mode if isinstance(mode, str) else mode[:dim]


def adaptive(channels=4, size=3, groups=2, padding_mode="circular", dim=2):
    layer = ts.AdaptiveBlur(channels, size, groups, padding_mode, dim=dim).double()
    with torch.no_grad():
        layer.bn.weight.uniform_(0.5, 2)
        layer.bn.bias.uniform_(-1, 1)
        layer.bn.running_mean.uniform_(-0.3, 0.3)
        layer.bn.running_var.uniform_(0.3, 2)
    return layer


def formula(layer, x):
    """What a filter stands for, in terms of the formulas of the paper."""
    with ts.plain():
        if isinstance(layer, ts.Blur):
            kernel = functional.binomial_kernel(layer.size, layer.dim).to(x)
            kernel = kernel.expand(x.shape[1], *[-1] * (1 + layer.dim))
            return functional.blur(x, kernel, layer.padding_mode)
        border = ((layer.size // 2,) * 2,) * layer.dim
        padded = pad(x, border, layer.padding_mode)
        weights = layer.bn((F.conv1d, F.conv2d, F.conv3d)[layer.dim - 1](padded, layer.conv.weight))
        ones = (1,) * layer.dim
        return functional.mix_neighbours(padded, weights.softmax(1), layer.groups, layer.size, ones)


def assert_is_the_formula(layer, x, strides=()):
    """The layer, and the layer at every kind of phase; running statistics move alike."""
    for stride in (None, *strides):
        for kind in ("hard", "int", "soft") if stride else (None,):
            ours, theirs = copy.deepcopy(layer), copy.deepcopy(layer)
            expected = formula(theirs, x)
            if stride is None:
                y = ours(x)
            else:
                phase, steps = (
                    make_phase(kind, len(x), stride, layer.dim),
                    steps_of(stride, layer.dim),
                )
                y = ours.down(x, phase, steps)
                with ts.plain():
                    expected = functional.keep_phase(expected, phase, steps)
            torch.testing.assert_close(y, expected)
            for mine, other in zip(ours.buffers(), theirs.buffers(), strict=True):
                torch.testing.assert_close(mine, other)


class TestBlur:
    @pytest.mark.parametrize("padding_mode", MODES, ids=str)
    @pytest.mark.parametrize(
        ("dim", "size"), [*((d, s) for d in (1, 2) for s in range(1, 8)), (3, 3)]
    )
    def test_is_the_formula(self, dim, size, padding_mode):
        layer = ts.Blur(4, size, own_mode(padding_mode, dim), dim=dim).double()
        assert_is_the_formula(layer, pixels(dim), [(2, 3)] if dim == 2 else [])

    @pytest.mark.parametrize(("dim", "stride"), GRIDS)
    def test_at_a_phase_for_all_dimensions_and_strides(self, dim, stride):
        assert_is_the_formula(ts.Blur(4, 3, dim=dim).double(), pixels(dim), [stride])

    def test_sizes_one_to_three_in_figures(self):
        x = torch.tensor([[[4.0, 8.0, 0.0, 0.0]]])
        assert torch.equal(ts.Blur(1, 1, dim=1)(x), x)
        assert ts.Blur(1, 2, dim=1)(x).tolist() == [[[6.0, 4.0, 0.0, 2.0]]]
        assert ts.Blur(1, 3, dim=1)(x).tolist() == [[[4.0, 5.0, 2.0, 1.0]]]

    def test_is_a_depthwise_convolution(self):
        x, layer = torch.randn(2, 3, 8, 8), ts.Blur(3, 3, "zeros")
        kernel = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]) / 16
        expected = F.conv2d(x, kernel.expand(3, 1, 3, 3), padding=1, groups=3)
        torch.testing.assert_close(layer(x), expected)

    @pytest.mark.parametrize("size", range(1, 8))
    def test_keeps_the_mean_and_is_bitwise_equivariant(self, size):
        x, layer = pixels(2, dtype=torch.float32), ts.Blur(4, size)
        torch.testing.assert_close(layer(x).mean((2, 3)), x.mean((2, 3)), rtol=1e-4, atol=1e-6)
        assert_circularly_equivariant(layer, x, all_shifts(SIZES[2]))

    def test_a_filter_wider_than_the_map_wraps_more_than_once(self):
        x = torch.randn(2, 4, 2, 1, dtype=torch.float64)
        assert_is_the_formula(ts.Blur(4, 7).double(), x)

    def test_the_kernel_is_no_weight(self):
        layer = ts.Blur(3)
        assert not layer.state_dict()
        assert not list(layer.parameters())
        assert repr(ts.Blur(3, 5, "zeros")) == "Blur(3, size=5, padding_mode=zeros)"


class TestAdaptiveBlur:
    @TRAINING
    @pytest.mark.parametrize("padding_mode", MODES, ids=str)
    @pytest.mark.parametrize(("dim", "size"), [(1, 3), (1, 5), (2, 1), (2, 3), (2, 5), (3, 3)])
    def test_is_the_formula(self, dim, size, padding_mode, training):
        layer = adaptive(size=size, padding_mode=own_mode(padding_mode, dim), dim=dim)
        strides = [(2, 3)] if dim == 2 else []
        assert_is_the_formula(layer.train(training), pixels(dim), strides)

    @TRAINING
    @pytest.mark.parametrize(("dim", "stride"), GRIDS)
    def test_at_a_phase_for_all_dimensions_and_strides(self, dim, stride, training):
        assert_is_the_formula(adaptive(dim=dim).train(training), pixels(dim), [stride])

    def test_batch_statistics_are_those_of_all_positions_whatever_else_is_in_eval_mode(self):
        layer = adaptive().eval()
        layer.bn.train()
        assert_is_the_formula(layer, pixels(2), [2])

    def test_training_moves_the_running_statistics(self):
        layer = adaptive().train()
        before = layer.bn.running_mean.clone()
        layer(pixels(2))
        assert not torch.equal(layer.bn.running_mean, before)
        assert layer.bn.num_batches_tracked == 1

    def test_is_bitwise_equivariant_at_test_time(self):
        layer = adaptive(channels=8).float().eval()
        x = pixels(2, channels=8, dtype=torch.float32)
        assert_circularly_equivariant(layer, x, all_shifts(SIZES[2]))

    def test_one_softmax_runs_over_all_groups_and_taps(self):
        layer = adaptive().eval()
        ones = torch.ones(1, 4, 6, 6, dtype=torch.float64)
        shares = layer(ones)[:, ::2]  # one channel of each group: the sum of its weights
        torch.testing.assert_close(shares.sum(1), torch.ones(1, 6, 6, dtype=torch.float64))
        assert (shares < 1).all()

    def test_state(self):
        ours, other, x = adaptive().eval(), adaptive().eval(), pixels(2)
        assert not torch.equal(ours(x), other(x))
        other.load_state_dict(ours.state_dict())
        assert torch.equal(ours(x), other(x))
        shapes = {name: tuple(p.shape) for name, p in ts.AdaptiveBlur(16).named_parameters()}
        assert shapes == {"conv.weight": (72, 16, 3, 3), "bn.weight": (72,), "bn.bias": (72,)}
        assert "8, size=3, groups=4, padding_mode=circular" in repr(ts.AdaptiveBlur(8, 3, 4))


FILTERS = {
    "blur2": lambda: ts.Blur(4, 2),
    "blur3": lambda: ts.Blur(4, 3),
    "blur3, zeros": lambda: ts.Blur(4, 3, "zeros"),
    "adaptive": adaptive,
}


@pytest.mark.parametrize("name", FILTERS)
@TRAINING
class TestEveryFilter:
    @pytest.mark.parametrize("kind", [None, "int", "hard", "soft"])
    def test_gradients_are_those_of_the_formula(self, name, training, kind):
        layer = FILTERS[name]().double().train(training)
        theirs, x = copy.deepcopy(layer), pixels(2)
        phase = make_phase(kind, 2, 2, 2) if kind else None
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        y, z = layer(leaves[0]), formula(theirs, leaves[1])
        if kind:
            y, z = layer.down(leaves[0], phase, (2, 2)), functional.keep_phase(z, phase, (2, 2))
        weights = torch.randn_like(y)
        (y * weights).sum().backward()
        (z * weights).sum().backward()
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad)
        for mine, other in zip(layer.parameters(), theirs.parameters(), strict=True):
            assert mine.grad.abs().max() > 0
            torch.testing.assert_close(mine.grad, other.grad)

    @pytest.mark.parametrize("batch", [0, 1])
    def test_any_batch(self, name, batch, training):
        layer, x = FILTERS[name]().float().train(training), torch.randn(batch, 4, 4, 6)
        assert layer(x).shape == x.shape
        for kind in ("int", "hard", "soft"):
            phase = make_phase(kind, batch, 2, 2)
            assert layer.down(x, phase, (2, 2)).shape == (batch, 4, 2, 3)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
    def test_any_floating_type(self, name, dtype, training):
        x = torch.randn(2, 4, 6, 8)
        exact = FILTERS[name]().float().train(training)
        lower = copy.deepcopy(exact).to(dtype)
        y = lower(x.to(dtype))
        assert y.dtype == dtype
        tolerance = 1e-5 if dtype == torch.float64 else 0.05
        torch.testing.assert_close(y.float(), exact(x), rtol=tolerance, atol=tolerance)

    def test_autocast(self, name, training):
        layer = FILTERS[name]().float().train(training)
        x = torch.randn(2, 4, 6, 8, requires_grad=True)
        for source in (x, x.bfloat16()):
            with torch.autocast("cpu", torch.bfloat16):
                y = layer(source)
            y.float().sum().backward()
            torch.testing.assert_close(y.float(), layer(x), rtol=0.05, atol=0.05)
            assert torch.isfinite(x.grad).all()

    @pytest.mark.parametrize("kind", [None, "int", "hard", "soft"])
    def test_layout_chunks_and_gradients_change_nothing(self, name, kind, training):
        layer, x = FILTERS[name]().float().train(training), torch.randn(5, 4, 6, 8)
        phase = make_phase(kind, 5, 2, 2) if kind else None

        def run(x):
            return layer(x) if kind is None else layer.down(x, phase, (2, 2))

        with torch.no_grad():
            expected = run(x)
            last = run(x.contiguous(memory_format=torch.channels_last))
            with limits(chunk=2 * x[0].numel()):
                torch.testing.assert_close(run(x), expected)
        torch.testing.assert_close(last, expected)
        y = run(x.requires_grad_())
        if training:
            torch.testing.assert_close(y, expected)
        elif kind != "soft":
            assert torch.equal(y, expected)

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_copies_filter_alike(self, name, duplicate, training):
        layer, x = FILTERS[name]().float().train(training), torch.randn(2, 4, 6, 8)
        assert torch.equal(duplicate(layer)(x), layer(x))


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7])
def test_components_of_a_blurred_map_have_the_same_mean(size):
    x = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    means = functional.polyphase_split(ts.Blur(3, size=size).double()(x), 2).mean((3, 4))
    torch.testing.assert_close(means, means[:, :1].expand_as(means))
