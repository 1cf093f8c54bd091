import copy
import pickle

import pytest
import torch
from helpers import all_shifts

import trueshift as ts
from trueshift.shifts import circular_shift

SIZES = {1: (12,), 2: (6, 10), 3: (4, 3, 5)}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_is_the_mean_over_space(dim, training):
    x = torch.randn(2, 3, *SIZES[dim], dtype=torch.float64)
    y = ts.GlobalAvgPool().train(training)(x)
    assert y.shape == (2, 3)
    torch.testing.assert_close(y, x.flatten(2).mean(2))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_is_bitwise_invariant_at_test_time(memory_format):
    x = torch.randn(1, 16, 14, 10) * torch.logspace(-3, 3, 16)[:, None, None]
    moved = torch.cat([circular_shift(x, *shift) for shift in all_shifts((14, 10))])
    y = ts.GlobalAvgPool().eval()(moved.contiguous(memory_format=memory_format))
    assert torch.equal(y, y[:1].expand_as(y))


def test_any_order_of_the_pixels_gives_the_same_bits():
    x = torch.randn(1, 4, 256) * torch.logspace(-8, 8, 256)
    orders = torch.stack([x[0, :, torch.randperm(256)] for _ in range(64)])
    y = ts.GlobalAvgPool().eval()(orders)
    assert torch.equal(y, y[:1].expand_as(y))
    plain = orders.mean(2)
    assert not torch.equal(plain, plain[:1].expand_as(plain))


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_gradcheck(training):
    pool = ts.GlobalAvgPool().train(training)
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(pool, x)
    pool(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 1 / 20))


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("batch", [0, 1])
def test_any_batch(batch, training):
    assert ts.GlobalAvgPool().train(training)(torch.randn(batch, 3, 4, 5)).shape == (batch, 3)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_keeps_the_type(dtype, training):
    x = torch.randn(2, 3, 4, 6)
    y = ts.GlobalAvgPool().train(training)(x.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), x.mean((2, 3)), rtol=0.02, atol=0.02)


def test_copies_and_state():
    pool, x = ts.GlobalAvgPool().eval(), torch.randn(2, 3, 4, 6)
    assert not pool.state_dict()
    assert torch.equal(copy.deepcopy(pool)(x), pool(x))
    assert torch.equal(pickle.loads(pickle.dumps(pool))(x), pool(x))
