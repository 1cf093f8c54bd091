import itertools
import math

import pytest
import torch
from helpers import (
    all_shifts,
    assert_circularly_equivariant,
    oracle_down,
    oracle_merge,
    oracle_split,
    oracle_up,
    phase_offsets,
    steps_of,
)
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from trueshift.functional import (
    order_free_mean,
    polyphase_down,
    polyphase_merge,
    polyphase_split,
    polyphase_up,
)

CASES = {
    "1d, stride 2": ((8,), 2),
    "1d, stride 3": ((9,), 3),
    "1d, one pixel per component": ((5,), (5,)),
    "2d, stride 2": ((12, 8), 2),
    "2d, stride 3": ((9, 6), 3),
    "2d, stride (2, 3)": ((10, 9), (2, 3)),
    "2d, stride (3, 2)": ((6, 10), [3, 2]),
    "2d, stride (1, 2)": ((5, 6), (1, 2)),
    "2d, stride (4, 1)": ((8, 3), (4, 1)),
    "2d, one pixel per component": ((2, 2), 2),
    "3d, stride 2": ((4, 6, 2), 2),
    "3d, stride (1, 2, 2)": ((3, 4, 6), (1, 2, 2)),
    "3d, stride (2, 1, 3)": ((4, 5, 3), (2, 1, 3)),
}
every_case = pytest.mark.parametrize(("sizes", "stride"), CASES.values(), ids=CASES)
every_dtype = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
every_batch = pytest.mark.parametrize("batch", [0, 1, 2])
every_batch_and_dtype = pytest.mark.parametrize(
    ("batch", "dtype"),
    [
        (0, torch.float32),
        (1, torch.float16),
        (1, torch.float32),
        (2, torch.bfloat16),
        (2, torch.float32),
        (2, torch.float64),
    ],
)


def num_phases_of(stride, dim):
    return math.prod(steps_of(stride, dim))


def coarse(sizes, stride):
    steps = steps_of(stride, len(sizes))
    return tuple(size // step for size, step in zip(sizes, steps, strict=True))


def hard_phase(batch, stride, dim, generator):
    return torch.randint(num_phases_of(stride, dim), (batch,), generator=generator)


def soft_phase(batch, stride, dim, generator, dtype=torch.float32):
    shape = (batch, num_phases_of(stride, dim))
    return torch.randn(shape, generator=generator, dtype=torch.float64).softmax(1).to(dtype)


class TestSplitAndMerge:
    @every_case
    @every_batch
    def test_split_equals_the_oracle(self, sizes, stride, batch, generator):
        x = torch.randn(batch, 3, *sizes, generator=generator)
        components = polyphase_split(x, stride)
        assert components.shape == (
            batch,
            num_phases_of(stride, len(sizes)),
            3,
            *coarse(sizes, stride),
        )
        assert torch.equal(components, oracle_split(x, stride))

    @every_case
    @every_batch
    def test_merge_equals_the_oracle(self, sizes, stride, batch, generator):
        num_phases = num_phases_of(stride, len(sizes))
        shape = (batch, num_phases, 3, *coarse(sizes, stride))
        components = torch.randn(shape, generator=generator)
        merged = polyphase_merge(components, stride)
        assert merged.shape == (batch, 3, *sizes)
        assert torch.equal(merged, oracle_merge(components, stride))

    @every_case
    @every_dtype
    def test_merge_undoes_split_and_keeps_the_dtype(self, sizes, stride, dtype, generator):
        x = torch.randn(2, 3, *sizes, generator=generator).to(dtype)
        merged = polyphase_merge(polyphase_split(x, stride), stride)
        assert merged.dtype == dtype
        assert torch.equal(merged, x)

    def test_components_are_counted_row_major(self):
        x = torch.arange(24).view(1, 1, 4, 6)
        components = polyphase_split(x, (2, 3))[0, :, 0]
        assert components[:, 0, 0].tolist() == [0, 1, 2, 6, 7, 8]
        assert components[4].tolist() == [[7, 10], [19, 22]]  # k = 1 * 3 + 1

    @every_case
    def test_gradients(self, sizes, stride, generator):
        x = torch.randn(2, 2, *sizes, generator=generator, dtype=torch.float64, requires_grad=True)
        components = polyphase_split(x, stride).detach().requires_grad_()
        assert gradcheck(lambda x: polyphase_split(x, stride), x, fast_mode=True)
        assert gradgradcheck(lambda x: polyphase_split(x, stride), x, fast_mode=True)
        assert gradcheck(lambda c: polyphase_merge(c, stride), components, fast_mode=True)
        assert gradgradcheck(lambda c: polyphase_merge(c, stride), components, fast_mode=True)

    def test_any_memory_layout(self, x):
        expected = polyphase_split(x, 2)
        for same in (x.to(memory_format=torch.channels_last), x.mT.contiguous().mT):
            assert torch.equal(polyphase_split(same, 2), expected)
        assert torch.equal(polyphase_merge(expected.mT.contiguous().mT, 2), x)


class TestDownAndUp:
    @every_case
    @every_batch_and_dtype
    def test_hard_down_equals_the_oracle(self, sizes, stride, batch, dtype, generator):
        x = torch.randn(batch, 3, *sizes, generator=generator).to(dtype)
        phase = hard_phase(batch, stride, len(sizes), generator)
        y = polyphase_down(x, phase, stride)
        assert y.dtype == dtype
        assert y.shape == (batch, 3, *coarse(sizes, stride))
        assert torch.equal(y, oracle_down(x, phase, stride))

    @every_case
    @every_batch_and_dtype
    def test_hard_up_equals_the_oracle(self, sizes, stride, batch, dtype, generator):
        y = torch.randn(batch, 3, *coarse(sizes, stride), generator=generator).to(dtype)
        phase = hard_phase(batch, stride, len(sizes), generator)
        u = polyphase_up(y, phase, stride)
        assert u.dtype == dtype
        assert u.shape == (batch, 3, *sizes)
        assert torch.equal(u, oracle_up(y, phase, stride))

    @every_case
    @every_batch_and_dtype
    def test_soft_down_equals_the_oracle(self, sizes, stride, batch, dtype, generator):
        x = torch.randn(batch, 3, *sizes, generator=generator).to(dtype)
        phase = soft_phase(batch, stride, len(sizes), generator, dtype)
        y = polyphase_down(x, phase, stride)
        assert y.dtype == dtype
        expected = oracle_down(x.double(), phase.double(), stride).to(dtype)
        tolerance = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(y, expected, rtol=tolerance, atol=tolerance)

    @every_case
    @every_batch_and_dtype
    def test_soft_up_equals_the_oracle(self, sizes, stride, batch, dtype, generator):
        y = torch.randn(batch, 3, *coarse(sizes, stride), generator=generator).to(dtype)
        phase = soft_phase(batch, stride, len(sizes), generator, dtype)
        u = polyphase_up(y, phase, stride)
        assert u.dtype == dtype
        assert torch.equal(u, oracle_up(y, phase, stride))

    @every_case
    def test_every_phase_of_every_image(self, sizes, stride, generator):
        num_phases = num_phases_of(stride, len(sizes))
        x = torch.randn(num_phases, 2, *sizes, generator=generator)
        for first in range(num_phases):
            phase = torch.arange(first, first + num_phases) % num_phases
            y = polyphase_down(x, phase, stride)
            assert torch.equal(y, oracle_down(x, phase, stride))
            assert torch.equal(polyphase_up(y, phase, stride), oracle_up(y, phase, stride))

    @every_case
    def test_down_undoes_up(self, sizes, stride, generator):
        y = torch.randn(2, 3, *coarse(sizes, stride), generator=generator)
        phase = hard_phase(2, stride, len(sizes), generator)
        assert torch.equal(polyphase_down(polyphase_up(y, phase, stride), phase, stride), y)

    @every_case
    def test_one_hot_soft_phase_equals_the_hard_phase(self, sizes, stride, generator):
        x = torch.randn(2, 3, *sizes, generator=generator)
        phase = hard_phase(2, stride, len(sizes), generator)
        one_hot = torch.nn.functional.one_hot(phase, num_phases_of(stride, len(sizes))).float()
        y = polyphase_down(x, phase, stride)
        assert torch.equal(polyphase_down(x, one_hot, stride), y)
        assert torch.equal(polyphase_up(y, one_hot, stride), polyphase_up(y, phase, stride))

    @every_case
    @pytest.mark.parametrize("kind", ["hard", "soft"])
    def test_up_is_the_adjoint_of_down(self, sizes, stride, kind, generator):
        x = torch.randn(2, 3, *sizes, generator=generator, dtype=torch.float64)
        y = torch.randn(2, 3, *coarse(sizes, stride), generator=generator, dtype=torch.float64)
        make = hard_phase if kind == "hard" else soft_phase
        phase = make(2, stride, len(sizes), generator)
        there = (polyphase_down(x, phase, stride) * y).sum()
        back = (x * polyphase_up(y, phase, stride)).sum()
        torch.testing.assert_close(there, back)

    def test_the_soft_phase_takes_the_dtype_of_the_map(self, x, generator):
        phase = soft_phase(2, 2, 2, generator, torch.float64)
        for dtype in (torch.float32, torch.bfloat16):
            assert polyphase_down(x.to(dtype), phase, 2).dtype == dtype
            assert polyphase_up(x.to(dtype), phase, 2).dtype == dtype

    def test_the_input_is_not_changed_and_not_shared(self, x, generator):
        before = x.clone()
        for phase in (hard_phase(2, 2, 2, generator), soft_phase(2, 2, 2, generator)):
            kept = phase.clone()
            polyphase_down(x, phase, 2).zero_()
            polyphase_up(x, phase, 2).zero_()
            assert torch.equal(x, before)
            assert torch.equal(phase, kept)

    def test_non_finite_values_stay_in_their_component(self):
        x = torch.tensor([[[1.0, math.nan, 2.0, math.inf]]])
        assert polyphase_down(x, torch.tensor([0]), 2).tolist() == [[[1.0, 2.0]]]
        y = torch.tensor([[[math.nan, math.inf]]])
        u = polyphase_up(y, torch.tensor([1]), 2)
        assert u[..., ::2].tolist() == [[[0.0, 0.0]]]
        assert u[0, 0, 1].isnan()


class TestGradients:
    @every_case
    def test_hard(self, sizes, stride, generator):
        x = torch.randn(2, 2, *sizes, generator=generator, dtype=torch.float64, requires_grad=True)
        phase = hard_phase(2, stride, len(sizes), generator)
        y = polyphase_down(x, phase, stride).detach().requires_grad_()
        for fn, at in ((polyphase_down, x), (polyphase_up, y)):
            assert gradcheck(lambda v, fn=fn: fn(v, phase, stride), at, fast_mode=True)
            assert gradgradcheck(lambda v, fn=fn: fn(v, phase, stride), at, fast_mode=True)

    @every_case
    def test_soft(self, sizes, stride, generator):
        x = torch.randn(2, 2, *sizes, generator=generator, dtype=torch.float64, requires_grad=True)
        phase = soft_phase(2, stride, len(sizes), generator, torch.float64).requires_grad_()
        y = polyphase_down(x, phase, stride).detach().requires_grad_()
        for fn, at in ((polyphase_down, x), (polyphase_up, y)):
            assert gradcheck(lambda v, p, fn=fn: fn(v, p, stride), (at, phase), fast_mode=True)
            assert gradgradcheck(lambda v, p, fn=fn: fn(v, p, stride), (at, phase), fast_mode=True)

    @pytest.mark.parametrize("which", ["map", "phase"])
    def test_soft_where_only_one_needs_a_gradient(self, which, x, generator):
        x, phase = x.double(), soft_phase(2, 2, 2, generator, torch.float64)
        wanted = (x if which == "map" else phase).requires_grad_()
        for fn in (polyphase_down, polyphase_up):
            assert gradcheck(
                lambda v, fn=fn: fn(v, phase, 2) if which == "map" else fn(x, v, 2),
                wanted,
                fast_mode=True,
            )

    @pytest.mark.parametrize("kind", ["hard", "soft"])
    def test_empty_batch(self, kind, generator):
        x = torch.zeros(0, 3, 4, 6, requires_grad=True)
        phase = (hard_phase if kind == "hard" else soft_phase)(0, 2, 2, generator)
        y = polyphase_down(x, phase, 2)
        polyphase_up(y, phase, 2).sum().backward()
        assert x.grad.shape == x.shape

    @pytest.mark.parametrize("kind", ["hard", "soft"])
    def test_channels_last_gives_the_same_gradient(self, kind, x, generator):
        phase = (hard_phase if kind == "hard" else soft_phase)(2, 2, 2, generator)
        grads = []
        for layout in (torch.contiguous_format, torch.channels_last):
            leaf = x.clone(memory_format=layout).requires_grad_()
            y = polyphase_down(leaf, phase, 2)
            (polyphase_up(y, phase, 2).square().sum() + y.sin().sum()).backward()
            grads.append(leaf.grad)
        torch.testing.assert_close(*grads)


class TestMemoryFormat:
    FORMATS = (
        ((2, 3, 12, 8), 2, torch.channels_last),
        ((2, 3, 9, 6), (3, 2), torch.channels_last),
        ((2, 3, 4, 6, 2), 2, torch.channels_last_3d),
        ((2, 3, 3, 4, 6), (1, 2, 2), torch.channels_last_3d),
    )

    @pytest.mark.parametrize(("shape", "stride", "layout"), FORMATS)
    @pytest.mark.parametrize("kind", ["hard", "soft"])
    @pytest.mark.parametrize("fn", [polyphase_down, polyphase_up])
    def test_is_kept_and_changes_no_value(self, fn, kind, shape, stride, layout, generator):
        x = torch.randn(shape, generator=generator)
        phase = (hard_phase if kind == "hard" else soft_phase)(2, stride, len(shape) - 2, generator)
        plain, last = fn(x, phase, stride), fn(x.to(memory_format=layout), phase, stride)
        assert plain.is_contiguous()
        assert last.is_contiguous(memory_format=layout)
        assert torch.equal(plain, last)

    @pytest.mark.parametrize("kind", ["hard", "soft"])
    def test_maps_that_are_not_dense_in_memory(self, kind, generator):
        wide = torch.randn(2, 6, 24, 9, generator=generator)
        x = wide[:, ::2, 1::2, :8]
        phase = (hard_phase if kind == "hard" else soft_phase)(2, 2, 2, generator)
        for fn in (polyphase_down, polyphase_up):
            assert torch.equal(fn(x, phase, 2), fn(x.contiguous(), phase, 2))
            expanded = x[:, :1].expand(-1, 3, -1, -1)
            assert torch.equal(fn(expanded, phase, 2), fn(expanded.contiguous(), phase, 2))


class TestTraced:
    @pytest.mark.parametrize("name", ["1d, stride 3", "2d, stride (2, 3)", "3d, stride (1, 2, 2)"])
    @pytest.mark.parametrize("kind", ["hard", "soft"])
    def test_compiled_functions_equal_the_oracles(self, name, kind, generator):
        sizes, stride = CASES[name]
        x = torch.randn(2, 3, *sizes, generator=generator)
        phase = (hard_phase if kind == "hard" else soft_phase)(2, stride, len(sizes), generator)

        def both(x, phase):
            y = polyphase_down(x, phase, stride)
            return y, polyphase_up(y, phase, stride)

        torch.compiler.reset()
        y, u = torch.compile(both, fullgraph=True, backend="eager")(x, phase)
        torch.testing.assert_close(y, oracle_down(x, phase, stride))
        torch.testing.assert_close(u, oracle_up(y, phase, stride))

    def test_compiled_up_keeps_non_finite_values_in_their_component(self):
        torch.compiler.reset()
        fn = torch.compile(lambda y, k: polyphase_up(y, k, 2), fullgraph=True, backend="eager")
        u = fn(torch.tensor([[[math.nan, math.inf]]]), torch.tensor([1]))
        assert u[..., ::2].tolist() == [[[0.0, 0.0]]]
        assert u[0, 0, 1].isnan()

    def test_compiled_split_and_merge(self, x):
        torch.compiler.reset()
        fn = torch.compile(
            lambda x: polyphase_merge(polyphase_split(x, 2), 2), fullgraph=True, backend="eager"
        )
        assert torch.equal(fn(x), x)


@st.composite
def maps_and_strides(draw):
    dim = draw(st.integers(1, 3))
    steps = draw(st.tuples(*[st.integers(1, 3)] * dim).filter(lambda steps: max(steps) > 1))
    sizes = tuple(step * draw(st.integers(1, 3)) for step in steps)
    shape = (draw(st.integers(0, 3)), draw(st.integers(1, 3)), *sizes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return torch.randn(shape, generator=generator), steps, generator


class TestProperties:
    @given(maps_and_strides())
    def test_split_and_merge(self, case):
        x, stride, _ = case
        components = polyphase_split(x, stride)
        assert torch.equal(components, oracle_split(x, stride))
        assert torch.equal(polyphase_merge(components, stride), x)

    @given(maps_and_strides())
    def test_hard_phase(self, case):
        x, stride, generator = case
        phase = hard_phase(len(x), stride, x.ndim - 2, generator)
        y = polyphase_down(x, phase, stride)
        assert torch.equal(y, oracle_down(x, phase, stride))
        assert torch.equal(polyphase_up(y, phase, stride), oracle_up(y, phase, stride))

    @given(maps_and_strides())
    def test_soft_phase(self, case):
        x, stride, generator = case
        phase = soft_phase(len(x), stride, x.ndim - 2, generator)
        y = polyphase_down(x, phase, stride)
        torch.testing.assert_close(y, oracle_down(x, phase, stride))
        assert torch.equal(polyphase_up(y, phase, stride), oracle_up(y, phase, stride))

    @given(maps_and_strides(), st.data())
    def test_shifts_by_multiples_of_the_stride_only_shift(self, case, data):
        x, stride, generator = case
        shift = [step * data.draw(st.integers(-3, 3)) for step in stride]
        phase = hard_phase(len(x), stride, x.ndim - 2, generator)
        assert_circularly_equivariant(
            lambda x: polyphase_up(polyphase_down(x, phase, stride), phase, stride), x, [shift]
        )


def adversarial_terms(num, dtype, generator, exponents=(-60, 60)):
    """Terms of very different sizes that almost cancel."""
    exponent = torch.randint(*exponents, (num // 2,), generator=generator)
    terms = (
        torch.randn(num // 2, generator=generator, dtype=torch.float64) * 2.0 ** exponent.double()
    )
    return torch.cat([terms, -terms * (1 + 2.0**-20), terms.new_ones(num % 2)]).to(dtype)


class TestOrderFreeMean:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("num", [2, 7, 64, 1001])
    def test_same_bits_for_every_order_of_the_terms(self, num, dtype, generator):
        for _ in range(20):
            terms = adversarial_terms(num, dtype, generator)
            mean = order_free_mean(terms, 0)
            for _ in range(10):
                shuffled = terms[torch.randperm(num, generator=generator)]
                assert torch.equal(order_free_mean(shuffled, 0), mean)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_these_terms_do_change_a_plain_mean(self, dtype, generator):
        terms = adversarial_terms(1001, dtype, generator)
        orders = [torch.randperm(1001, generator=generator) for _ in range(20)]
        assert len({terms[order].mean().item() for order in orders}) > 1
        assert len({terms[order].double().mean().item() for order in orders}) > 1

    @pytest.mark.parametrize("exponents", [(-300, -200), (-60, 60), (900, 1000)])
    def test_extreme_scales_in_float64(self, exponents, generator):
        terms = adversarial_terms(64, torch.float64, generator, exponents)
        mean = order_free_mean(terms, 0)
        assert abs(mean.item() - math.fsum(terms.tolist()) / 64) <= 64 * 2**-50 * terms.abs().max()
        for _ in range(10):
            shuffled = terms[torch.randperm(64, generator=generator)]
            assert torch.equal(order_free_mean(shuffled, 0), mean)

    def test_shifted_maps(self, x):
        mean = order_free_mean(x, (2, 3))
        for shift in all_shifts(x.shape[2:]):
            assert torch.equal(order_free_mean(x.roll(shift, (2, 3)), (2, 3)), mean)

    @pytest.mark.parametrize("num", [1, 2, 7, 64, 1001, 50_176])
    def test_close_to_the_exact_mean(self, num, generator):
        for terms in (
            adversarial_terms(num, torch.float64, generator, (-20, 20)),
            torch.rand(num, generator=generator, dtype=torch.float64),
        ):
            exact = math.fsum(terms.tolist()) / num
            bound = terms.abs().max().item() * num * 2**-52 + 2**-51 * abs(exact)
            assert abs(order_free_mean(terms, 0).item() - exact) <= bound

    @pytest.mark.parametrize("dim", [0, -1, 1, (2, 3), (-1, -2), (0, 2, 3), (1,), (0, 1, 2, 3)])
    @every_dtype
    def test_axes_shape_and_dtype(self, dim, dtype, x):
        x = x.to(dtype)
        mean = order_free_mean(x, dim)
        assert mean.dtype == torch.float64
        torch.testing.assert_close(mean, x.double().mean(dim), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_zeros_and_tiny_terms(self, dtype):
        assert torch.equal(
            order_free_mean(torch.zeros(3, 5, dtype=dtype), 1), torch.zeros(3).double()
        )
        tiny = torch.full((3,), torch.finfo(dtype).tiny, dtype=dtype)
        assert order_free_mean(tiny, 0).isfinite()

    def test_empty_batch(self):
        mean = order_free_mean(torch.zeros(0, 3, 4, 5), (2, 3))
        assert mean.shape == (0, 3)
        assert mean.dtype == torch.float64

    def test_gradient_is_that_of_the_mean(self, x):
        weights = torch.randn(2, 3, dtype=torch.float64)
        leaves = [x.clone().requires_grad_(), x.clone().requires_grad_()]
        (order_free_mean(leaves[0], (2, 3)) * weights).sum().backward()
        (leaves[1].double().mean((2, 3)) * weights).sum().backward()
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad, rtol=1e-6, atol=0)

    def test_gradient_at_zero_and_for_adversarial_terms(self, generator):
        for terms in (torch.zeros(64), adversarial_terms(64, torch.float32, generator)):
            leaf = terms.clone().requires_grad_()
            order_free_mean(leaf, 0).backward()
            torch.testing.assert_close(leaf.grad, torch.full((64,), 1 / 64), rtol=1e-6, atol=0)

    def test_asking_for_a_gradient_changes_no_bit(self, generator):
        for num in (7, 64, 1001):
            terms = adversarial_terms(num, torch.float32, generator)
            with_grad = order_free_mean(terms.clone().requires_grad_(), 0)
            assert torch.equal(with_grad.detach(), order_free_mean(terms, 0))

    def test_scales_with_powers_of_two(self, x):
        for exponent in (-40, -3, 1, 50):
            scaled = order_free_mean(x * 2.0**exponent, (2, 3))
            assert torch.equal(scaled, order_free_mean(x, (2, 3)) * 2.0**exponent)

    @given(
        st.lists(
            st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=30
        ),
        st.randoms(use_true_random=False),
    )
    def test_property(self, terms, random):
        mean = order_free_mean(torch.tensor(terms, dtype=torch.float32), 0)
        exact = math.fsum(terms) / len(terms)
        largest = max(map(abs, terms))
        assert abs(mean.item() - exact) <= largest * len(terms) * 2**-51
        random.shuffle(terms)
        assert torch.equal(order_free_mean(torch.tensor(terms, dtype=torch.float32), 0), mean)

    def test_all_orders_of_a_few_terms(self):
        terms = [2.0**60, 1.0, -(2.0**60), 2.0**-30, 3.0]
        means = {
            order_free_mean(torch.tensor(order), 0).item()
            for order in itertools.permutations(terms)
        }
        assert len(means) == 1


def test_phase_order_of_the_oracles_is_row_major():
    assert phase_offsets((2, 3), 2) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
