"""Up-sampling by means of neighbours."""

import itertools

import pytest
import torch

from trueshift.layers import placing
from trueshift.layers.between import fill_between
from trueshift.layers.resample import LPU


@pytest.mark.parametrize("mode", ["circular", "zeros"])
@pytest.mark.parametrize("sizes", [(5,), (3, 4), (1, 1), (2, 3, 2)])
@pytest.mark.parametrize("last", [False, True])
def test_it_is_placing_and_filtering(monkeypatch, mode, sizes, last):
    monkeypatch.setattr(placing, "_FILL_ELEMENTS", 1)
    dim = len(sizes)
    phase = torch.arange(2**dim)
    y = torch.randn(2**dim, 3, *sizes)
    if last and dim == 2:
        y = y.contiguous(memory_format=torch.channels_last)
    up = LPU(3, antialias="tri3", padding_mode=mode, dim=dim).eval()
    with torch.inference_mode():
        found = up(y, phase, output_size=[2 * size for size in sizes])
        monkeypatch.setattr(placing, "fill_between", None)
        torch.testing.assert_close(found, fill_between(y, phase, mode), rtol=0, atol=0)
        monkeypatch.setattr(placing, "_lies_between", lambda *args: False)
        plain = up(y, phase)
    torch.testing.assert_close(found, plain)
    assert found.stride() == plain.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_shifts_of_the_fine_grid_are_exact(dtype):
    y = torch.randn(1, 3, 4, 6, dtype=dtype)
    fine = fill_between(y, torch.tensor([0]), "circular")
    for i, j in itertools.product(range(8), range(12)):
        phase = torch.tensor([2 * (i % 2) + j % 2])
        shifted = fill_between(y.roll((i // 2, j // 2), (2, 3)), phase, "circular")
        assert torch.equal(shifted, fine.roll((i, j), (2, 3)))


def test_a_cropped_map_and_hooks_take_the_plain_way(monkeypatch):
    monkeypatch.setattr(placing, "_FILL_ELEMENTS", 1)
    monkeypatch.setattr(placing, "fill_between", None)
    up = LPU(3, antialias="tri3", padding_mode="zeros").eval()
    y, phase = torch.randn(1, 3, 4, 4), torch.tensor([1])
    with torch.inference_mode():
        assert up(y, phase, output_size=(7, 8)).shape == (1, 3, 7, 8)
        with torch.autocast("cpu", torch.bfloat16):
            assert up(y, phase).dtype == torch.bfloat16
        seen = []
        up.antialias.register_forward_hook(lambda *args: seen.append(1))
        up(y, phase)
    assert seen
    with pytest.raises(ValueError, match="channels"), torch.inference_mode():
        LPU(2, antialias="tri3").eval()(y, phase)


def test_half_precision_does_not_overflow_between_large_values(monkeypatch):
    monkeypatch.setattr(placing, "_FILL_ELEMENTS", 1)
    y = torch.full((1, 3, 4, 4), 40000.0, dtype=torch.float16)
    with torch.inference_mode():
        up = LPU(3, antialias="tri3").eval()(y, torch.tensor([1]))
    assert torch.equal(up, torch.full((1, 3, 8, 8), 40000.0, dtype=torch.float16))
