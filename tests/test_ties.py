"""Ties: equal logits must not make the choice depend on where the map stands.

A map may equal itself under a shift that is no multiple of the stride. No rule can then tell apart
the components that this shift maps onto each other, and none needs to: they are the same component.
For every other map, placing the kept component back must commute with every shift, bit by bit.
"""

import math

import onnxruntime
import pytest
import torch
from helpers import all_shifts, phase_offsets, steps_of

import trueshift as ts
from trueshift import ties
from trueshift.functional import polyphase_down, polyphase_up
from trueshift.shifts import circular_shift
from trueshift.ties import argmax_phase, break_ties

TINY = 1e-30
NEXT = math.nextafter(0.1, 1)
ALPHABETS = {
    "binary": ((0.0, 1.0), torch.float32),
    "signs": ((-1.0, 1.0), torch.float32),
    "ternary": ((-1.0, 0.0, 1.0), torch.float32),
    "fractions of both signs": ((-1 / 3, 1 / 3, 0.1), torch.float32),
    "very small beside large": ((0.0, 1.0, TINY), torch.float32),
    "neighbours in float64": ((1.0, 0.1, NEXT), torch.float64),
    "bfloat16": ((-1.0, 0.5, 1.0), torch.bfloat16),
    "subnormal": ((0.0, 1e-45, -1e-45), torch.float32),
    "huge": ((0.0, 3e38, -3e38), torch.float32),
    "beyond float32": ((1e300, -1e-300, 2e-300), torch.float64),
    "infinite": ((0.0, math.inf), torch.float32),
}


def every_map(sizes, values, dtype=torch.float32, channels=1):
    """All maps ``(N, C, *sizes)`` over an alphabet."""
    table = torch.cartesian_prod(
        *[torch.tensor(values, dtype=dtype)] * (channels * math.prod(sizes))
    )
    return table.view(-1, channels, *sizes)


def random_maps(num, channels, sizes, values, generator):
    index = torch.randint(len(values), (num, channels, *sizes), generator=generator)
    return torch.tensor(values)[index]


def equal_images(a, b):
    return (a == b).flatten(1).all(1)


def has_offgrid_symmetry(x, stride):
    """Tell which maps equal themselves under a shift that is no multiple of the stride."""
    found = torch.zeros(len(x), dtype=torch.bool)
    for shift in all_shifts(x.shape[2:]):
        if any(d % step for d, step in zip(shift, stride, strict=True)):
            found |= equal_images(circular_shift(x, *shift), x)
    return found


def equal_up_to_a_shift(a, b):
    found = torch.zeros(len(a), dtype=torch.bool)
    for shift in all_shifts(a.shape[2:]):
        found |= equal_images(circular_shift(a, *shift), b)
    return found


def assert_choice_moves_with_the_map(choose, x, stride):
    """``choose(x)`` gives the phase; check every shift of every map of the batch."""
    steps = steps_of(stride, x.ndim - 2)
    symmetric = has_offgrid_symmetry(x, steps)
    phase = choose(x)
    y = polyphase_down(x, phase, steps)
    u = polyphase_up(y, phase, steps)
    for shift in all_shifts(x.shape[2:]):
        shifted = circular_shift(x, *shift)
        phase = choose(shifted)
        y_shifted = polyphase_down(shifted, phase, steps)
        u_shifted = polyphase_up(y_shifted, phase, steps)
        moved = equal_images(u_shifted, circular_shift(u, *shift)) | symmetric
        assert moved.all(), f"shift {shift} of {x[~moved][0].tolist()} moves the choice elsewhere"
        same = equal_up_to_a_shift(y_shifted, y)
        assert same.all(), f"shift {shift} of {x[~same][0].tolist()} keeps another component"
    return symmetric


def choose_without_logits(stride, dim):
    steps = steps_of(stride, dim)
    return lambda x: argmax_phase(torch.zeros(len(x), math.prod(steps)), x, steps)


class TestConstantLogits:
    def test_the_smallest_example(self):
        x = torch.tensor([[[1.0, 1.0, 0.0, 0.0]]])
        symmetric = assert_choice_moves_with_the_map(choose_without_logits(2, 1), x, 2)
        assert not symmetric.any()

    def test_the_lowest_index_would_not_do(self):
        def lowest(x):
            return torch.zeros(len(x), 2).argmax(1)

        x = torch.tensor([[[1.0, 1.0, 0.0, 0.0]]])
        with pytest.raises(AssertionError, match="moves the choice elsewhere"):
            assert_choice_moves_with_the_map(lowest, x, 2)

    @pytest.mark.parametrize(
        ("size", "stride"), [(8, 2), (8, 4), (9, 3), (10, 2), (10, 5), (12, 3), (12, 6)]
    )
    def test_every_binary_signal(self, size, stride):
        x = every_map((size,), (0.0, 1.0))
        assert len(x) == 2**size
        symmetric = assert_choice_moves_with_the_map(choose_without_logits(stride, 1), x, stride)
        assert symmetric[0]  # constant
        assert not symmetric[1]  # one-hot

    @pytest.mark.parametrize("name", ALPHABETS)
    @pytest.mark.parametrize(("size", "stride"), [(6, 2), (6, 3)])
    def test_every_signal_over(self, name, size, stride):
        x = every_map((size,), *ALPHABETS[name])
        assert_choice_moves_with_the_map(choose_without_logits(stride, 1), x, stride)

    @pytest.mark.parametrize(
        ("sizes", "stride"),
        [
            ((4, 3), (2, 3)),
            ((2, 6), (2, 3)),
            ((2, 6), 2),
            ((6, 2), (3, 1)),
            pytest.param((4, 4), 2, marks=pytest.mark.slow),
        ],
    )
    def test_every_binary_map(self, sizes, stride):
        x = every_map(sizes, (0.0, 1.0))
        assert_choice_moves_with_the_map(choose_without_logits(stride, 2), x, stride)

    def test_every_signal_with_two_channels(self):
        x = every_map((6,), (0.0, 1.0), channels=2)
        assert_choice_moves_with_the_map(choose_without_logits(2, 1), x, 2)

    @pytest.mark.parametrize("values", [(0.0, 1.0), (-2.0, -1.0, 0.0, 1.0, 2.0)])
    @pytest.mark.parametrize(
        ("channels", "sizes", "stride"),
        [
            (1, (12, 8), 2),
            (3, (6, 10), 2),
            (1, (9, 6), 3),
            (2, (4, 9), (2, 3)),
            (1, (4, 6, 2), 2),
            (2, (3, 4, 6), (1, 2, 2)),
            (64, (4, 6), 2),
        ],
    )
    def test_random_maps(self, channels, sizes, stride, values, generator):
        x = random_maps(100, channels, sizes, values, generator)
        assert_choice_moves_with_the_map(choose_without_logits(stride, len(sizes)), x, stride)

    @pytest.mark.parametrize("stride", [2, 3, (2, 3)])
    def test_maps_built_from_repeated_tiles(self, stride, generator):
        tiles = [
            random_maps(50, 1, size, (0.0, 1.0), generator) for size in ((3, 2), (2, 6), (6, 3))
        ]
        x = torch.cat([t.repeat(1, 1, 12 // t.shape[2], 6 // t.shape[3]) for t in tiles])
        symmetric = assert_choice_moves_with_the_map(choose_without_logits(stride, 2), x, stride)
        assert symmetric.any()
        assert not symmetric.all()

    @pytest.mark.parametrize("stride", [2, 3])
    def test_one_hot_maps_keep_the_component_with_the_pixel_or_always_the_same_way(self, stride):
        x = torch.eye(36).view(36, 1, 6, 6)
        phase = choose_without_logits(stride, 2)(x)
        offsets = torch.tensor(phase_offsets(stride, 2))[phase]
        pixels = torch.tensor(all_shifts((6, 6)))
        assert len(((offsets - pixels) % stride).unique(dim=0)) == 1

    def test_the_sign_of_zero_does_not_matter(self):
        x = every_map((6,), (0.0, 1.0))
        negative = torch.where(x == 0, -0.0, x)
        choose = choose_without_logits(2, 1)
        assert torch.equal(choose(negative), choose(x))

    @pytest.mark.slow
    @pytest.mark.parametrize(("size", "stride"), [(16, 2), (16, 4), (15, 3), (15, 5)])
    def test_every_longer_binary_signal(self, size, stride):
        x = every_map((size,), (0.0, 1.0))
        assert_choice_moves_with_the_map(choose_without_logits(stride, 1), x, stride)


class TestLogitsDecideFirst:
    def test_without_a_tie_the_map_does_not_matter(self, generator):
        logits = torch.randn(100, 4, generator=generator)
        maps = random_maps(100, 3, (4, 6), (0.0, 1.0), generator)
        assert torch.equal(argmax_phase(logits, maps, (2, 2)), logits.argmax(1))

    @pytest.mark.parametrize(
        ("sizes", "stride"), [((6,), (3,)), ((4, 6), (2, 3)), ((4, 4), (2, 2))]
    )
    def test_only_the_largest_logits_tie(self, sizes, stride, generator):
        maps = random_maps(200, 2, sizes, (0.0, 1.0), generator)
        logits = torch.randint(3, (200, math.prod(stride)), generator=generator).float()
        phase = argmax_phase(logits, maps, stride)
        assert phase.dtype == torch.int64
        assert torch.equal(logits.gather(1, phase[:, None])[:, 0], logits.amax(1))

    def test_each_image_is_decided_alone(self, generator):
        maps = random_maps(50, 2, (4, 6), (0.0, 1.0), generator)
        logits = torch.randint(2, (50, 4), generator=generator).float()
        together = argmax_phase(logits, maps, (2, 2))
        alone = [argmax_phase(logits[i : i + 1], maps[i : i + 1], (2, 2)) for i in range(50)]
        assert torch.equal(together, torch.cat(alone))

    def test_negative_and_infinite_logits(self):
        maps = torch.arange(8.0).view(1, 1, 8).repeat(3, 1, 1)
        logits = torch.tensor([[-5.0, -7.0], [-math.inf, -3.0], [math.inf, 0.0]])
        assert argmax_phase(logits, maps, (2,)).tolist() == [0, 1, 0]

    def test_empty_batch(self):
        phase = argmax_phase(torch.zeros(0, 4), torch.zeros(0, 3, 4, 6), (2, 2))
        assert phase.shape == (0,)
        assert phase.dtype == torch.int64

    def test_no_gradient_is_asked_for(self):
        logits = torch.zeros(2, 2, requires_grad=True)
        maps = torch.rand(2, 1, 6, requires_grad=True)
        assert not argmax_phase(logits, maps, (2,)).requires_grad

    def test_layout_does_not_matter(self, generator):
        maps = random_maps(100, 3, (4, 6), (0.0, 1.0), generator)
        choose = choose_without_logits(2, 2)
        last = maps.to(memory_format=torch.channels_last)
        assert torch.equal(choose(last), choose(maps))


class TestFingerprints:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_neighbouring_values_of_every_size_differ(self, dtype):
        exponents = range(-149, 128) if dtype == torch.float32 else range(-1074, 1024)
        power = torch.tensor([2.0**e for e in exponents], dtype=dtype)
        ends = torch.tensor([0.0, math.inf], dtype=dtype)
        values = torch.cat([power, power.nextafter(ends[0]), power.nextafter(ends[1])]).unique()
        codes = ties._pixels(torch.cat([values, -values[1:]])[None, None])
        assert len(codes.unique()) == 2 * len(values) - 1

    @pytest.mark.parametrize("axis", [1, 2])
    def test_an_axis_is_the_polynomial_of_what_follows(self, axis, generator):
        code = torch.randint(ties._PRIME, (2, 5, 7), generator=generator)
        base, prime, size = 214_013, ties._PRIME, code.shape[axis]
        powers = [pow(base, k + 1, prime) for k in range(size)]
        terms = [code.roll(-1 - k, axis) * power % prime for k, power in enumerate(powers)]
        assert torch.equal(ties._whole_axis(code, axis, base), sum(terms) % prime)

    def test_axes_and_channels_beyond_the_table(self, generator):
        choose = choose_without_logits(2, 1)
        for channels, size in ((1, 5000), (5000, 4)):
            x = random_maps(10, channels, (size,), (0.0, 1.0), generator)
            assert torch.equal(choose(x.roll(1, 2)), 1 - choose(x))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_no_value_is_read_by_the_host(self, dtype):
        x = torch.empty(2, 3, 4, 6, dtype=dtype, device="meta")
        phase = break_ties(torch.empty(2, 6, device="meta"), x, (2, 3))
        assert phase.shape == (2,)


class Choose(torch.nn.Module):
    def forward(self, x):
        return argmax_phase(torch.zeros(x.shape[0], 4), x, (2, 2))


class TestTraced:
    @pytest.mark.parametrize("dynamic", [False, True])
    def test_compiled_choice_is_the_eager_one(self, dynamic, generator):
        torch.compiler.reset()
        compiled = torch.compile(argmax_phase, fullgraph=True, backend="eager", dynamic=dynamic)
        for sizes in ((4, 6), (6, 10)):
            maps = random_maps(100, 2, sizes, (0.0, 1.0), generator)
            for logits in (torch.zeros(100, 4), torch.randn(100, 4, generator=generator)):
                eager = argmax_phase(logits, maps, (2, 2))
                assert torch.equal(compiled(logits, maps, (2, 2)), eager)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
    def test_exported_choice_is_the_eager_one(self, dtype, generator):
        values = torch.tensor([0.0, 1.0, -1 / 3, torch.finfo(dtype).max, 1e-7], dtype=dtype)
        values = torch.cat([values, values.nextafter(values[1])]) if dtype.itemsize > 2 else values
        example = values[torch.randint(len(values), (3, 2, 4, 6), generator=generator)]
        batch, height, width = (torch.export.Dim(name) for name in ("batch", "height", "width"))
        sizes = {"x": {0: batch, 2: 2 * height, 3: 2 * width}}
        program = torch.export.export(Choose(), (example,), dynamic_shapes=sizes)
        translated = torch.onnx.export(program, dynamo=True, verbose=False).model_proto
        session = onnxruntime.InferenceSession(translated.SerializeToString())
        for size in ((4, 6), (6, 10)):
            maps = values[torch.randint(len(values), (50, 2, *size), generator=generator)]
            maps[:25] = maps[:25].sign()
            expected = Choose()(maps)
            assert torch.equal(program.module()(maps), expected)
            (phase,) = session.run(None, {session.get_inputs()[0].name: maps.numpy()})
            assert torch.equal(torch.from_numpy(phase), expected)


def selectors(channels, dim):
    conv = ts.ConvSelector(channels, 16, dim=dim).eval()
    zero = ts.ConvSelector(channels, 16, dim=dim).eval()
    for parameter in zero.parameters():
        torch.nn.init.zeros_(parameter)
    norms = {f"norm {p}": ts.NormSelector(p).eval() for p in (1, 2, math.inf)}
    return {"conv": conv, "conv with zero weights": zero, **norms}


class TestSelectors:
    NAMES = tuple(selectors(1, 1))

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("values", [(0.0, 1.0), (-1.0, 1.0)])
    @pytest.mark.parametrize(("size", "stride"), [(8, 2), (9, 3)])
    def test_every_signal(self, name, values, size, stride):
        selector = selectors(1, 1)[name]
        x = every_map((size,), values)
        assert_choice_moves_with_the_map(lambda x: selector.choose(x, stride), x, stride)

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize(
        ("channels", "sizes", "stride"),
        [(1, (4, 6), 2), (2, (6, 3), 3), (1, (4, 6), (2, 3)), (1, (2, 4, 4), (1, 2, 2))],
    )
    def test_random_binary_maps(self, name, channels, sizes, stride, generator):
        selector = selectors(channels, len(sizes))[name]
        x = random_maps(200, channels, sizes, (0.0, 1.0), generator)
        assert_choice_moves_with_the_map(lambda x: selector.choose(x, stride), x, stride)

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("channels", [1, 16])
    @pytest.mark.parametrize(
        ("coarse", "stride"),
        [((7,), 2), ((3,), 3), ((5, 3), 2), ((7, 7), 2), ((3, 2), 3), ((1, 3, 3), 2)],
    )
    def test_enlarged_pixels(self, name, channels, coarse, stride, generator):
        # Images enlarged by repeating pixels: all components are equal, but for a shift.
        dim = len(coarse)
        selector = selectors(channels, dim)[name]
        x = torch.randn(2, channels, *coarse, generator=generator)
        for axis in range(2, 2 + dim):
            x = x.repeat_interleave(stride, axis)
        with torch.no_grad():
            assert_choice_moves_with_the_map(lambda x: selector.choose(x, stride), x, stride)

    @pytest.mark.parametrize("name", NAMES)
    def test_these_maps_do_tie(self, name):
        selector = selectors(1, 1)[name]
        logits = selector(every_map((8,), (0.0, 1.0)), 2)
        assert (logits[:, 0] == logits[:, 1]).sum() > 16
