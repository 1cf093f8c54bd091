import pytest
import torch
from helpers import (
    all_shifts,
    assert_circularly_equivariant,
    make_phase,
    oracle_pad,
    oracle_read,
    oracle_window,
)
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

from trueshift.windows import pad, phase_window, read_at

pytestmark = pytest.mark.usefixtures("both_ways")

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
    "3d": ((4, 5, 6), ((1, 1), (1, 1), (1, 1))),
    "3d, every width different": ((4, 5, 6), ((0, 1), (2, 3), (4, 5))),
}
WIDER_THAN_THE_MAP = {
    "1d, wider than the map": ((3,), ((4, 0),)),
    "1d, several wraps": ((2,), ((7, 9),)),
    "1d, a single pixel": ((1,), ((3, 2),)),
    "2d, one axis wider": ((2, 5), ((3, 3), (1, 1))),
    "2d, both axes wider": ((2, 3), ((3, 5), (7, 4))),
    "3d, wider": ((1, 2, 4), ((2, 2), (3, 0), (1, 1))),
}
BORDERS = {f"{name}, {mode}": (*CASES[name], mode) for name in CASES for mode in TORCH_MODES} | {
    name: (*case, "circular") for name, case in WIDER_THAN_THE_MAP.items()
}
BORDERS |= {
    "2d, zeros and circular": (*CASES["2d, every width different"], ("zeros", "circular")),
    "2d, circular and reflect": (*CASES["2d, every width different"], ("circular", "reflect")),
    "2d, wide and replicate": ((2, 5), ((3, 5), (2, 1)), ("circular", "replicate")),
    "3d, every mode different": (*CASES["3d"], ("zeros", "circular", "reflect")),
    "3d, two modes": (*CASES["3d, every width different"], ("replicate", "circular", "replicate")),
}
every_border = pytest.mark.parametrize(("sizes", "widths", "mode"), BORDERS.values(), ids=BORDERS)
every_mode = pytest.mark.parametrize("mode", TORCH_MODES)


def torch_pad(x, widths, mode):
    flat = [width for pair in reversed(widths) for width in pair]
    return F.pad(x, flat, mode=TORCH_MODES[mode])


class TestPad:
    @every_border
    def test_equals_the_oracle(self, sizes, widths, mode, generator):
        for batch in (0, 1, 2):
            x = torch.randn(batch, 3, *sizes, generator=generator)
            assert torch.equal(pad(x, widths, mode), oracle_pad(x, widths, mode))

    @every_mode
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
    def test_equals_torch_in_every_type(self, mode, dtype, generator):
        for sizes, widths in CASES.values():
            x = torch.randn(2, 3, *sizes, generator=generator).to(dtype)
            padded = pad(x, widths, mode)
            assert padded.dtype == dtype
            assert torch.equal(padded, torch_pad(x, widths, mode))

    @every_mode
    def test_no_border_and_maps_that_are_not_dense(self, mode, x, generator):
        assert torch.equal(pad(x, ((0, 0), (0, 0)), mode), x)
        sparse = torch.randn(2, 6, 13, 9, generator=generator)[:, ::2, 1::2, :5]
        widths = ((1, 2), (2, 1))
        assert torch.equal(pad(sparse, widths, mode), torch_pad(sparse.contiguous(), widths, mode))

    def test_as_wide_as_the_map(self, x):
        assert torch.equal(pad(x, ((12, 12), (8, 8)), "circular"), x.repeat(1, 1, 3, 3))

    @pytest.mark.parametrize(
        ("sizes", "widths", "mode"),
        [
            ((12, 8), ((1, 1), (2, 1)), "circular"),
            ((12, 8), ((13, 0), (1, 1)), "circular"),
            ((12, 8), ((1, 1), (2, 1)), ("zeros", "circular")),
            ((4, 5, 6), ((1, 1), (2, 1), (0, 1)), "circular"),
            ((4, 5, 6), ((5, 0), (1, 1), (0, 7)), "circular"),
        ],
    )
    def test_channels_last_changes_no_value(self, sizes, widths, mode, generator):
        last = torch.channels_last if len(sizes) == 2 else torch.channels_last_3d
        x = torch.randn(2, 3, *sizes, generator=generator)
        assert torch.equal(pad(x.to(memory_format=last), widths, mode), oracle_pad(x, widths, mode))

    @every_border
    def test_gradients(self, sizes, widths, mode, generator):
        shape = (1, 2, *sizes)
        x = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        assert gradcheck(lambda x: pad(x, widths, mode), x, fast_mode=True)
        assert gradgradcheck(lambda x: pad(x, widths, mode), x, fast_mode=True)

    @pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
    def test_circular_gradient_equals_that_of_torch(self, layout, x):
        widths, weights = ((2, 3), (4, 1)), torch.randn(2, 3, 17, 13)
        leaves = [x.clone(memory_format=layout).requires_grad_() for _ in range(2)]
        (pad(leaves[0], widths, "circular") * weights).sum().backward()
        (torch_pad(leaves[1], widths, "circular") * weights).sum().backward()
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad)

    def test_a_convolution_after_circular_padding_is_equivariant(self, x, generator):
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
    widest = 9 if dim < 3 else 3
    pairs = st.tuples(st.integers(0, widest), st.integers(0, widest))
    widths = draw(st.tuples(*[pairs] * dim))
    modes = draw(st.tuples(*[st.sampled_from(["circular", "zeros", "replicate"])] * dim))
    shape = (draw(st.integers(0, 2)), draw(st.integers(1, 3)), *sizes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return torch.randn(shape, generator=generator), widths, modes


@given(maps_and_widths())
def test_property_equals_the_oracle(case):
    x, widths, modes = case
    assert torch.equal(pad(x, widths, modes), oracle_pad(x, widths, modes))


WINDOWS = {
    "1d, 2": ((6,), (2,), ((1, 1),)),
    "1d, 3": ((6,), (3,), ((0, 2),)),
    "2d, 2": ((4, 6), (2, 2), ((1, 1), (1, 2))),
    "2d, (2, 3)": ((4, 6), (2, 3), ((2, 2), (1, 0))),
    "2d, (1, 4)": ((3, 4), (1, 4), ((1, 1), (0, 0))),
    "3d, 2": ((2, 4, 2), (2, 2, 2), ((1, 0), (1, 1), (0, 1))),
}


class TestWindows:
    @pytest.mark.parametrize("mode", [*TORCH_MODES, ("zeros", "circular", "replicate")], ids=str)
    @pytest.mark.parametrize("kind", ["hard", "soft", "int"])
    @pytest.mark.parametrize(("sizes", "stride", "widths"), WINDOWS.values(), ids=WINDOWS)
    def test_phase_window(self, sizes, stride, widths, kind, mode, generator):
        dim = len(sizes)
        if mode == "reflect" and min(sizes) <= max(map(max, widths)):
            return  # torch cannot reflect a border as wide as the map
        mode = mode if isinstance(mode, str) else mode[:dim]
        x = torch.randn(3, 2, *sizes, generator=generator, dtype=torch.float64)
        phase = make_phase(kind, 3, stride, dim, generator)
        window = phase_window(x, phase, stride, widths, mode)
        expected = oracle_window(x, phase, stride, widths, mode)
        for axis in range(2, 2 + dim):  # one phase for all may leave more, but no whole stride
            more = window.shape[axis] - expected.shape[axis]
            assert 0 <= more < (stride[axis - 2] if kind == "int" else 1)
            window = window.narrow(axis, 0, expected.shape[axis])
        torch.testing.assert_close(window, expected)

    @pytest.mark.parametrize("batch", [0, 1, 3])
    @pytest.mark.parametrize("sizes", [(5,), (4, 6), (2, 3, 4)])
    def test_read_at(self, sizes, batch, generator):
        for lengths in (sizes, tuple(n - 1 for n in sizes), tuple(2 * n + 1 for n in sizes)):
            x = torch.randn(batch, 2, *sizes, generator=generator)
            starts = [torch.randint(-7, 9, (batch,), generator=generator) for _ in sizes]
            assert torch.equal(read_at(x, starts, lengths), oracle_read(x, starts, lengths))

    @pytest.mark.parametrize("kind", ["hard", "soft", "int"])
    @pytest.mark.parametrize("mode", ["circular", ("zeros", "circular")], ids=str)
    def test_gradients(self, kind, mode, generator):
        shape, stride, widths = (2, 2, 4, 6), (2, 3), ((1, 1), (2, 1))
        x = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        phase = make_phase(kind, 2, stride, 2, generator)
        soft = kind == "soft"
        inputs = (x, phase.requires_grad_()) if soft else (x,)

        def run(x, weights=phase):
            return phase_window(x, weights, stride, widths, mode)

        assert gradcheck(run, inputs, fast_mode=True)
        assert gradgradcheck(run, inputs, fast_mode=True)

    @pytest.mark.parametrize("kind", ["hard", "soft", "int"])
    def test_channels_last_changes_no_value(self, kind, x, generator):
        phase, widths = make_phase(kind, 2, 2, 2, generator), ((1, 1), (1, 1))
        last = phase_window(
            x.to(memory_format=torch.channels_last), phase, (2, 2), widths, "circular"
        )
        torch.testing.assert_close(last, phase_window(x, phase, (2, 2), widths, "circular"))


@pytest.mark.parametrize("mode", ["circular", ("zeros", "circular")], ids=str)
def test_compiled(mode, x, generator):
    torch.compiler.reset()
    phase, widths = make_phase("hard", 2, 2, 2, generator), ((1, 2), (9, 1))

    def both(x, phase):
        return pad(x, widths, mode), phase_window(x, phase, (2, 2), widths, mode)

    padded, window = torch.compile(both, fullgraph=True, backend="eager")(x, phase)
    assert torch.equal(padded, oracle_pad(x, widths, mode))
    assert torch.equal(window, oracle_window(x, phase, (2, 2), widths, mode))
