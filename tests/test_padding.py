import pytest
import torch
from helpers import all_shifts, assert_circularly_equivariant
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

from trueshift.padding import pad

TORCH_MODES = {
    "circular": "circular",
    "zeros": "constant",
    "reflect": "reflect",
    "replicate": "replicate",
}
CASES = {
    "1d": ((8,), ((2, 1),)),
    "1d, one side": ((8,), ((0, 3),)),
    "2d": ((6, 5), ((1, 1), (1, 1))),
    "2d, every width different": ((6, 5), ((1, 2), (3, 4))),
    "2d, one axis": ((6, 5), ((0, 0), (2, 1))),
    "2d, one side": ((6, 5), ((0, 1), (0, 1))),
    "3d": ((4, 5, 6), ((1, 1), (1, 1), (1, 1))),
    "3d, every width different": ((4, 5, 6), ((0, 1), (2, 3), (4, 5))),
}
every_case = pytest.mark.parametrize(("sizes", "widths"), CASES.values(), ids=CASES)
every_mode = pytest.mark.parametrize("mode", TORCH_MODES)

WIDER_THAN_THE_MAP = {
    "1d": ((3,), ((4, 0),)),
    "1d, several turns": ((2,), ((7, 9),)),
    "1d, a single pixel": ((1,), ((3, 2),)),
    "2d, one axis": ((2, 5), ((3, 3), (1, 1))),
    "2d, both axes": ((2, 3), ((3, 5), (7, 4))),
    "3d": ((1, 2, 4), ((2, 2), (3, 0), (1, 1))),
}
every_wide_case = pytest.mark.parametrize(
    ("sizes", "widths"), WIDER_THAN_THE_MAP.values(), ids=WIDER_THAN_THE_MAP
)


def torch_pad(x, widths, mode):
    flat = [width for pair in reversed(widths) for width in pair]
    return F.pad(x, flat, mode=TORCH_MODES[mode])


def oracle_circular(x, widths):
    """``out[n] = x[(n - before) mod size]``, position by position."""
    pairs = list(zip(x.shape[2:], widths, strict=True))
    sizes = [size + before + after for size, (before, after) in pairs]
    out = x.new_zeros(*x.shape[:2], *sizes)
    for position in all_shifts(sizes):
        source = [(n - pair[0]) % size for n, (size, pair) in zip(position, pairs, strict=True)]
        out[(..., *position)] = x[(..., *source)]
    return out


@every_case
@every_mode
def test_equals_torch(sizes, widths, mode, generator):
    x = torch.randn(2, 3, *sizes, generator=generator)
    assert torch.equal(pad(x, widths, mode), torch_pad(x, widths, mode))


@every_case
def test_circular_equals_the_oracle(sizes, widths, generator):
    x = torch.randn(2, 3, *sizes, generator=generator)
    assert torch.equal(pad(x, widths, "circular"), oracle_circular(x, widths))


@every_wide_case
@pytest.mark.parametrize("batch", [0, 1, 2])
def test_circular_wraps_as_often_as_needed(sizes, widths, batch, generator):
    x = torch.randn(batch, 3, *sizes, generator=generator)
    assert torch.equal(pad(x, widths, "circular"), oracle_circular(x, widths))


def test_as_wide_as_the_map(x):
    widths = ((12, 12), (8, 8))
    assert torch.equal(pad(x, widths, "circular"), x.repeat(1, 1, 3, 3))


@every_mode
@pytest.mark.parametrize("batch", [0, 1])
def test_small_batches(mode, batch, generator):
    x = torch.randn(batch, 3, 6, 5, generator=generator)
    padded = pad(x, ((1, 2), (3, 1)), mode)
    assert padded.shape == (batch, 3, 9, 9)
    assert torch.equal(padded, torch_pad(x, ((1, 2), (3, 1)), mode))


@every_mode
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
def test_keeps_the_dtype(mode, dtype, x):
    padded = pad(x.to(dtype), ((1, 1), (2, 1)), mode)
    assert padded.dtype == dtype
    assert torch.equal(padded, torch_pad(x.to(dtype), ((1, 1), (2, 1)), mode))


@every_mode
def test_no_border_changes_nothing(mode, x):
    assert torch.equal(pad(x, ((0, 0), (0, 0)), mode), x)


@pytest.mark.parametrize("widths", [((1, 1), (2, 1)), ((13, 0), (1, 1)), ((30, 30), (30, 30))])
def test_circular_keeps_channels_last(widths, x):
    last = x.to(memory_format=torch.channels_last)
    padded = pad(last, widths, "circular")
    assert padded.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(padded, oracle_circular(x, widths))
    assert pad(x, widths, "circular").is_contiguous()


@pytest.mark.parametrize("widths", [((1, 1), (2, 1), (0, 1)), ((5, 0), (1, 1), (0, 7))])
def test_circular_keeps_channels_last_3d(widths, generator):
    x = torch.randn(2, 3, 4, 5, 6, generator=generator)
    padded = pad(x.to(memory_format=torch.channels_last_3d), widths, "circular")
    assert padded.is_contiguous(memory_format=torch.channels_last_3d)
    assert torch.equal(padded, oracle_circular(x, widths))


@every_mode
def test_maps_that_are_not_dense_in_memory(mode, generator):
    x = torch.randn(2, 6, 13, 9, generator=generator)[:, ::2, 1::2, :5]
    widths = ((1, 2), (2, 1))
    assert torch.equal(pad(x, widths, mode), torch_pad(x.contiguous(), widths, mode))


@every_case
@every_mode
def test_gradients(sizes, widths, mode, generator):
    x = torch.randn(1, 2, *sizes, generator=generator, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: pad(x, widths, mode), x, fast_mode=True)
    assert gradgradcheck(lambda x: pad(x, widths, mode), x, fast_mode=True)


@every_wide_case
def test_gradients_of_wide_borders(sizes, widths, generator):
    x = torch.randn(1, 2, *sizes, generator=generator, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: pad(x, widths, "circular"), x, fast_mode=True)
    assert gradgradcheck(lambda x: pad(x, widths, "circular"), x, fast_mode=True)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_circular_gradient_equals_that_of_torch(layout, x):
    widths, weights = ((2, 3), (4, 1)), torch.randn(2, 3, 17, 13)
    leaves = [x.clone(memory_format=layout).requires_grad_() for _ in range(2)]
    (pad(leaves[0], widths, "circular") * weights).sum().backward()
    (torch_pad(leaves[1], widths, "circular") * weights).sum().backward()
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad)


@every_case
def test_compiled_circular_equals_the_oracle(sizes, widths, generator):
    x = torch.randn(2, 3, *sizes, generator=generator)
    torch.compiler.reset()
    fn = torch.compile(lambda x: pad(x, widths, "circular"), fullgraph=True, backend="eager")
    assert torch.equal(fn(x), oracle_circular(x, widths))


def test_a_convolution_after_circular_padding_is_equivariant(x, generator):
    weight = torch.randn(4, 3, 3, 5, generator=generator)
    assert_circularly_equivariant(
        lambda x: F.conv2d(pad(x, ((1, 1), (2, 2)), "circular"), weight),
        x,
        all_shifts(x.shape[2:]),
    )


@st.composite
def maps_and_widths(draw):
    dim = draw(st.integers(1, 3))
    sizes = draw(st.tuples(*[st.integers(1, 4)] * dim))
    pairs = st.tuples(st.integers(0, 9 if dim < 3 else 5), st.integers(0, 9 if dim < 3 else 5))
    widths = draw(st.tuples(*[pairs] * dim))
    shape = (draw(st.integers(0, 2)), draw(st.integers(1, 3)), *sizes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return torch.randn(shape, generator=generator), widths


@given(maps_and_widths())
def test_property_circular_equals_the_oracle(case):
    x, widths = case
    assert torch.equal(pad(x, widths, "circular"), oracle_circular(x, widths))
