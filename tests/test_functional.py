"""Every formula compared with a loop over single positions, as is and under ``ts.plain()``."""

import math

import pytest
import torch
from helpers import (
    assert_circularly_equivariant,
    make_phase,
    oracle_adaptive_blur,
    oracle_conv,
    oracle_down,
    oracle_logits,
    oracle_max,
    oracle_merge,
    oracle_mix,
    oracle_norms,
    oracle_pad,
    oracle_split,
    oracle_up,
    phase_offsets,
    steps_of,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from trueshift import functional as f
from trueshift.functional import (
    polyphase_down,
    polyphase_merge,
    polyphase_split,
    polyphase_up,
)

pytestmark = pytest.mark.usefixtures("both_ways")

CASES = {
    "1d, stride 2": ((8,), 2),
    "1d, stride 3": ((9,), 3),
    "1d, one pixel per component": ((5,), (5,)),
    "2d, stride 2": ((12, 8), 2),
    "2d, stride 3": ((9, 6), 3),
    "2d, stride (3, 2)": ((6, 10), [3, 2]),
    "2d, stride (4, 1)": ((8, 3), (4, 1)),
    "2d, one pixel per component": ((2, 2), 2),
    "3d, stride 2": ((4, 6, 2), 2),
    "3d, stride (2, 1, 3)": ((4, 5, 3), (2, 1, 3)),
}
every_case = pytest.mark.parametrize(("sizes", "stride"), CASES.values(), ids=CASES)
hard_and_soft = pytest.mark.parametrize("kind", ["hard", "soft"])
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DOUBLE = {"dtype": torch.float64}


def coarse(sizes, stride):
    steps = steps_of(stride, len(sizes))
    return tuple(size // step for size, step in zip(sizes, steps, strict=True))


def differentiable(fn, *inputs):
    """First and second derivatives of ``fn`` are those of finite differences."""
    inputs = [v.detach().double().requires_grad_() for v in inputs]
    return gradcheck(fn, inputs, fast_mode=True) and gradgradcheck(fn, inputs, fast_mode=True)


class TestSplitAndMerge:
    @every_case
    def test_equal_the_oracles(self, sizes, stride, generator):
        count = math.prod(steps_of(stride, len(sizes)))
        for batch, dtype in ((0, DTYPES[0]), (1, DTYPES[3]), (2, DTYPES[1]), (2, DTYPES[2])):
            x = torch.randn(batch, 3, *sizes, generator=generator).to(dtype)
            components = polyphase_split(x, stride)
            assert components.shape == (batch, count, 3, *coarse(sizes, stride))
            assert components.dtype == dtype
            assert torch.equal(components, oracle_split(x, stride))
            assert torch.equal(polyphase_merge(components, stride), x)
            other = torch.randn(components.shape, generator=generator).to(dtype)
            assert torch.equal(polyphase_merge(other, stride), oracle_merge(other, stride))

    def test_components_are_counted_row_major(self):
        x = torch.arange(24).view(1, 1, 4, 6)
        components = polyphase_split(x, (2, 3))[0, :, 0]
        assert components[:, 0, 0].tolist() == [0, 1, 2, 6, 7, 8]
        assert components[4].tolist() == [[7, 10], [19, 22]]  # k = 1 * 3 + 1
        assert phase_offsets((2, 3), 2) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]

    @every_case
    def test_gradients(self, sizes, stride, generator):
        x = torch.randn(2, 2, *sizes, generator=generator)
        assert differentiable(lambda x: polyphase_split(x, stride), x)
        assert differentiable(lambda c: polyphase_merge(c, stride), polyphase_split(x, stride))

    def test_any_memory_layout(self, x):
        expected = polyphase_split(x, 2)
        for same in (x.to(memory_format=torch.channels_last), x.mT.contiguous().mT):
            assert torch.equal(polyphase_split(same, 2), expected)
        assert torch.equal(polyphase_merge(expected.mT.contiguous().mT, 2), x)


class TestDownAndUp:
    @every_case
    @hard_and_soft
    @pytest.mark.parametrize(
        ("batch", "dtype"), [(0, DTYPES[0]), (1, DTYPES[3]), *((2, dtype) for dtype in DTYPES[:3])]
    )
    def test_equal_the_oracles(self, sizes, stride, kind, batch, dtype, generator):
        x = torch.randn(batch, 3, *sizes, generator=generator).to(dtype)
        phase = make_phase(kind, batch, stride, len(sizes), generator, dtype)
        y = polyphase_down(x, phase, stride)
        assert y.dtype == dtype
        assert y.shape == (batch, 3, *coarse(sizes, stride))
        exact = x if kind == "hard" else x.double()
        expected = oracle_down(exact, phase.to(exact.dtype) if kind == "soft" else phase, stride)
        tolerance = 0 if kind == "hard" else 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(y, expected.to(dtype), rtol=tolerance, atol=tolerance)
        y = torch.randn(y.shape, generator=generator).to(dtype)
        u = polyphase_up(y, phase, stride)
        assert u.dtype == dtype
        assert torch.equal(u, oracle_up(y, phase, stride))

    @every_case
    def test_every_phase_of_every_image(self, sizes, stride, generator):
        count = math.prod(steps_of(stride, len(sizes)))
        x = torch.randn(count, 2, *sizes, generator=generator)
        for first in range(count):
            phase = torch.arange(first, first + count) % count
            y = polyphase_down(x, phase, stride)
            u = polyphase_up(y, phase, stride)
            assert torch.equal(y, oracle_down(x, phase, stride))
            assert torch.equal(u, oracle_up(y, phase, stride))
            assert torch.equal(polyphase_down(u, phase, stride), y)
            one_hot = nn.functional.one_hot(phase, count).float()
            assert torch.equal(polyphase_down(x, one_hot, stride), y)
            assert torch.equal(polyphase_up(y, one_hot, stride), u)
            all_alike = f.keep_phase(x, first, steps_of(stride, len(sizes)))
            assert torch.equal(all_alike, oracle_down(x, first, stride))

    @every_case
    @hard_and_soft
    def test_gradients_and_adjoints(self, sizes, stride, kind, generator):
        x = torch.randn(2, 2, *sizes, generator=generator, **DOUBLE)
        y = torch.randn(2, 2, *coarse(sizes, stride), generator=generator, **DOUBLE)
        phase = make_phase(kind, 2, stride, len(sizes), generator)
        there = (polyphase_down(x, phase, stride) * y).sum()
        torch.testing.assert_close(there, (x * polyphase_up(y, phase, stride)).sum())
        for fn, at in ((polyphase_down, x), (polyphase_up, y)):
            assert differentiable(lambda v, fn=fn: fn(v, phase, stride), at)
            if kind == "soft":
                assert differentiable(lambda v, p, fn=fn: fn(v, p, stride), at, phase)
                assert differentiable(lambda p, fn=fn, at=at: fn(at, p, stride), phase)

    @hard_and_soft
    def test_empty_batch(self, kind, generator):
        x = torch.zeros(0, 3, 4, 6, requires_grad=True)
        phase = make_phase(kind, 0, 2, 2, generator)
        polyphase_up(polyphase_down(x, phase, 2), phase, 2).sum().backward()
        assert x.grad.shape == x.shape

    def test_the_soft_phase_takes_the_dtype_of_the_map(self, x, generator):
        phase = make_phase("soft", 2, 2, 2, generator)
        for dtype in (torch.float32, torch.bfloat16):
            assert polyphase_down(x.to(dtype), phase, 2).dtype == dtype
            assert polyphase_up(x.to(dtype), phase, 2).dtype == dtype

    def test_the_input_is_not_changed_and_not_shared(self, x, generator):
        before = x.clone()
        for kind in ("hard", "soft", "int"):
            phase = make_phase(kind, 2, 2, 2, generator)
            f.keep_phase(x, phase, (2, 2)).zero_()
            if kind != "int":
                kept = phase.clone()
                polyphase_up(x, phase, 2).zero_()
                assert torch.equal(phase, kept)
            assert torch.equal(x, before)

    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
    def test_non_finite_values_stay_in_their_component(self, compiled):
        x = torch.tensor([[[1.0, math.nan, 2.0, math.inf]]])
        assert polyphase_down(x, torch.tensor([0]), 2).tolist() == [[[1.0, 2.0]]]
        torch.compiler.reset()
        up = torch.compile(polyphase_up, fullgraph=True, backend="eager")
        u = (up if compiled else polyphase_up)(
            torch.tensor([[[math.nan, math.inf]]]), torch.tensor([1]), 2
        )
        assert u[..., ::2].tolist() == [[[0.0, 0.0]]]
        assert u[0, 0, 1].isnan()

    @hard_and_soft
    def test_memory_format_changes_no_value_and_no_gradient(self, kind, generator):
        for sizes, stride in ((12, 8), 2), ((9, 6), (3, 2)), ((4, 6, 2), 2), ((3, 4, 6), (1, 2, 2)):
            layout = torch.channels_last if len(sizes) == 2 else torch.channels_last_3d
            x = torch.randn(2, 3, *sizes, generator=generator)
            phase = make_phase(kind, 2, stride, len(sizes), generator)
            results = []
            for memory_format in (torch.contiguous_format, layout):
                leaf = x.clone(memory_format=memory_format).requires_grad_()
                y = polyphase_down(leaf, phase, stride)
                u = polyphase_up(y, phase, stride)
                (u.square().sum() + y.sin().sum()).backward()
                results.append((y, u, leaf.grad))
            torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)
            assert torch.equal(results[0][0], results[1][0])

    @hard_and_soft
    def test_maps_that_are_not_dense_in_memory(self, kind, generator):
        x = torch.randn(2, 6, 24, 9, generator=generator)[:, ::2, 1::2, :8]
        phase = make_phase(kind, 2, 2, 2, generator)
        for fn in (polyphase_down, polyphase_up):
            for same in (x, x[:, :1].expand(-1, 3, -1, -1)):
                assert torch.equal(fn(same, phase, 2), fn(same.contiguous(), phase, 2))

    @pytest.mark.parametrize("name", ["1d, stride 3", "2d, stride (3, 2)", "3d, stride (2, 1, 3)"])
    @hard_and_soft
    def test_compiled_functions_equal_the_oracles(self, name, kind, generator):
        sizes, stride = CASES[name]
        x = torch.randn(2, 3, *sizes, generator=generator)
        phase = make_phase(kind, 2, stride, len(sizes), generator, torch.float32)

        def all_four(x, phase):
            y = polyphase_down(x, phase, stride)
            u = polyphase_up(y, phase, stride)
            return y, u, polyphase_merge(polyphase_split(x, stride), stride)

        torch.compiler.reset()
        y, u, same = torch.compile(all_four, fullgraph=True, backend="eager")(x, phase)
        torch.testing.assert_close(y, oracle_down(x, phase, stride))
        torch.testing.assert_close(u, oracle_up(y, phase, stride))
        assert torch.equal(same, x)


@st.composite
def maps_and_strides(draw):
    dim = draw(st.integers(1, 3))
    steps = draw(st.tuples(*[st.integers(1, 3)] * dim).filter(lambda steps: max(steps) > 1))
    sizes = tuple(step * draw(st.integers(1, 3)) for step in steps)
    shape = (draw(st.integers(0, 3)), draw(st.integers(1, 3)), *sizes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return torch.randn(shape, generator=generator), steps, generator


class TestProperties:
    @given(maps_and_strides(), st.sampled_from(["hard", "soft"]))
    def test_all_functions(self, case, kind):
        x, stride, generator = case
        components = polyphase_split(x, stride)
        assert torch.equal(components, oracle_split(x, stride))
        assert torch.equal(polyphase_merge(components, stride), x)
        phase = make_phase(kind, len(x), stride, x.ndim - 2, generator, torch.float32)
        y = polyphase_down(x, phase, stride)
        torch.testing.assert_close(y, oracle_down(x, phase, stride))
        assert torch.equal(polyphase_up(y, phase, stride), oracle_up(y, phase, stride))

    @given(maps_and_strides(), st.data())
    def test_shifts_by_multiples_of_the_stride_only_shift(self, case, data):
        x, stride, generator = case
        shift = [step * data.draw(st.integers(-3, 3)) for step in stride]
        phase = make_phase("hard", len(x), stride, x.ndim - 2, generator)
        assert_circularly_equivariant(
            lambda x: polyphase_up(polyphase_down(x, phase, stride), phase, stride), x, [shift]
        )


MODES = ("circular", "zeros", "reflect", "replicate")
SETTINGS = {
    f"{len(sizes)}d, {stride}, {mode}": (sizes, stride, mode)
    for sizes, stride, mode in (
        ((6,), (2,), "circular"),
        ((9,), (3,), "zeros"),
        *(((4, 6), (2, 2), mode) for mode in MODES),
        ((3, 6), (3, 3), "circular"),
        ((4, 6), (2, 3), ("zeros", "circular")),
        ((3, 4), (1, 4), ("circular", "reflect")),
        ((4, 2, 4), (2, 2, 2), "circular"),
        ((2, 2, 3), (1, 2, 3), ("circular", "replicate", "zeros")),
    )
}
every_setting = pytest.mark.parametrize(
    ("sizes", "stride", "mode"), SETTINGS.values(), ids=SETTINGS
)
every_kind = pytest.mark.parametrize("kind", ["hard", "soft", "int"])
exact_or_not = pytest.mark.parametrize("exact", [True, False], ids=["exact", "rounded"])


def pixels(sizes, channels=2, batch=2):
    return torch.randn(batch, channels, *sizes, **DOUBLE)


def fixed_kernel(channels, size, dim):
    """Binomial coefficients, written out."""
    row = {2: [1, 1], 3: [1, 2, 1], 4: [1, 3, 3, 1]}[size]
    kernel = torch.tensor(row, **DOUBLE) / sum(row)
    taps = kernel
    for _ in range(dim - 1):
        taps = taps[..., None] * kernel
    return taps.expand(channels, 1, *[-1] * dim)


def batch_norm(x):
    """Each channel by the statistics of the batch, as while training."""
    return nn.functional.batch_norm(x, None, None, training=True)


class TestScores:
    @every_setting
    @exact_or_not
    def test_conv_logits(self, sizes, stride, mode, exact):
        dim = len(sizes)
        # Components of at least two pixels: torch cannot reflect the border of a single one.
        x = pixels([2 * n for n in sizes] if "reflect" in str(mode) else sizes)
        shapes = ((3, 2, *[3] * dim), (3,), (3, 3, *[3] * dim), (3,))
        theta = tuple(torch.randn(shape, **DOUBLE) for shape in shapes)
        expected = oracle_logits(x, theta, stride, mode)
        torch.testing.assert_close(f.conv_logits(x, theta, stride, mode, exact=exact), expected)
        assert torch.equal(f.conv_choice(x, theta, stride, mode, x), expected.argmax(1))

    @every_setting
    @exact_or_not
    @pytest.mark.parametrize("p", [1, 2, math.inf])
    def test_norm_logits(self, sizes, stride, mode, exact, p):
        x = pixels(sizes)
        expected = oracle_norms(x, p, stride)
        torch.testing.assert_close(f.norm_logits(x, p, stride, exact=exact), expected)
        assert torch.equal(f.norm_choice(x, p, stride, x), expected.argmax(1))


class TestFilters:
    @pytest.mark.parametrize("size", range(1, 8))
    def test_binomial_kernel(self, size):
        row = torch.tensor([math.comb(size - 1, k) for k in range(size)]) / 2 ** (size - 1)
        assert torch.equal(f.binomial_kernel(size, 1)[0, 0], row)
        assert torch.equal(
            f.binomial_kernel(size, 3)[0, 0], row[:, None, None] * row[:, None] * row
        )

    @every_setting
    @pytest.mark.parametrize("size", [2, 3, 4])
    def test_blur(self, sizes, stride, mode, size):
        if size == 4 and "reflect" in str(mode):
            sizes = [2 * n for n in sizes]
        dim, x = len(sizes), pixels(sizes)
        kernel = fixed_kernel(2, size, dim)
        low = oracle_conv(x, kernel, None, mode, groups=2)
        torch.testing.assert_close(f.blur(x, kernel, mode), low)
        for kind in ("hard", "soft", "int"):
            phase = make_phase(kind, 2, stride, dim)
            expected = oracle_down(low, phase, stride)
            torch.testing.assert_close(f.blur_down(x, kernel, phase, stride, mode), expected)
            if kind != "int":
                fine = oracle_up(x, phase, stride)
                expected = oracle_conv(fine, kernel, None, mode, groups=2) * math.prod(stride)
                torch.testing.assert_close(f.blur_up(x, kernel, phase, stride, mode), expected)

    @every_setting
    @pytest.mark.parametrize(("norm", "exact"), [(batch_norm, False), (torch.tanh, True)])
    def test_adaptive_blur(self, sizes, stride, mode, exact, norm):
        dim, x = len(sizes), pixels(sizes, channels=4)
        weight = torch.randn(2 * 3**dim, 4, *[3] * dim, **DOUBLE) / 3**dim
        ddac = f.Adaptive(weight, norm, 2)
        low = oracle_adaptive_blur(x, *ddac, mode)
        torch.testing.assert_close(f.adaptive_blur(x, ddac, mode, exact=exact), low)
        for kind in ("hard", "soft", "int"):
            phase = make_phase(kind, 2, stride, dim)
            y = f.adaptive_blur_down(x, ddac, phase, stride, mode, exact=exact)
            torch.testing.assert_close(y, oracle_down(low, phase, stride))

    @every_setting
    @pytest.mark.parametrize("size", [1, 3])
    def test_mix_neighbours(self, sizes, stride, mode, size):
        dim, x = len(sizes), pixels(sizes, channels=4)
        filters = torch.randn(2, 2 * size**dim, *sizes, **DOUBLE)
        padded = oracle_pad(x, ((size // 2, size // 2),) * dim, mode)
        expected = oracle_mix(x, filters, 2, size, mode)
        torch.testing.assert_close(f.mix_neighbours(padded, filters, 2, size, (1,) * dim), expected)
        some = f.mix_neighbours(padded, oracle_down(filters, 0, stride), 2, size, stride)
        torch.testing.assert_close(some, oracle_down(expected, 0, stride))


class TestConvolutions:
    @every_setting
    @exact_or_not
    @pytest.mark.parametrize(
        ("size", "dilation", "groups"), [(1, 1, 1), (2, 1, 1), (3, 1, 2), (3, 2, 1)]
    )
    def test_convolution_and_conv_down(self, sizes, stride, mode, exact, size, dilation, groups):
        if dilation == 2 and mode != "circular" and mode != "zeros":
            sizes = [2 * n for n in sizes]
        dim, x = len(sizes), pixels(sizes)
        weight, bias = (
            torch.randn(4, 2 // groups, *[size] * dim, **DOUBLE),
            torch.randn(4, **DOUBLE),
        )
        conv = f.Conv(weight, bias, (dilation,) * dim, groups)
        whole = oracle_conv(x, weight, bias, mode, conv.dilation, groups)
        for step in ((1,) * dim, stride):
            y = f.convolution(x, conv, step, mode, exact=exact)
            torch.testing.assert_close(y, oracle_down(whole, 0, step))
        for kind in ("hard", "soft", "int"):
            phase = make_phase(kind, 2, stride, dim)
            y = f.conv_down(x, conv, phase, stride, mode, exact=exact)
            torch.testing.assert_close(y, oracle_down(whole, phase, stride))

    @pytest.mark.parametrize("dilation", [(3, 4), (6, 7), (8, 12), (5, 18)])
    @pytest.mark.parametrize("size", [2, 3])
    def test_taps_wrap_as_often_as_needed(self, dilation, size):
        x, weight = pixels((4, 6)), torch.randn(3, 2, size, size, **DOUBLE)
        whole = oracle_conv(x, weight, None, "circular", dilation)
        for stride in ((1, 1), (2, 2)):
            y = f.convolution(x, f.Conv(weight, None, dilation), stride, "circular")
            torch.testing.assert_close(y, oracle_down(whole, 0, stride))


class TestMaxima:
    @pytest.mark.parametrize("sizes", [(7,), (4, 5), (3, 2, 4)])
    @pytest.mark.parametrize("size", [1, 2, (2, 1, 2)])
    def test_max_filter(self, sizes, size):
        x = pixels(sizes).round()
        window = steps_of(size, len(sizes)) if isinstance(size, int) else size[: len(sizes)]
        assert torch.equal(f.max_filter(x, window), oracle_max(x, window))

    @pytest.mark.parametrize("mode", [*MODES[:2], "replicate", ("zeros", "circular", "zeros")])
    @pytest.mark.parametrize("sizes", [(6,), (4, 6), (2, 2, 4)])
    @every_kind
    def test_max_down(self, sizes, kind, mode):
        dim, x = len(sizes), pixels(sizes)
        mode = mode if isinstance(mode, str) else mode[:dim]
        phase = make_phase(kind, 2, 2, dim)
        peaks = oracle_max(oracle_pad(x, ((0, 1),) * dim, mode), (2,) * dim)
        y = f.max_down(x, None, phase, mode)
        torch.testing.assert_close(y, oracle_down(peaks, phase, 2))
        kernel = fixed_kernel(2, 3, dim)
        low = oracle_conv(peaks, kernel, None, mode, groups=2)
        torch.testing.assert_close(f.max_down(x, kernel, phase, mode), oracle_down(low, phase, 2))

    def test_the_gradient_goes_to_the_first_of_equal_pixels(self):
        x = torch.zeros(1, 1, 4, requires_grad=True)
        f.max_filter(x, (2,)).sum().backward()
        assert x.grad.tolist() == [[[1.0, 1.0, 1.0, 0.0]]]


@pytest.mark.parametrize("mode", ["circular", ("zeros", "circular")], ids=str)
@every_kind
def test_gradients(kind, mode):
    """Of all formulas, in the map and in whatever else they learn."""
    stride, phase = (2, 3), make_phase(kind, 2, (2, 3), 2)
    x, weight = pixels((4, 6)), torch.randn(3, 2, 3, 3, **DOUBLE)
    theta = (weight, torch.randn(3, **DOUBLE), torch.randn(3, 3, 3, 3, **DOUBLE))
    kernel, filters = fixed_kernel(2, 3, 2), torch.randn(18, 2, 3, 3, **DOUBLE)

    def ddac(weight):
        return f.Adaptive(weight, torch.tanh, 2)

    def conv(weight):
        return f.Conv(weight, None, (1, 1))

    assert differentiable(lambda x, *w: f.conv_logits(x, (*w, w[1]), stride, mode), x, *theta)
    assert differentiable(lambda x: f.norm_logits(x, 2, stride), x)
    assert differentiable(lambda x: f.blur(x, kernel, mode), x)
    assert differentiable(lambda x: f.blur_down(x, kernel, phase, stride, mode), x)
    assert differentiable(
        lambda x, w: f.adaptive_blur_down(x, ddac(w), phase, stride, mode), x, filters
    )
    assert differentiable(lambda x, w: f.conv_down(x, conv(w), phase, stride, mode), x, weight)
    if kind == "int":
        return
    assert differentiable(lambda y: f.blur_up(y, kernel, phase, stride, mode), x)
    if kind == "soft":
        for fn in (
            lambda p: f.blur_down(x, kernel, p, stride, mode),
            lambda p: f.blur_up(x, kernel, p, stride, mode),
            lambda p: f.conv_down(x, conv(weight), p, stride, mode),
            lambda p: f.adaptive_blur_down(x, ddac(filters), p, stride, mode),
        ):
            assert differentiable(fn, phase)
