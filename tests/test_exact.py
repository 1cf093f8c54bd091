import itertools
import math

import pytest
import torch
from helpers import all_shifts
from hypothesis import given
from hypothesis import strategies as st

from trueshift import exact
from trueshift.functional import order_free_mean
from trueshift.layers.conv import same_conv

pytestmark = pytest.mark.usefixtures("both_ways")


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
    @pytest.mark.parametrize(
        "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
    )
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


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_one_tap_is_dilated_only_at_test_time_on_a_cpu(training, monkeypatch):
    seen, conv = [], exact.CONVOLUTIONS[2]

    def record(x, weight, bias, stride, padding, dilation, groups):
        seen.append(dilation)
        return conv(x, weight, bias, stride, padding, dilation, groups)

    monkeypatch.setitem(exact.CONVOLUTIONS, 2, record)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    layer = same_conv(3, 4, 1, "circular").train(training)
    layer(torch.randn(2, 3, 4, 4))
    layer.to("meta")(torch.empty(2, 3, 4, 4, device="meta"))
    assert seen == ([(1, 1), (1, 1)] if training else [2, (1, 1)])
