import copy
import io
import math
import pickle

import pytest
import torch
from helpers import all_shifts, assert_circularly_equivariant, make_phase, steps_of
from torch import nn

import trueshift as ts
from trueshift._cpu.conditions import limits
from trueshift.functional import polyphase_down, polyphase_up
from trueshift.shifts import circular_shift

GRIDS = [(1, 2), (1, 3), (2, 2), (2, 3), (2, (2, 3)), (2, (1, 2)), (3, 2), (3, (1, 2, 3))]
SIZES = {1: (12,), 2: (12, 6), 3: (6, 4, 6)}
ANTIALIAS = [None, "rect2", "tri3", "adapt3"]
METHODS = ["stride", "aps", "lps"]
TRAINING = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
DOUBLE = {"dtype": torch.float64}


def pixels(dim, batch=3):
    return torch.randn(batch, 4, *SIZES[dim], **DOUBLE)


def spec_of(method="lps", antialias=None, dim=2, **options):
    rules = {"hidden": 3, "groups": 2, "train_rule": "softmax"}
    return ts.Sampling(method, antialias, dim=dim, **(rules | options))


def trained(layer):
    """Give a DDAC filter the statistics that training could have left."""
    if isinstance(layer.antialias, ts.AdaptiveBlur):
        with torch.no_grad():
            layer.antialias.bn.running_mean.uniform_(-0.3, 0.3)
            layer.antialias.bn.running_var.uniform_(0.3, 2)
    return layer.double()


def filtered(layer, x):
    return x if layer.antialias is None else layer.antialias(x)


def down_by_definition(layer, x):
    """Filter, score, choose, keep; a phase is soft only for a learned selector in training."""
    with ts.plain():
        low = filtered(layer, x)
        scores = layer.selector(low if layer.score_filtered else x, layer.stride)
        soft = layer.selector.learns and layer.training
        phase = (scores / layer.selector.tau).softmax(1) if soft else scores.argmax(1)
        return polyphase_down(low, phase, layer.stride), phase


@pytest.mark.parametrize("antialias", ANTIALIAS)
def test_random_phases_keep_a_component_of_the_filtered_map(antialias):
    torch.manual_seed(0)
    layer = trained(ts.APS(4, antialias=antialias, groups=2, train_rule="random")).train()
    x = pixels(2, batch=8)
    y, phase = layer(x, return_phase=True)
    assert len(phase.unique()) > 1
    torch.testing.assert_close(y, polyphase_down(filtered(layer, x), phase, 2))


def up_by_definition(layer, y, phase):
    """Place, filter, scale by the stride."""
    with ts.plain():
        placed = polyphase_up(y, phase, layer.stride)
        scale = math.prod(steps_of(layer.stride, y.ndim - 2))
        return placed if layer.antialias is None else filtered(layer, placed) * scale


def assert_same_state(ours, theirs):
    for mine, other in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(mine, other)


class TestPolyphaseDown:
    @TRAINING
    @pytest.mark.parametrize("score_filtered", [True, False], ids=["filtered", "unfiltered"])
    @pytest.mark.parametrize("antialias", ANTIALIAS)
    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize(("dim", "stride"), GRIDS)
    def test_filters_chooses_and_keeps(
        self, dim, stride, method, antialias, score_filtered, training
    ):
        x, spec = pixels(dim), spec_of(method, antialias, dim, score_filtered=score_filtered)
        ours = trained(spec.down(4, stride)).train(training)
        theirs = copy.deepcopy(ours)
        y, phase = ours(x, return_phase=True)
        expected, expected_phase = down_by_definition(theirs, x)
        torch.testing.assert_close(phase, expected_phase)
        torch.testing.assert_close(y, expected)
        steps = steps_of(stride, dim)
        assert y.shape[2:] == tuple(n // s for n, s in zip(x.shape[2:], steps, strict=True))
        assert_same_state(ours, theirs)

    @pytest.mark.parametrize("antialias", ANTIALIAS)
    def test_gradients_are_those_of_the_definition(self, antialias):
        x, ours = pixels(2), trained(spec_of("lps", antialias).down(4)).train()
        theirs = copy.deepcopy(ours)
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        y, (z, _) = ours(leaves[0]), down_by_definition(theirs, leaves[1])
        weights = torch.randn_like(y)
        (y * weights).sum().backward()
        (z * weights).sum().backward()
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad)
        for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert name == "selector.conv2.bias" or mine.grad.abs().max() > 1e-8
            torch.testing.assert_close(mine.grad, other.grad)

    def test_gumbel_samples_weight_the_components(self):
        x, layer = torch.randn(4, 6, 8, 12), ts.LPD(6, 3, tau=0.5).train()
        torch.manual_seed(3)
        y = layer(x)
        torch.manual_seed(3)
        phase = nn.functional.gumbel_softmax(layer.selector(x), 0.5, dim=1)
        torch.testing.assert_close(y, polyphase_down(x, phase, 2))

    def test_plain_stride_is_slicing(self):
        x = torch.randn(2, 3, 6, 12)
        layer = ts.PolyphaseDown(ts.FixedSelector(), stride=(2, 3))
        assert torch.equal(layer(x), x[..., ::2, ::3])

    def test_returns_a_phase_only_when_asked(self):
        layer, x = ts.APS(4), torch.randn(2, 4, 4, 4)
        assert isinstance(layer(x), torch.Tensor)
        y, phase = layer(x, return_phase=True)
        assert torch.equal(y, layer(x))
        assert torch.equal(y, polyphase_down(x, phase, 2))

    def test_a_given_phase_replaces_the_choice(self):
        layer, x = ts.APS(4, antialias="tri3"), torch.randn(3, 4, 4, 6)
        phase = torch.tensor([0, 3, 1])
        y, returned = layer(x, phase=phase, return_phase=True)
        assert returned is phase
        torch.testing.assert_close(y, polyphase_down(layer.antialias(x), phase, 2))

    def test_the_map_before_the_filter_can_have_another_phase(self):
        x = torch.randn(64, 4, 8, 8)
        layers = [ts.APS(4, antialias="tri3", score_filtered=after) for after in (True, False)]
        phases = [layer(x, return_phase=True)[1] for layer in layers]
        assert not torch.equal(*phases)

    def test_repr_shows_the_arguments(self):
        shown = repr(ts.LPD(4, stride=(2, 3), antialias="tri3", padding_mode="zeros"))
        assert "stride=(2, 3), score_filtered=True, padding_mode=zeros" in shown
        assert "ConvSelector" in shown
        assert "Blur(4, size=3, padding_mode=zeros)" in shown
        assert "stride=3" in repr(ts.LPU(4, stride=3))


class TestFollowerAndUp:
    @TRAINING
    @pytest.mark.parametrize("kind", ["hard", "soft"])
    @pytest.mark.parametrize("antialias", ANTIALIAS)
    @pytest.mark.parametrize(("dim", "stride"), GRIDS)
    def test_with_filters_of_their_own(self, dim, stride, antialias, kind, training):
        spec, x = spec_of("lps", antialias, dim), pixels(dim)
        phase = make_phase(kind, 3, stride, dim)
        follow = trained(spec.follow(4, stride)).train(training)
        theirs = copy.deepcopy(follow)
        y = follow(x, phase=phase)
        torch.testing.assert_close(y, polyphase_down(filtered(theirs, x), phase, stride))
        assert_same_state(follow, theirs)
        up = trained(spec.up(4, stride)).train(training)
        theirs = copy.deepcopy(up)
        torch.testing.assert_close(up(y, phase), up_by_definition(theirs, y, phase))
        assert_same_state(up, theirs)

    def test_a_custom_filter_module_is_applied_to_the_whole_map(self):
        class Double(nn.Module):
            def forward(self, x):
                return 2 * x

        x, phase = torch.randn(2, 4, 4, 6), torch.tensor([3, 0])
        y = ts.PolyphaseDown(None, antialias=Double())(x, phase=phase)
        assert torch.equal(y, 2 * polyphase_down(x, phase, 2))
        u = ts.PolyphaseUp(antialias=Double())(y, phase)
        assert torch.equal(u, 8 * polyphase_up(y, phase, 2))

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

    @pytest.mark.parametrize("stride", [2, 3, (2, 3)])
    def test_a_filter_keeps_the_mean(self, stride):
        y = torch.randn(2, 4, 4, 6, **DOUBLE)
        u = ts.LPU(4, stride, antialias="tri3").double()(y, torch.tensor([1, 3]))
        torch.testing.assert_close(u.mean((2, 3)), y.mean((2, 3)))

    def test_undoes_the_slicing_and_nothing_else(self):
        x, down = torch.randn(2, 4, 8, 12), ts.LPD(4).eval()
        y, phase = down(x, return_phase=True)
        u = ts.LPU(4)(y, phase)
        assert torch.equal(polyphase_down(u, phase, 2), y)
        assert (u != 0).sum() == y.numel()
        assert torch.equal(torch.where(u != 0, x, 0), u)


class TestShortNames:
    def test_lpd(self):
        rules = {"train_rule": "softmax", "test_rule": "softmax"}
        options = {"padding_mode": "zeros", "dim": 1, "groups": 4, "score_filtered": False}
        layer = ts.LPD(8, 2, 3, "adapt3", tau=0.5, **options, **rules)
        assert isinstance(layer, ts.LPD)
        assert isinstance(layer, ts.PolyphaseDown)
        assert (layer.stride, layer.score_filtered, layer.padding_mode) == (3, False, "zeros")
        selector = layer.selector
        assert isinstance(selector, ts.ConvSelector)
        assert (selector.conv1.out_channels, selector.padding_mode, selector.dim) == (2, "zeros", 1)
        assert (selector.tau.item(), selector.train_rule) == (0.5, "softmax")
        assert selector.test_rule == "softmax"
        assert (layer.antialias.groups, layer.antialias.padding_mode) == (4, "zeros")
        count = sum(p.numel() for p in ts.LPD(64, 8).parameters())
        assert count == (64 * 8 * 9 + 8) + (8 * 8 * 9 + 8)
        assert ts.LPD(64).selector.conv1.weight.numel() == 64 * 64 * 9

    def test_aps(self):
        layer = ts.APS(8, p=1, stride=(2, 3), antialias="rect2", padding_mode="reflect")
        assert isinstance(layer, ts.PolyphaseDown)
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
    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "replicate"])
    def test_size_rule_and_way_back(self, padding_mode, method, antialias):
        spec = spec_of(method, antialias, padding_mode=padding_mode)
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

    @pytest.mark.parametrize("mode", ["zeros", ("zeros", "circular")], ids=str)
    @pytest.mark.parametrize("antialias", [None, "tri3"])
    def test_zeros_extend_the_map_at_its_end(self, antialias, mode):
        x = torch.randn(2, 4, 7, 9 if mode == "zeros" else 10, **DOUBLE)
        layer = ts.APS(4, antialias=antialias, padding_mode=mode).double()
        even = nn.functional.pad(x, (0, 1 if mode == "zeros" else 0, 0, 1))
        for mine, other in zip(
            layer(x, return_phase=True), down_by_definition(layer, even), strict=True
        ):
            torch.testing.assert_close(mine, other)

    def test_plain_stride_with_zeros_is_a_strided_convolution(self):
        x, layer = torch.randn(2, 4, 7, 9), ts.Blur(4, 3, "zeros")
        down = ts.PolyphaseDown(ts.FixedSelector(), 2, layer, padding_mode="zeros")
        expected = torch.conv2d(x, layer.kernel, stride=2, padding=1, groups=4)
        torch.testing.assert_close(down(x), expected)

    def test_cropping_drops_only_what_lay_outside(self):
        x = torch.randn(2, 4, 7, 9)
        y, phase = ts.APS(4, padding_mode="zeros")(x, return_phase=True)
        u = ts.LPU(4, padding_mode="zeros")(y, phase, output_size=(7, 9))
        assert torch.equal(u, polyphase_up(y, phase, 2)[..., :7, :9])
        assert torch.equal(torch.where(u != 0, x, 0), u)


class TestGradients:
    @TRAINING
    @pytest.mark.parametrize("antialias", [None, "tri3", "adapt3"])
    @pytest.mark.parametrize(("dim", "stride"), [(1, 3), (2, 2), (2, (1, 2))])
    def test_gradcheck(self, dim, stride, antialias, training):
        options = {"dim": dim, "groups": 1, "train_rule": "softmax", "tau": 0.5}
        lpd = ts.LPD(2, 2 if training else 8, stride, antialias, **options)
        lpd.double().train(training)
        up = ts.LPU(2, stride, antialias, dim=dim, groups=1).double().train(training)
        for layer in (lpd, up):
            if antialias == "adapt3":
                layer.antialias.bn.momentum = 0.0  # the function must stay the same
        x = torch.randn(2, 2, *(6, 4)[:dim], **DOUBLE, requires_grad=True)
        parameters = tuple(lpd.parameters()) if training else ()
        check = torch.autograd.gradcheck
        assert check(lambda x, *_: lpd(x), (x, *parameters), fast_mode=True)
        soft = make_phase("soft", 2, stride, dim).requires_grad_()
        assert check(up, (x, soft), fast_mode=True)
        assert check(lambda x: up(x, torch.tensor([1, 0])), x, fast_mode=True)

    def test_second_derivatives(self):
        down = ts.LPD(2, 2, train_rule="softmax").double()
        up = ts.LPU(2, antialias="tri3").double()
        x = torch.randn(1, 2, 4, 4, **DOUBLE, requires_grad=True)

        def there_and_back(x):
            return up(*down(x, return_phase=True))

        assert torch.autograd.gradgradcheck(there_and_back, x, fast_mode=True)

    @pytest.mark.parametrize("antialias", [None, "tri3"])
    def test_torch_func(self, antialias):
        """Per-sample gradients and forward derivatives are those of autograd."""
        layer = ts.LPD(2, 2, antialias=antialias, train_rule="softmax").double().eval()
        x = torch.randn(2, 2, 4, 6, **DOUBLE)
        weights = {name: p.detach() for name, p in layer.named_parameters()}

        def loss(weights, x):
            return torch.func.functional_call(layer.train(), weights, x).square().sum()

        grads = torch.func.grad(loss)(weights, x)
        loss(dict(layer.named_parameters()), x).backward()
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(grads[name], parameter.grad)

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
    @TRAINING
    @pytest.mark.parametrize("batch", [0, 1, 2])
    @pytest.mark.parametrize(
        "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
    )
    def test_any_batch_and_floating_type(self, name, batch, dtype, training):
        down = LAYERS[name]().to(dtype).train(training)
        up = ts.LPU(8, antialias="tri3").to(dtype)
        x = torch.randn(batch, 8, 4, 6, dtype=dtype, requires_grad=True)
        y, phase = down(x, return_phase=True)
        assert y.shape == (batch, 8, 2, 3)
        u = up(y, phase)
        assert u.shape == x.shape
        assert u.dtype == dtype
        u.sum().backward()
        assert x.grad.shape == x.shape
        assert torch.isfinite(x.grad).all()

    @TRAINING
    def test_autocast(self, name, training):
        net = nn.ModuleList([nn.Conv2d(8, 8, 1), LAYERS[name](), ts.LPU(8, antialias="tri3")])
        conv, down, up = net.train(training)
        x = torch.randn(2, 8, 4, 6, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            y, phase = down(conv(x), return_phase=True)
            u = up(y, phase)
        u.float().sum().backward()
        assert torch.isfinite(x.grad).all()
        low = filtered(copy.deepcopy(down), conv(x))
        torch.testing.assert_close(y.float(), polyphase_down(low, phase, 2), rtol=0.05, atol=0.05)

    @TRAINING
    def test_layout_chunks_and_hooks_change_nothing(self, name, training):
        down, up = LAYERS[name]().train(training), ts.LPU(8, antialias="tri3").train(training)
        x, seen = torch.randn(5, 8, 6, 8), []

        def run(x):
            torch.manual_seed(5)
            y, phase = down(x, return_phase=True)
            return y, phase, up(y, phase)

        with torch.no_grad():
            expected = run(x)
            last = run(x.contiguous(memory_format=torch.channels_last))
            with limits(chunk=2 * x[0].numel()):
                in_parts = run(x)
            for module in (*down.modules(), *up.modules()):
                module.register_forward_hook(lambda _, args, output: seen.append(output))
            hooked = run(x)
        for other in (last, in_parts, hooked):
            torch.testing.assert_close(other, expected)
        assert torch.equal(hooked[0], expected[0])
        assert len(seen[-1]) == 5

    def test_gradients_do_not_change_a_bit_at_test_time(self, name):
        layer, x = LAYERS[name]().eval(), torch.randn(4, 8, 6, 8)
        with torch.no_grad():
            expected, expected_phase = layer(x, return_phase=True)
        y, phase = layer(x.requires_grad_(), return_phase=True)
        assert torch.equal(phase, expected_phase)
        assert torch.equal(y.detach(), expected)

    def test_copies_and_loaded_states_sample_alike(self, name):
        layer, other = LAYERS[name](), LAYERS[name]()
        layer.train()(torch.randn(4, 8, 6, 8))  # moves what running statistics there are
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
        x, expected = torch.randn(4, 8, 6, 8), layer.eval()
        for same in (other.eval(), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(same(x), expected(x))


@pytest.mark.parametrize(
    ("dim", "stride"), [(2, 2), (2, 3), (2, (2, 3)), (1, 2), (1, 3), (3, 2), (3, (1, 2, 3))]
)
@pytest.mark.parametrize("antialias", [None, "rect2", "tri3", "bin5"])
@pytest.mark.parametrize("build", [ts.LPD, ts.APS])
def test_there_and_back_is_bitwise_equivariant(build, antialias, dim, stride):
    down = build(3, stride=stride, antialias=antialias, dim=dim).eval()
    up = ts.LPU(3, stride=stride, antialias=antialias, dim=dim)
    x, shifts = torch.randn(2, 3, *SIZES[dim]), all_shifts(SIZES[dim])
    assert_circularly_equivariant(
        lambda x: up(*down(x, return_phase=True)), x, shifts[:: 1 if dim < 3 else 5]
    )


@pytest.mark.parametrize("antialias", [None, "tri3"])
def test_a_cropped_batch_goes_up_alike_in_parts(antialias):
    up = ts.LPU(3, 2, antialias)
    y, phase = torch.randn(5, 3, 4, 6), torch.tensor([0, 3, 1, 2, 1])
    with torch.no_grad():
        expected = up(y, phase, output_size=(8, 11))
        with limits(chunk=2 * y[0].numel()):
            assert torch.equal(up(y, phase, output_size=(8, 11)), expected)


@pytest.mark.parametrize("build", [ts.LPD, ts.APS, ts.LPU])
def test_strides_fit_the_axes_from_the_start(build):
    with pytest.raises(ValueError, match=rf"{build.__name__}: stride .* 3 entries for 2 spatial"):
        build(4, stride=(2, 2, 2))
