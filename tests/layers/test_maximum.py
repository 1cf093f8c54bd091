import pytest
import torch
from torch.nn import functional as F

from trueshift._adjoint import channels_last, last_format
from trueshift.layers.maximum import max_filter

POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_is_max_pooling_with_stride_1_ties_and_gradients_too(dim, size):
    torch.manual_seed(0)
    x = torch.randn(2, 3, *[7] * dim).mul(2).round().requires_grad_()  # many ties
    y = x.detach().clone().requires_grad_()
    found, wanted = max_filter(x, size), POOLS[dim](y, size, 1)
    assert torch.equal(found, wanted)
    weights = torch.randn_like(wanted)
    (found * weights).sum().backward()
    (wanted * weights).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    with torch.inference_mode():
        assert torch.equal(max_filter(x, size), wanted)


def test_one_size_per_axis():
    x = torch.randn(2, 3, 6, 8)
    assert torch.equal(max_filter(x, (3, 1)), F.max_pool2d(x, (3, 1), 1))
    assert torch.equal(max_filter(x, (2, 5)), F.max_pool2d(x, (2, 5), 1))


def test_keeps_the_layout():
    x = torch.randn(2, 8, 6, 6).contiguous(memory_format=last_format(4)).requires_grad_()
    y = max_filter(x, 2)
    assert channels_last(y)
    y.sum().backward()
    assert channels_last(x.grad)


def test_second_derivatives():
    x = torch.randn(1, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda t: max_filter(t, 3).square(), x)


def test_not_a_number_stays():
    x = torch.zeros(1, 1, 4, 4)
    x[0, 0, 1, 1] = torch.nan
    assert max_filter(x, 2).isnan().sum() == 4
