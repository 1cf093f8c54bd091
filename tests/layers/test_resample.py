import copy
import io
import math
import pickle

import layer_oracles as oracles
import pytest
import torch
from helpers import all_shifts, assert_circularly_equivariant, phase_offsets, steps_of
from torch import nn

import trueshift as ts
from benchmarks import reference
from trueshift import _chunks as chunks
from trueshift.shifts import circular_shift

STRIDES = [(1, 2), (1, 3), (2, 2), (2, 3), (2, (2, 3)), (2, (1, 2)), (3, 2), (3, (1, 2, 3))]
ANTIALIAS = [None, "rect2", "tri3", "adapt3"]
SELECTORS = {
    "stride": lambda dim: ts.FixedSelector(1),
    "aps": lambda dim: ts.NormSelector(2),
    "lps": lambda dim: ts.ConvSelector(4, 3, dim=dim, train_rule="softmax", tau=0.2),
}


def blur(name, dim=2, padding_mode="circular"):
    spec = ts.Sampling("stride", name, padding_mode, dim=dim, groups=2)
    layer = spec.blur(4)
    if isinstance(layer, ts.AdaptiveBlur):
        with torch.no_grad():
            layer.bn.running_mean.uniform_(-0.3, 0.3)
            layer.bn.running_var.uniform_(0.3, 2)
    return layer


def pixels(dim, batch=3):
    return torch.randn(batch, 4, *oracles.SIZES[dim], dtype=torch.float64)


def soft_phase(batch, num_phases, dtype=torch.float64):
    return torch.randn(batch, num_phases, dtype=dtype).softmax(1)


class TestPolyphaseDown:
    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    @pytest.mark.parametrize("select_on", ["filtered", "unfiltered"])
    @pytest.mark.parametrize("antialias", ANTIALIAS)
    @pytest.mark.parametrize("selector", SELECTORS)
    def test_filters_chooses_and_keeps(self, selector, antialias, select_on, training):
        self.compare(selector, antialias, select_on, training, dim=2, stride=2)

    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    @pytest.mark.parametrize("antialias", [None, "tri3", "adapt3"])
    @pytest.mark.parametrize("selector", SELECTORS)
    @pytest.mark.parametrize(("dim", "stride"), STRIDES)
    def test_any_dimension_and_stride(self, selector, antialias, dim, stride, training):
        self.compare(selector, antialias, "filtered", training, dim, stride)

    def compare(self, selector, antialias, select_on, training, dim, stride):
        x = pixels(dim)
        layer = ts.PolyphaseDown(
            SELECTORS[selector](dim), stride, blur(antialias, dim), select_on=select_on
        )
        layer.double().train(training)
        theirs = copy.deepcopy(layer)
        y, phase = layer(x, return_phase=True)
        expected, expected_phase = oracles.down(x, theirs)
        torch.testing.assert_close(phase, expected_phase)
        torch.testing.assert_close(y, expected)
        steps = steps_of(stride, dim)
        sizes = (size // step for size, step in zip(x.shape[2:], steps, strict=True))
        assert y.shape == (3, 4, *sizes)
        for name, buffer in layer.named_buffers():
            torch.testing.assert_close(buffer, theirs.get_buffer(name))

    def test_lpd_equals_the_reference_at_test_time(self):
        x = torch.randn(4, 6, 8, 12)
        layer = ts.LPD(6, 3).eval()
        assert torch.equal(layer(x), reference.lpd_eval(x, layer.selector))

    def test_lpd_equals_the_reference_while_training(self):
        x = torch.randn(4, 6, 8, 12)
        layer = ts.LPD(6, 3, tau=0.5).train()
        torch.manual_seed(3)
        y = layer(x)
        torch.manual_seed(3)
        torch.testing.assert_close(y, reference.lpd_train(x, layer.selector))

    def test_aps_equals_the_reference(self):
        x = torch.randn(4, 6, 8, 12)
        assert torch.equal(ts.APS(6)(x), reference.aps(x))

    def test_plain_stride_with_a_filter_equals_the_reference(self):
        x = torch.randn(4, 6, 8, 12)
        lpf = ts.PolyphaseDown(ts.FixedSelector(), antialias=ts.Blur(6))
        ddac = ts.PolyphaseDown(ts.FixedSelector(), antialias=ts.AdaptiveBlur(6, groups=3))
        torch.testing.assert_close(lpf(x), reference.blur_then_slice(x, lpf.antialias))
        for layer in (ddac.train(), ddac.eval()):
            torch.testing.assert_close(layer(x), reference.ddac_then_slice(x, ddac.antialias))

    def test_plain_stride_is_slicing(self):
        x = torch.randn(2, 3, 6, 12)
        layer = ts.PolyphaseDown(ts.FixedSelector(), stride=(2, 3))
        assert torch.equal(layer(x), x[..., ::2, ::3])

    def test_returns_a_phase_only_when_asked(self):
        layer = ts.APS(4)
        x = torch.randn(2, 4, 4, 4)
        assert isinstance(layer(x), torch.Tensor)
        y, phase = layer(x, return_phase=True)
        assert torch.equal(y, layer(x))
        assert torch.equal(y, ts.functional.polyphase_down(x, phase, 2))

    def test_a_given_phase_replaces_the_choice(self):
        layer, x = ts.APS(4, antialias="tri3"), torch.randn(3, 4, 4, 6)
        phase = torch.tensor([0, 3, 1])
        y, returned = layer(x, phase=phase, return_phase=True)
        assert returned is phase
        torch.testing.assert_close(y, oracles.keep(oracles.blur(x, 3), phase, 2))

    def test_select_on_unfiltered_can_choose_another_phase(self):
        x = torch.randn(64, 4, 8, 8)
        phases = [
            ts.APS(4, antialias="tri3", select_on=where)(x, return_phase=True)[1]
            for where in ("filtered", "unfiltered")
        ]
        assert not torch.equal(*phases)

    def test_repr_shows_the_arguments(self):
        shown = repr(ts.LPD(4, stride=(2, 3), antialias="tri3", padding_mode="zeros"))
        assert "stride=(2, 3), select_on=filtered, padding_mode=zeros" in shown
        assert "ConvSelector" in shown
        assert "Blur(4, size=3, padding_mode=zeros)" in shown


class TestFollower:
    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    @pytest.mark.parametrize("antialias", ANTIALIAS)
    @pytest.mark.parametrize(("dim", "stride"), STRIDES)
    def test_hard_and_soft_phases_with_its_own_filter(self, dim, stride, antialias, training):
        num_phases = len(phase_offsets(stride, dim))
        for phase in (torch.randint(num_phases, (3,)), soft_phase(3, num_phases)):
            x = pixels(dim)
            layer = ts.PolyphaseDown(None, stride, blur(antialias, dim)).double().train(training)
            theirs = copy.deepcopy(layer)
            expected = oracles.keep(oracles.filtered(x, theirs.antialias), phase, stride)
            torch.testing.assert_close(layer(x, phase=phase), expected)
            for name, buffer in layer.named_buffers():
                torch.testing.assert_close(buffer, theirs.get_buffer(name))

    def test_a_custom_filter_module_is_applied_to_the_whole_map(self):
        class Double(nn.Module):
            def forward(self, x):
                return 2 * x

        x, phase = torch.randn(2, 4, 4, 6), torch.tensor([3, 0])
        layer = ts.PolyphaseDown(None, antialias=Double())
        assert torch.equal(layer(x, phase=phase), 2 * oracles.keep(x, phase, 2))

    def test_a_branch_that_follows_stays_on_the_same_grid(self):
        lead = ts.LPD(4, antialias="tri3").eval()
        follow = ts.PolyphaseDown(None, antialias=ts.Blur(4))
        x, skip = torch.randn(2, 4, 8, 12), torch.randn(2, 4, 8, 12)

        def both(x, skip):
            y, phase = lead(x, return_phase=True)
            return ts.LPU(4)(y + follow(skip, phase=phase), phase)

        expected = both(x, skip)
        for shift in all_shifts((8, 12)):
            moved = both(circular_shift(x, *shift), circular_shift(skip, *shift))
            assert torch.equal(moved, circular_shift(expected, *shift))


class TestPolyphaseUp:
    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    @pytest.mark.parametrize("antialias", ANTIALIAS)
    @pytest.mark.parametrize(("dim", "stride"), STRIDES)
    def test_places_filters_and_scales_by_the_stride(self, dim, stride, antialias, training):
        num_phases = len(phase_offsets(stride, dim))
        y = torch.randn(3, 4, *(2, 3, 2)[:dim], dtype=torch.float64)
        for phase in (torch.randint(num_phases, (3,)), soft_phase(3, num_phases)):
            layer = ts.PolyphaseUp(stride, blur(antialias, dim)).double().train(training)
            theirs = copy.deepcopy(layer)
            torch.testing.assert_close(layer(y, phase), oracles.up(y, phase, theirs))

    def test_equals_the_reference(self):
        y, phase = torch.randn(3, 4, 4, 6), torch.tensor([3, 0, 2])
        assert torch.equal(ts.LPU(4)(y, phase), reference.place(y, phase))
        expected = 4 * reference.blur(reference.place(y, phase), ts.Blur(4))
        torch.testing.assert_close(ts.LPU(4, antialias="tri3")(y, phase), expected)

    @pytest.mark.parametrize("stride", [2, 3, (2, 3)])
    def test_a_filter_keeps_the_mean(self, stride):
        y = torch.randn(2, 4, 4, 6, dtype=torch.float64)
        up = ts.LPU(4, stride, antialias="tri3").double()
        u = up(y, torch.tensor([1, 3]))
        torch.testing.assert_close(u.mean((2, 3)), y.mean((2, 3)))

    def test_undoes_the_slicing_and_nothing_else(self):
        x, down = torch.randn(2, 4, 8, 12), ts.LPD(4).eval()
        y, phase = down(x, return_phase=True)
        u = ts.LPU(4)(y, phase)
        assert torch.equal(ts.functional.polyphase_down(u, phase, 2), y)
        assert (u != 0).sum() == y.numel()
        assert torch.equal(torch.where(u != 0, x, 0), u)

    def test_repr_shows_the_stride(self):
        assert "stride=3" in repr(ts.LPU(4, stride=3))


class TestShortNames:
    def test_lpd(self):
        layer = ts.LPD(
            8,
            hidden_channels=2,
            stride=3,
            antialias="adapt3",
            padding_mode="zeros",
            dim=1,
            groups=4,
            score_filtered=False,
            tau=0.5,
            train_rule="softmax",
            test_rule="softmax",
        )
        assert isinstance(layer, ts.PolyphaseDown)
        assert (layer.stride, layer.select_on, layer.padding_mode) == (3, "unfiltered", "zeros")
        selector = layer.selector
        assert isinstance(selector, ts.ConvSelector)
        assert (selector.conv1.out_channels, selector.padding_mode, selector.dim) == (2, "zeros", 1)
        assert (selector.tau.item(), selector.train_rule, selector.test_rule) == (
            0.5,
            "softmax",
            "softmax",
        )
        assert (layer.antialias.groups, layer.antialias.padding_mode) == (4, "zeros")

    def test_aps(self):
        layer = ts.APS(8, p=1, stride=(2, 3), antialias="rect2", padding_mode="reflect")
        assert isinstance(layer.selector, ts.NormSelector)
        assert (layer.selector.p, layer.stride, layer.padding_mode) == (1, (2, 3), "reflect")
        assert (layer.antialias.size, layer.antialias.padding_mode) == (2, "reflect")

    def test_lpu(self):
        layer = ts.LPU(8, stride=3, antialias="adapt5", padding_mode="zeros", dim=3, groups=2)
        assert isinstance(layer, ts.PolyphaseUp)
        assert (layer.stride, layer.antialias.size, layer.antialias.groups) == (3, 5, 2)
        assert (layer.antialias.dim, layer.antialias.padding_mode) == (3, "zeros")

    def test_a_list_of_strides_is_stored_as_a_tuple(self):
        assert ts.LPD(4, stride=[2, 3]).stride == ts.LPU(4, stride=[2, 3]).stride == (2, 3)


class TestOddSizes:
    """Without circular padding, any size is legal and follows torch's rule for strides."""

    @pytest.mark.parametrize("antialias", ANTIALIAS)
    @pytest.mark.parametrize("method", ["stride", "aps", "lps"])
    @pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "replicate"])
    def test_size_rule_and_way_back(self, padding_mode, method, antialias):
        spec = ts.Sampling(method, antialias, padding_mode, groups=2)
        for sizes in ((7, 9), (8, 5), (6, 6)):
            for stride in (2, 3, (2, 3)):
                steps = steps_of(stride, 2)
                x = torch.randn(2, 4, *sizes)
                down, up = spec.down(4, stride).eval(), spec.up(4, stride).eval()
                y, phase = down(x, return_phase=True)
                rule = tuple((n - 1) // s + 1 for n, s in zip(sizes, steps, strict=True))
                assert y.shape[2:] == rule == nn.MaxPool2d(1, steps)(x).shape[2:]
                assert up(y, phase, output_size=sizes).shape == x.shape
                assert spec.follow(4, stride).eval()(x, phase=phase).shape == y.shape

    @pytest.mark.parametrize("antialias", [None, "tri3"])
    def test_zeros_extend_the_map_at_its_end(self, antialias):
        x = torch.randn(2, 4, 7, 9, dtype=torch.float64)
        layer = ts.APS(4, antialias=antialias, padding_mode="zeros").double()
        even = torch.nn.functional.pad(x, (0, 1, 0, 1))
        y, phase = layer(x, return_phase=True)
        expected, expected_phase = oracles.down(even, layer)
        assert torch.equal(phase, expected_phase)
        torch.testing.assert_close(y, expected)

    def test_plain_stride_with_zeros_is_a_strided_convolution(self):
        x, layer = torch.randn(2, 4, 7, 9), ts.Blur(4, 3, "zeros")
        down = ts.PolyphaseDown(ts.FixedSelector(), 2, layer, padding_mode="zeros")
        expected = torch.conv2d(x, layer.kernel, stride=2, padding=1, groups=4)
        torch.testing.assert_close(down(x), expected)

    def test_cropping_drops_only_what_lay_outside(self):
        x = torch.randn(2, 4, 7, 9)
        y, phase = ts.APS(4, padding_mode="zeros")(x, return_phase=True)
        u = ts.LPU(4, padding_mode="zeros")(y, phase, output_size=(7, 9))
        assert torch.equal(u, oracles.place(y, phase, 2)[..., :7, :9])
        assert torch.equal(torch.where(u != 0, x, 0), u)


class TestGradients:
    @pytest.mark.parametrize("antialias", [None, "tri3", "adapt3"])
    @pytest.mark.parametrize(("dim", "stride"), [(1, 3), (2, 2), (2, (1, 2))])
    def test_gradcheck_while_training(self, dim, stride, antialias):
        layer = ts.LPD(
            2, 2, stride, antialias, dim=dim, groups=1, train_rule="softmax", tau=0.5
        ).double()
        for module in layer.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = 0.0
        x = torch.randn(2, 2, *(6, 4)[:dim], dtype=torch.float64, requires_grad=True)
        names = [name for name, _ in layer.named_parameters()]
        parameters = tuple(layer.parameters())
        assert any(name.startswith("selector.conv1") for name in names)
        assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *parameters), fast_mode=True)

    @pytest.mark.parametrize("antialias", [None, "tri3", "adapt3"])
    @pytest.mark.parametrize("build", [ts.LPD, ts.APS])
    def test_gradcheck_at_test_time(self, build, antialias):
        layer = build(2, antialias=antialias, groups=1).double().eval()
        x = torch.randn(2, 2, 4, 6, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(layer, x)

    @pytest.mark.parametrize("antialias", [None, "tri3", "adapt3"])
    def test_gradcheck_of_up_sampling(self, antialias):
        layer = ts.LPU(2, antialias=antialias, groups=1).double().eval()
        y = torch.randn(2, 2, 2, 3, dtype=torch.float64, requires_grad=True)
        soft = soft_phase(2, 4).requires_grad_()
        assert torch.autograd.gradcheck(layer, (y, soft))
        assert torch.autograd.gradcheck(lambda y: layer(y, torch.tensor([1, 2])), y)

    def test_second_derivatives(self):
        down = ts.LPD(2, 2, train_rule="softmax").double()
        up = ts.LPU(2, antialias="tri3").double()
        x = torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)

        def there_and_back(x):
            return up(*down(x, return_phase=True))

        assert torch.autograd.gradgradcheck(there_and_back, x, fast_mode=True)

    @pytest.mark.parametrize("antialias", [None, "tri3", "adapt3"])
    def test_gradients_equal_those_of_the_definition(self, antialias):
        x = pixels(2)
        ours = ts.PolyphaseDown(SELECTORS["lps"](2), 2, blur(antialias)).double().train()
        theirs = copy.deepcopy(ours)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, (z, _) = ours(a), oracles.down(b, theirs)
        weights = torch.randn_like(y)
        (y * weights).sum().backward()
        (z * weights).sum().backward()
        torch.testing.assert_close(a.grad, b.grad)
        for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert name == "selector.conv2.bias" or mine.grad.abs().max() > 1e-8
            torch.testing.assert_close(mine.grad, other.grad)

    def test_a_few_steps_of_descent_lower_a_loss_through_the_soft_phase(self):
        down = ts.LPD(3, 4, tau=0.5).train()
        x = torch.randn(16, 3, 8, 8)
        x[..., 0::2, 1::2] += 1.0
        target = x[..., 0::2, 1::2]
        before = copy.deepcopy(down.state_dict())
        optimizer = torch.optim.SGD(down.parameters(), lr=0.2)
        losses = []
        for step in range(40):
            loss = (down(x) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if step == 0:
                assert down.selector.conv1.weight.grad.abs().max() > 0
                assert down.selector.conv2.weight.grad.abs().max() > 0
            optimizer.step()
            losses.append(loss.item())
        assert sum(losses[-5:]) < 0.5 * sum(losses[:5]), losses
        assert not torch.equal(before["selector.conv1.weight"], down.selector.conv1.weight)
        assert (down.eval()(x, return_phase=True)[1] == 1).float().mean() > 0.9


LAYERS = {
    "lps": lambda: ts.LPD(8, 4),
    "lps+tri3": lambda: ts.LPD(8, 4, antialias="tri3"),
    "lps+adapt3": lambda: ts.LPD(8, 4, antialias="adapt3", groups=4),
    "lps+adapt3 unfiltered": lambda: ts.LPD(
        8, 4, antialias="adapt3", groups=4, score_filtered=False
    ),
    "aps": lambda: ts.APS(8),
    "aps+rect2": lambda: ts.APS(8, antialias="rect2"),
    "stride": lambda: ts.PolyphaseDown(ts.FixedSelector()),
    "stride+tri3": lambda: ts.PolyphaseDown(ts.FixedSelector(), antialias=ts.Blur(8)),
}


@pytest.mark.parametrize("name", LAYERS)
class TestEveryLayer:
    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    @pytest.mark.parametrize("batch", [0, 1])
    def test_any_batch(self, name, batch, training):
        down, up = LAYERS[name]().train(training), ts.LPU(8, antialias="tri3")
        x = torch.randn(batch, 8, 4, 6, requires_grad=True)
        y, phase = down(x, return_phase=True)
        assert y.shape == (batch, 8, 2, 3)
        u = up(y, phase)
        assert u.shape == x.shape
        u.sum().backward()
        assert x.grad.shape == x.shape

    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
    def test_any_floating_type(self, name, dtype, training):
        down = LAYERS[name]().to(dtype).train(training)
        up = ts.LPU(8, antialias="tri3").to(dtype)
        x = torch.randn(2, 8, 4, 6, dtype=dtype, requires_grad=True)
        u = up(*down(x, return_phase=True))
        assert u.dtype == dtype
        u.sum().backward()
        assert x.grad.dtype == dtype
        assert torch.isfinite(x.grad).all()

    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    def test_autocast(self, name, training):
        net = nn.ModuleList([nn.Conv2d(8, 8, 1), LAYERS[name](), ts.LPU(8, antialias="tri3")])
        conv, down, up = net.train(training)
        x = torch.randn(2, 8, 4, 6, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            y, phase = down(conv(x), return_phase=True)
            u = up(y, phase)
        u.float().sum().backward()
        assert torch.isfinite(x.grad).all()
        low = oracles.filtered(conv(x), copy.deepcopy(down.antialias))
        torch.testing.assert_close(y.float(), oracles.keep(low, phase, 2), rtol=0.05, atol=0.05)

    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    def test_channels_last_stays_channels_last(self, name, training):
        down, up = LAYERS[name]().train(training), ts.LPU(8, antialias="tri3")
        x = torch.randn(2, 8, 6, 8)
        last = x.contiguous(memory_format=torch.channels_last)
        torch.manual_seed(5)
        y, phase = down(last, return_phase=True)
        torch.manual_seed(5)
        expected, expected_phase = down(x, return_phase=True)
        torch.testing.assert_close(phase, expected_phase)
        torch.testing.assert_close(y, expected)
        assert y.is_contiguous(memory_format=torch.channels_last)
        u = up(y, phase)
        assert u.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(u, up(expected, expected_phase))

    def test_gradients_do_not_change_a_bit_at_test_time(self, name):
        layer, x = LAYERS[name]().eval(), torch.randn(4, 8, 6, 8)
        with torch.no_grad():
            expected, expected_phase = layer(x, return_phase=True)
        y, phase = layer(x.requires_grad_(), return_phase=True)
        assert torch.equal(phase, expected_phase)
        assert torch.equal(y.detach(), expected)

    def test_state_dict_round_trip(self, name):
        layer, other = LAYERS[name](), LAYERS[name]()
        layer.train()(torch.randn(4, 8, 6, 8))  # moves what running statistics there are
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
        x = torch.randn(4, 8, 6, 8)
        assert torch.equal(other.eval()(x), layer.eval()(x))

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_copies_sample_alike(self, name, duplicate):
        layer, x = LAYERS[name]().eval(), torch.randn(4, 8, 6, 8)
        assert torch.equal(duplicate(layer)(x), layer(x))


@pytest.mark.parametrize("stride", [2, 3, (2, 3)])
@pytest.mark.parametrize("antialias", [None, "rect2", "tri3", "bin5"])
@pytest.mark.parametrize("build", [ts.LPD, ts.APS])
def test_there_and_back_is_bitwise_equivariant(build, antialias, stride):
    down = build(3, stride=stride, antialias=antialias).eval()
    up = ts.LPU(3, stride=stride, antialias=antialias)
    x = torch.randn(2, 3, 12, 6)

    def there_and_back(x):
        return up(*down(x, return_phase=True))

    assert_circularly_equivariant(there_and_back, x, all_shifts((12, 6)))


@pytest.mark.parametrize(("dim", "stride"), [(1, 2), (1, 3), (3, 2), (3, (1, 2, 3))])
def test_there_and_back_in_other_dimensions(dim, stride):
    down = ts.LPD(3, stride=stride, antialias="tri3", dim=dim).eval()
    up = ts.LPU(3, stride=stride, antialias="tri3", dim=dim)
    x = torch.randn(2, 3, *oracles.SIZES[dim])
    assert_circularly_equivariant(
        lambda x: up(*down(x, return_phase=True)), x, all_shifts(oracles.SIZES[dim])
    )


def test_parameter_counts_follow_the_widths():
    count = sum(p.numel() for p in ts.LPD(64, 8).parameters())
    assert count == (64 * 8 * 9 + 8) + (8 * 8 * 9 + 8)
    assert math.prod(ts.LPD(64).selector.conv1.weight.shape) == 64 * 64 * 9


@pytest.mark.parametrize("antialias", [None, "tri3"])
def test_a_batch_too_large_for_one_pass_goes_up_alike(antialias, monkeypatch):
    up = ts.LPU(3, 2, antialias)
    y, phase = torch.randn(5, 3, 4, 6), torch.tensor([0, 3, 1, 2, 1])
    expected = up.eval()(y, phase, output_size=(8, 11)).detach()
    monkeypatch.setattr(chunks, "_CHUNK_ELEMENTS", 2 * y[0].numel())
    seen = []
    with torch.no_grad():
        assert torch.equal(up(y, phase, output_size=(8, 11)), expected)
        up.register_forward_hook(lambda _, args, output: seen.append(output))
        assert torch.equal(up(y, phase, output_size=(8, 11)), expected)
    assert len(seen[0]) == 5
