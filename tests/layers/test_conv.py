import pytest
import torch
from torch.nn import functional as F

from trueshift.functional import polyphase_down
from trueshift.layers.conv import same_conv
from trueshift.shifts import circular_shift

SIZES = {1: (12,), 2: (12, 8), 3: (4, 6, 8)}


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("mode", ["circular", "zeros", "replicate"])
def test_the_size_is_kept(dim, size, mode):
    conv = same_conv(3, 4, size, mode, dim=dim)
    x = torch.randn(2, 3, *SIZES[dim])
    assert conv(x).shape == (2, 4, *SIZES[dim])


@pytest.mark.parametrize("dilation", [1, 2, 7])
def test_circular_borders_may_be_wider_than_the_map(dilation):
    conv = same_conv(3, 4, 3, "circular", dilation=dilation)
    x = torch.randn(2, 3, 4, 6)
    with torch.no_grad():
        assert torch.equal(conv(circular_shift(x, 1, 2)), circular_shift(conv(x), 1, 2))


@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_it_is_torchs_convolution(mode):
    conv = same_conv(3, 4, 3, mode, stride=2, bias=True)
    twin = torch.nn.Conv2d(3, 4, 3, stride=2, padding=1, padding_mode=mode)
    twin.load_state_dict(conv.state_dict())
    x = torch.randn(2, 3, 8, 6)
    torch.testing.assert_close(conv(x), twin(x))


@pytest.mark.parametrize("stride", [2, 3, (2, 3), (1, 2)])
@pytest.mark.parametrize("size", [1, 3, 4, 7])
@pytest.mark.parametrize("mode", ["circular", "zeros"])
@pytest.mark.parametrize("grad", [False, True])
def test_with_a_phase_it_computes_what_is_kept(stride, size, mode, grad):
    conv = same_conv(3, 4, size, mode, bias=True).double()
    x = torch.randn(5, 3, 12, 6, dtype=torch.float64)
    steps = stride if isinstance(stride, tuple) else (stride, stride)
    num_phases = steps[0] * steps[1]
    hard = torch.arange(5) % num_phases
    soft = torch.rand(5, num_phases, dtype=torch.float64).softmax(1)
    with torch.set_grad_enabled(grad):
        for phase in (hard, soft):
            expected = polyphase_down(conv(x), phase, steps)
            torch.testing.assert_close(conv(x, phase, stride), expected)


def test_a_phase_is_checked():
    conv = same_conv(3, 4, 3, "circular")
    phase = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="divisible by stride=2"):
        conv(torch.randn(2, 3, 5, 6), phase, 2)
    with pytest.raises(ValueError, match=r"phase must be in 0\.\.3, got 4"):
        conv(torch.randn(2, 3, 6, 6), phase + 4, 2)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("size", [1, 3])
def test_rounding_does_not_depend_on_place(threads, batch, size):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        conv, x = same_conv(32, 2, size, "circular"), torch.randn(batch, 32, 6, 10)
        with torch.no_grad():
            for shift in [(0, 1), (1, 0), (3, 7), (5, 9)]:
                assert torch.equal(conv(circular_shift(x, *shift)), circular_shift(conv(x), *shift))
    finally:
        torch.set_num_threads(before)


def test_one_hot_mixture_is_the_window():
    conv = same_conv(3, 4, 3, "circular").double()
    x, phase = torch.randn(4, 3, 6, 6, dtype=torch.float64), torch.arange(4)
    soft = F.one_hot(phase, 4).double()
    with torch.no_grad():
        assert torch.equal(conv(x, phase, 2), conv(x, soft, 2))
