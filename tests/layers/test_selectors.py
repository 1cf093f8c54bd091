import copy
import io
import math
import pickle

import pytest
import torch
from helpers import all_shifts, assert_circularly_equivariant, phase_offsets, steps_of
from torch import nn
from torch.nn import functional as F

import trueshift as ts
from trueshift import functional
from trueshift._cpu.conditions import limits
from trueshift.shifts import circular_shift

GRIDS = [(1, 2), (1, 3), (2, 2), (2, 3), (2, (2, 3)), (3, 2), (3, (1, 2, 3))]
MODES = ["circular", "zeros", "reflect", "replicate", ("zeros", "circular", "replicate")]
SIZES = {1: (12,), 2: (12, 6), 3: (6, 4, 6)}
DOUBLE = {"dtype": torch.float64}
TRAINING = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def pixels(dim, batch=2, channels=3):
    return torch.randn(batch, channels, *SIZES[dim], **DOUBLE)


def theta(selector):
    first, second = selector.conv1, selector.conv2
    return first.weight, first.bias, second.weight, second.bias


def permuted(logits, shift, stride):
    """The logits that a map has after a shift: the score of each component, where it went."""
    steps = steps_of(stride, len(shift))
    return logits.unflatten(1, steps).roll(shift, tuple(range(1, 1 + len(steps)))).flatten(1)


class TestConvSelector:
    @TRAINING
    @pytest.mark.parametrize("padding_mode", MODES, ids=str)
    @pytest.mark.parametrize(("dim", "stride"), GRIDS)
    def test_logits_and_gradients_are_those_of_the_formula(
        self, dim, stride, padding_mode, training
    ):
        x = torch.randn(2, 3, *[2 * size for size in SIZES[dim]], **DOUBLE)
        mode = padding_mode if isinstance(padding_mode, str) else padding_mode[:dim]
        ours = ts.ConvSelector(3, 5, mode, dim=dim).double().train(training)
        theirs = copy.deepcopy(ours)
        steps = steps_of(stride, dim)
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        logits = ours(leaves[0], stride)
        assert logits.shape == (2, math.prod(steps))
        with ts.plain():
            expected = functional.conv_logits(leaves[1], theta(theirs), steps, mode)
        torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-12)
        target = torch.randn_like(logits)
        for scores in (logits, expected):
            ((scores / 0.3).softmax(1) * target).sum().backward()
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad)
        for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert name == "conv2.bias" or mine.grad.abs().max() > 1e-9
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-7, atol=1e-12)

    def test_hidden_width_is_the_number_of_channels_by_default(self):
        assert ts.ConvSelector(6).conv1.weight.shape == (6, 6, 3, 3)
        assert ts.ConvSelector(6, 2).conv2.weight.shape == (2, 2, 3, 3)

    @pytest.mark.parametrize("padding_mode", ["circular", "zeros"])
    @pytest.mark.parametrize(("dim", "stride"), [(1, 3), (2, 2), (3, (1, 1, 2))])
    def test_gradcheck_of_the_soft_phase(self, dim, stride, padding_mode):
        sizes = {1: (6,), 2: (4, 6), 3: (2, 3, 4)}[dim]
        selector = ts.ConvSelector(2, 2, padding_mode, dim=dim, train_rule="softmax").double()
        x = torch.randn(2, 2, *sizes, **DOUBLE, requires_grad=True)
        parameters = tuple(selector.parameters())
        assert torch.autograd.gradcheck(lambda x, *_: selector.choose(x, stride), (x, *parameters))

    def test_gumbel_gradients_reach_both_convolutions(self):
        selector = ts.ConvSelector(4, 3).train()
        weights = torch.randn(3, 4)
        (selector.choose(torch.randn(3, 4, 8, 8)) * weights).sum().backward()
        for weight in (selector.conv1.weight, selector.conv1.bias, selector.conv2.weight):
            assert weight.grad.abs().max() > 0

    def test_learns_to_pick_the_component_of_a_target(self):
        selector = ts.ConvSelector(2, 4, train_rule="softmax").train()
        x = torch.randn(16, 2, 8, 8)
        x[..., 1::2, 0::2] += 1.5  # component 2 is brighter than the others
        optimizer = torch.optim.SGD(selector.parameters(), lr=0.5)
        losses = []
        for _ in range(30):
            loss = F.cross_entropy(selector(x), torch.full((16,), 2))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.5 * losses[0]
        assert (selector.eval().choose(x) == 2).float().mean() > 0.9

    def test_test_time_choice_is_the_largest_logit(self):
        selector = ts.ConvSelector(3).eval()
        x = torch.randn(32, 3, 8, 12)
        phase = selector.choose(x, (2, 3))
        assert phase.dtype == torch.int64
        assert phase.shape == (32,)
        assert torch.equal(phase, selector(x, (2, 3)).argmax(1))
        assert len(phase.unique()) > 2

    def test_train_rule_straight_is_hard_with_the_gradient_of_the_soft_sample(self):
        x = torch.randn(5, 3, 4, 4)
        grads, phases = [], []
        for rule in ("straight", "gumbel"):
            torch.manual_seed(0)
            selector = ts.ConvSelector(3, train_rule=rule, tau=0.7).train()
            torch.manual_seed(1)
            phase = selector.choose(x)
            (phase * torch.arange(4.0)).sum().backward()
            grads.append(selector.conv1.weight.grad)
            phases.append(phase)
        assert torch.equal(phases[0].detach().round(), F.one_hot(phases[1].argmax(1), 4).float())
        torch.testing.assert_close(grads[0], grads[1])
        assert grads[0].abs().max() > 0

    @TRAINING
    def test_softmax_rules_are_the_softmax_at_tau(self, training):
        rule = {"train_rule" if training else "test_rule": "softmax"}
        selector = ts.ConvSelector(3, tau=0.1, **rule).train(training)
        x = torch.randn(2, 3, 8, 8)
        assert torch.equal(selector.choose(x), selector.choose(x))
        torch.testing.assert_close(selector.choose(x), (selector(x) / 0.1).softmax(1))

    def test_half_of_the_rules_do_not_leak_into_the_other_mode(self):
        x = torch.randn(2, 3, 8, 8)
        hard_at_test = ts.ConvSelector(3, train_rule="softmax").eval()
        assert hard_at_test.choose(x).dtype == torch.int64
        gumbel_in_training = ts.ConvSelector(3, test_rule="softmax").train()
        assert not torch.equal(gumbel_in_training.choose(x), gumbel_in_training.choose(x))


class TestGumbel:
    def test_rows_are_distributions(self):
        phase = ts.ConvSelector(3).choose(torch.randn(64, 3, 6, 6), 3)
        assert phase.shape == (64, 9)
        assert (phase >= 0).all()
        torch.testing.assert_close(phase.sum(1), torch.ones(64))

    def test_samples_are_random_and_follow_the_seed(self):
        selector, x = ts.ConvSelector(3), torch.randn(4, 3, 6, 6)
        torch.manual_seed(1)
        first, second = selector.choose(x), selector.choose(x)
        torch.manual_seed(1)
        assert not torch.equal(first, second)
        assert torch.equal(first, selector.choose(x))

    def test_lower_temperature_is_sharper(self):
        selector, x = ts.ConvSelector(3), torch.randn(256, 3, 6, 6)
        sharpness = []
        for tau in (10.0, 1.0, 0.1, 0.01):
            ts.set_tau(selector, tau)
            sharpness.append(selector.choose(x).amax(1).mean().item())
        assert sharpness == sorted(sharpness)
        assert sharpness[0] < 0.35
        assert sharpness[-1] > 0.97

    def test_the_largest_entry_is_a_draw_from_the_softmax_of_the_logits(self):
        selector = ts.ConvSelector(2)
        with torch.no_grad():
            selector.conv2.weight.mul_(30)  # logits far enough apart to see
        x = torch.randn(1, 2, 8, 8).expand(20_000, -1, -1, -1)
        with torch.no_grad():
            drawn = selector.choose(x).argmax(1).bincount(minlength=4) / len(x)
            expected = selector(x[:1]).softmax(1)[0]
        assert expected.max() - expected.min() > 0.1
        torch.testing.assert_close(drawn, expected, rtol=0, atol=0.02)


class TestNormSelector:
    @TRAINING
    @pytest.mark.parametrize("p", [1, 2, math.inf])
    @pytest.mark.parametrize(("dim", "stride"), GRIDS)
    def test_logits_and_gradients_are_those_of_the_formula(self, dim, stride, p, training):
        x, selector = pixels(dim), ts.NormSelector(p).train(training)
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        logits = selector(leaves[0], stride)
        with ts.plain():
            expected = functional.norm_logits(leaves[1], p, steps_of(stride, dim))
        torch.testing.assert_close(logits, expected)
        assert torch.equal(selector.choose(x, stride), expected.argmax(1))
        weights = torch.randn_like(logits)
        for scores in (logits, expected):
            (scores * weights).sum().backward()
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad)

    @pytest.mark.parametrize("p", [1, 2, math.inf])
    def test_float32_norms_are_close(self, p):
        x = torch.randn(2, 64, 28, 28)
        expected = functional.norm_logits(x.double(), p, (2, 2)).float()
        torch.testing.assert_close(ts.NormSelector(p).eval()(x), expected, rtol=1e-6, atol=0)

    @pytest.mark.parametrize("build", [ts.NormSelector, lambda **rule: ts.APS(3, **rule).selector])
    def test_random_phases_while_training_and_norms_at_test_time(self, build):
        x, selector = torch.randn(6000, 3, 4, 6), build(train_rule="random").train()
        phase = selector.choose(x, (2, 3))
        assert phase.dtype == torch.int64
        shares = phase.bincount(minlength=6) / len(x)
        torch.testing.assert_close(shares, torch.full((6,), 1 / 6), rtol=0, atol=0.02)
        assert not torch.equal(phase, selector.choose(x, (2, 3)))
        expected = ts.NormSelector().eval().choose(x, (2, 3))
        assert torch.equal(selector.eval().choose(x, (2, 3)), expected)

    def test_the_choice_is_hard_while_training_and_has_no_state(self):
        selector = ts.NormSelector().train()
        assert selector.choose(pixels(2)).dtype == torch.int64
        assert not selector.state_dict()


class TestFixedSelector:
    @pytest.mark.parametrize(("dim", "stride"), GRIDS)
    def test_every_image_gets_the_same_component(self, dim, stride):
        last = math.prod(steps_of(stride, dim)) - 1
        selector, x = ts.FixedSelector(last), pixels(dim)
        assert selector.choose(x, stride).tolist() == [last] * 2
        assert selector(x, stride).tolist() == [[0.0] * last + [1.0]] * 2

    def test_the_first_component_is_the_default(self):
        assert ts.FixedSelector().choose(pixels(2)).tolist() == [0, 0]


SELECTORS = {
    "conv": lambda: ts.ConvSelector(3, 2),
    "norm1": lambda: ts.NormSelector(1),
    "norm2": lambda: ts.NormSelector(2),
    "norminf": lambda: ts.NormSelector(math.inf),
}


@pytest.mark.parametrize("name", SELECTORS)
class TestEverySelector:
    @pytest.mark.parametrize("stride", [2, 3, (2, 3)])
    def test_logits_permute_with_the_map(self, name, stride):
        selector = SELECTORS[name]().eval()
        x = torch.randn(2, 3, 12, 6)
        logits, phase = selector(x, stride), selector.choose(x, stride)
        offsets = phase_offsets(stride, 2)
        steps = steps_of(stride, 2)
        for shift in all_shifts((12, 6)):
            moved = circular_shift(x, *shift)
            expected = permuted(logits, shift, stride)
            torch.testing.assert_close(selector(moved, stride), expected, rtol=1e-6, atol=1e-7)
            chosen = selector.choose(moved, stride).tolist()
            for before, after in zip(phase.tolist(), chosen, strict=True):
                goes_to = zip(offsets[before], shift, steps, strict=True)
                assert offsets[after] == tuple((o + d) % s for o, d, s in goes_to)

    @pytest.mark.parametrize("batch", [0, 1])
    def test_any_batch(self, name, batch):
        x = torch.randn(batch, 3, 4, 6)
        for training in (True, False):
            selector = SELECTORS[name]().train(training)
            assert selector(x).shape == (batch, 4)
            assert selector.choose(x).shape[0] == batch

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
    def test_any_floating_type(self, name, dtype):
        x = torch.randn(4, 3, 8, 12)
        exact = SELECTORS[name]().eval()
        lower = copy.deepcopy(exact).to(dtype)
        logits = lower(x.to(dtype))
        assert logits.dtype == torch.promote_types(dtype, torch.float32)
        tolerance = 1e-5 if dtype == torch.float64 else 0.03
        torch.testing.assert_close(logits.float(), exact(x), rtol=tolerance, atol=tolerance)
        assert lower.choose(x.to(dtype)).shape == (4,)

    def test_layout_gradients_and_chunks_change_nothing(self, name):
        selector, x = SELECTORS[name]().eval(), torch.randn(7, 3, 8, 12)
        last = x.contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            expected, phase = selector(x), selector.choose(x)
            torch.testing.assert_close(selector(last), expected, rtol=1e-6, atol=1e-7)
            assert torch.equal(selector.choose(last), phase)
            with limits(chunk=2 * x[0].numel()):
                torch.testing.assert_close(selector(x), expected, rtol=1e-6, atol=1e-7)
                assert torch.equal(selector.choose(x), phase)
        assert torch.equal(selector(x.requires_grad_()).detach(), expected)
        assert torch.equal(selector.choose(x), phase)

    def test_hooks_see_the_choice_and_change_nothing(self, name):
        selector, x, seen = SELECTORS[name]().eval(), torch.randn(3, 3, 8, 12), []
        expected = selector.choose(x)
        for module in selector.modules():
            module.register_forward_hook(lambda _, args, output: seen.append(output))
        assert torch.equal(selector.choose(x), expected)
        assert torch.equal(seen[-1], expected)


def nearly_tied(layout, more=0.0):
    """A map whose components are one, moved: in another order their pixels have the same sum."""
    one = torch.rand(1, 3, 24, 20)
    moved = [circular_shift(one, k, 3 * k) for k in range(4)]
    x = ts.functional.polyphase_merge(torch.stack(moved, 1), 2)
    x[0, 0, 0, 0] += more
    return x.contiguous(memory_format=layout)


class TestCloseScores:
    LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])

    @LAYOUTS
    @pytest.mark.parametrize("more", [0.0, 1e-5])
    def test_choices_move_with_maps_that_rounded_sums_cannot_tell_apart(self, layout, more):
        torch.manual_seed(0)
        selector, x = ts.ConvSelector(3, 8).eval(), nearly_tied(layout, more)

        def there_and_back(x):
            phase = selector.choose(x)
            return ts.functional.polyphase_up(ts.functional.polyphase_down(x, phase, 2), phase, 2)

        with torch.inference_mode():
            assert_circularly_equivariant(there_and_back, x, list(all_shifts((8, 8)))[1::3])

    def test_a_large_bias_does_not_hide_that_scores_are_close(self):
        torch.manual_seed(0)
        selector, x = ts.ConvSelector(3, 8).eval(), nearly_tied(torch.channels_last)
        selector.conv2.weight.data.mul_(1e-11)
        selector.conv2.bias.data.fill_(0.25)
        moved = torch.cat([circular_shift(x, *shift) for shift in all_shifts((12, 12))])
        with torch.inference_mode():
            phase = selector.choose(moved)
        rows, columns = phase // 2, phase % 2
        first = torch.tensor([(dy % 2, dx % 2) for dy, dx in all_shifts((12, 12))])
        assert torch.equal((rows - first[:, 0]) % 2, rows[:1].expand_as(rows))
        assert torch.equal((columns - first[:, 1]) % 2, columns[:1].expand_as(columns))


class TestTau:
    def test_set_tau_reaches_nested_selectors(self):
        model = nn.Sequential(ts.LPD(3), nn.Sequential(nn.ReLU(), ts.LPD(3, 2)), ts.APS(3))
        ts.set_tau(model, 0.25)
        taus = [m.tau.item() for m in model.modules() if isinstance(m, ts.ConvSelector)]
        assert taus == [0.25, 0.25]

    def test_tau_is_in_the_state_dict(self):
        ours, other = ts.LPD(3, tau=0.5), ts.LPD(3)
        assert ours.state_dict()["selector.tau"] == 0.5
        other.load_state_dict(ours.state_dict())
        assert other.selector.tau == 0.5

    def test_tau_is_no_parameter(self):
        names = {name for name, _ in ts.ConvSelector(3).named_parameters()}
        assert names == {"conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"}

    def test_set_tau_needs_a_selector(self):
        with pytest.raises(ValueError, match=r"set_tau: Sequential has no ConvSelector"):
            ts.set_tau(nn.Sequential(ts.APS(3)), 0.5)


class TestCopies:
    @pytest.fixture
    def selector(self):
        return ts.ConvSelector(3, 2, "zeros", tau=0.7).eval()

    def test_state_dict_round_trip(self, selector):
        file = io.BytesIO()
        torch.save(selector.state_dict(), file)
        file.seek(0)
        other = ts.ConvSelector(3, 2, "zeros").eval()
        other.load_state_dict(torch.load(file, weights_only=True))
        x = torch.randn(2, 3, 8, 8)
        assert torch.equal(other(x), selector(x))

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_copies_score_alike_and_are_independent(self, selector, duplicate):
        other, x = duplicate(selector), torch.randn(2, 3, 8, 8)
        expected = selector(x)
        assert torch.equal(other(x), expected)
        with torch.no_grad():
            other.conv1.weight.zero_()
        assert torch.equal(selector(x), expected)

    def test_repr_shows_the_rules(self, selector):
        assert "train_rule=gumbel, test_rule=argmax" in repr(selector)
        assert "p=2" in repr(ts.NormSelector())
        assert "index=1" in repr(ts.FixedSelector(1))


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_autocast_scores_in_float32_or_wider(training):
    selector = ts.ConvSelector(3, 2, train_rule="softmax").train(training)
    x = torch.randn(4, 3, 8, 12)
    with torch.autocast("cpu", torch.bfloat16):
        logits, phase = selector(x), selector.choose(x)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, selector(x), rtol=0.03, atol=0.03)
    assert phase.dtype == (torch.float32 if training else torch.int64)
