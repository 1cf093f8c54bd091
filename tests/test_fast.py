"""Every kernel of ``_cpu`` compared with the formula that it is registered for.

A case gives the arguments of a formula and the kernel that must take them once thresholds are out
of the way. Values, first and second derivatives are compared with the plain formula, on both sides
of every threshold, in both memory formats and 1-D to 3-D; where bits must not depend on the
position, they are compared for a shifted map.
"""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

import trueshift as ts
from trueshift import exact, functional, ties, windows
from trueshift._cpu.conditions import LIMITS, limits
from trueshift._dispatch import KERNELS

SMALL = {"chunk": 8, "window": 0, "fill": 0}
LARGE = dict.fromkeys(SMALL, 2**40)
SIDES = {"small": SMALL, "as is": {}, "large": LARGE}
SIZES = {1: (12,), 2: (8, 12), 3: (4, 6, 4)}
FORMULAS = {
    name: getattr(module, name)
    for module in (functional, windows, exact, ties)
    for name in KERNELS
    if hasattr(module, name)
}


def normal(*shape, dtype=torch.float32, learns=False):
    return torch.randn(*shape, dtype=dtype, requires_grad=learns)


class Make:
    """Makes the arguments of a case: maps of a dimension, memory format and type."""

    def __init__(self, dim, last, dtype, learns):
        self.dim, self.last, self.dtype, self.learns = dim, last, dtype, learns
        self.stride = (2,) * dim

    def map(self, channels=4, batch=3, *, learns=None, extra=0):
        x = normal(batch, channels, *(n + extra for n in SIZES[self.dim]), dtype=self.dtype)
        if self.last:
            x = x.contiguous(memory_format=exact.last_format(x.ndim))
        return x.requires_grad_(self.learns if learns is None else learns)

    def small(self, channels=4):
        return self.map(channels)[(..., *(slice(0, n // 2) for n in SIZES[self.dim]))].clone()

    def weight(self, *shape, size=3):
        return normal(*shape, *[size] * self.dim, dtype=self.dtype, learns=self.learns)

    def vector(self, *shape):
        return normal(*shape, dtype=self.dtype, learns=self.learns)

    @property
    def theta(self):
        return self.weight(5, 4), self.vector(5), self.weight(5, 5), self.vector(5)

    @property
    def hard(self):
        return torch.tensor([1, 0, 2**self.dim - 1])

    @property
    def soft(self):
        phase = torch.rand(3, 2**self.dim, dtype=self.dtype).softmax(1)
        return phase.requires_grad_(self.learns)

    @property
    def one_hot(self):
        phase = nn.functional.one_hot(self.hard, 2**self.dim).to(self.dtype)
        return phase.requires_grad_(self.learns)

    def tri(self, size=3):
        return (
            functional.binomial_kernel(size, self.dim)
            .repeat(4, *[1] * (1 + self.dim))
            .to(self.dtype)
        )

    @property
    def ddac(self):
        kinds = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
        norm = kinds[self.dim](2 * 3**self.dim).to(self.dtype).eval()
        return functional.Adaptive(self.weight(2 * 3**self.dim, 4), norm, 2)

    def conv(self, dilation=1):
        return functional.Conv(self.weight(5, 4), self.vector(5), (dilation,) * self.dim)

    @property
    def reach(self):
        return ((1, 2),) * self.dim


def moves(dim):
    return [tuple(2 * o for o in offsets) for offsets in windows.phase_offsets((2,) * dim)]


# kernel: (arguments, keywords, whether gradients are recorded); all strides are 2
CASES = {
    "argmax_where_tied": lambda m: ((normal(3, 2**m.dim), m.map(learns=False), m.stride), {}),
    "choose_by_rounded_norms": lambda m: ((x := m.map(learns=False), 1, m.stride, x), {}),
    "choose_by_rounded_sums": lambda m: ((x := m.map(), m.theta, m.stride, "circular", x), {}),
    "trained_logits": lambda m: ((m.map(), m.theta, m.stride, "circular"), {}),
    "collapsed_logits": lambda m: ((m.map(), m.theta, m.stride, "zeros"), {}),
    "copy_components": lambda m: ((m.map(), m.hard, m.stride), {}),
    "keep_hard": lambda m: ((m.map(), m.hard, m.stride), {}),
    "mix_components": lambda m: ((m.map(), m.soft, m.stride), {}),
    "weigh_components": lambda m: ((m.map(), m.soft, m.stride), {}),
    "share_among_components": lambda m: ((m.small(), m.soft, m.stride), {}),
    "place_hard": lambda m: ((m.small(), m.hard, m.stride), {}),
    "spread_components": lambda m: ((m.small(), m.soft, m.stride), {}),
    "blur_keeping_nothing": lambda m: ((m.map(), m.tri(), "circular"), {}),
    "blur_down_padded": lambda m: ((m.map(), m.tri(4), 0, m.stride, "zeros"), {}),
    "blur_down_in_half": lambda m: ((m.map(), m.tri(), m.soft, m.stride, "circular"), {}),
    "fill_between": lambda m: ((m.small(), m.tri(), m.hard, m.stride, "circular"), {}),
    "transposed_blur_up": lambda m: ((m.small(), m.tri(), m.soft, m.stride, "zeros"), {}),
    "blur_up_in_chunks": lambda m: ((m.small(), m.tri(4), m.hard, m.stride, "circular"), {}),
    "adaptive_blur_kept": lambda m: (
        (m.map(), m.ddac, m.hard, m.stride, "circular"),
        {"exact": True},
    ),
    "sum_rows": lambda m: ((m.map(), m.map(2 * 3**m.dim, extra=-2), 2, 3, (1,) * m.dim), {}),
    "convolve_the_short_way": lambda m: (
        (m.map(), m.conv(29), (1,) * m.dim, "circular"),
        {},
    ),
    "max_by_axis": lambda m: ((m.map(), (3,) * m.dim), {}),
    "max_blur_in_chunks": lambda m: ((m.map(), m.tri(), "circular"), {}),
    "pool_windows": lambda m: ((m.map(), None, m.hard, "circular"), {}),
    "peaks_twice": lambda m: ((m.map(), m.tri(), m.soft, "circular"), {}),
    "circular_pad": lambda m: ((m.map(), m.reach, "circular"), {}),
    "copy_windows": lambda m: (
        (m.map(), [torch.tensor([-2, 5, 3])] * m.dim, [n + 1 for n in SIZES[m.dim]]),
        {},
    ),
    "mix_phase_windows": lambda m: ((m.map(), m.soft, m.stride, m.reach, "circular"), {}),
    "mix_moves_at_once": lambda m: ((m.map(), m.soft, moves(m.dim), "circular"), {}),
}
# Further arguments that take other branches of a kernel.
VARIANTS = {
    "argmax_where_tied, tied": lambda m: (
        (torch.ones(3, 2**m.dim), m.map(learns=False), m.stride),
        {},
    ),
    "choose_by_rounded_norms, tied": lambda m: (
        (torch.ones_like(x := m.map()), 2, m.stride, x),
        {},
    ),
    "choose_by_rounded_sums, tied": lambda m: (
        (torch.ones_like(x := m.map()), m.theta, m.stride, "circular", x),
        {},
    ),
    "collapsed_logits, circular": lambda m: (
        (m.map(), m.theta, m.stride, "circular"),
        {"exact": True},
    ),
    "blur_keeping_nothing, even": lambda m: ((m.map(), m.tri(4), "zeros"), {}),
    "blur_keeping_nothing, per axis": lambda m: (
        (m.map(), m.tri(2), ("circular", "zeros", "circular")[: m.dim]),
        {},
    ),
    "blur_down_in_half, even": lambda m: ((m.map(), m.tri(4), 1, m.stride, "zeros"), {}),
    "fill_between, zeros": lambda m: ((m.small(), m.tri(), m.hard, m.stride, "zeros"), {}),
    "transposed_blur_up, even": lambda m: ((m.small(), m.tri(2), m.soft, m.stride, "circular"), {}),
    "blur_up_in_chunks, soft": lambda m: (
        (m.small(), m.tri(), m.soft, m.stride, "reflect" if m.dim < 3 else "replicate"),
        {},
    ),
    "adaptive_blur_kept, one phase": lambda m: (
        (m.map(), m.ddac, 1, m.stride, "circular"),
        {},
    ),
    "peaks_twice, hard": lambda m: ((m.map(), None, m.hard, "zeros"), {}),
    "mix_moves_at_once, uneven": lambda m: (
        (m.map(), m.soft, moves(m.dim)[::-1], "zeros"),
        {},
    ),
    "mix_phase_windows, straight": lambda m: ((m.map(), m.one_hot, m.stride, m.reach, "zeros"), {}),
    "mix_components, straight": lambda m: ((m.map(), m.one_hot, m.stride), {}),
    "mix_components, nothing": lambda m: ((m.map(), 0 * m.one_hot, m.stride), {}),
    "spread_components, straight": lambda m: ((m.small(), m.one_hot, m.stride), {}),
    "weigh_components, half": lambda m: ((m.map(), m.soft, m.stride), {}),
    "share_among_components, half": lambda m: ((m.small(), m.soft, m.stride), {}),
}
FORMULA_OF = {kernel.run.__name__: name for name, kernels in KERNELS.items() for kernel in kernels}
KERNEL = {kernel.run.__name__: kernel for kernels in KERNELS.values() for kernel in kernels}
# Which kernels run only while gradients are recorded, or only while they are not.
TRAINING = {"trained_logits", "peaks_twice", "transposed_blur_up", "blur_keeping_nothing"}
TRAINING |= {"blur_down_in_half"}
INFERENCE = {"choose_by_rounded_sums", "choose_by_rounded_norms", "argmax_where_tied"}
INFERENCE |= {"max_blur_in_chunks"}
INFERENCE |= {"sum_rows", "pool_windows", "copy_components", "fill_between"}
# What a kernel does not take: only 2-D, only default format, only channels-last, only float32.
PLANE_ONLY = {"weigh_components", "share_among_components"}
DEFAULT_ONLY, LAST_ONLY = PLANE_ONLY | {"transposed_blur_up"}, {"sum_rows"}
FLOAT32_ONLY = PLANE_ONLY | {"sum_rows", "transposed_blur_up"}
BFLOAT16_ONLY = {"blur_down_in_half"}


def kernel_of(case):
    return case.split(",")[0]


def dtype_of(case, usual):
    if kernel_of(case) in BFLOAT16_ONLY or case.endswith(", half"):
        return torch.bfloat16
    return torch.float32 if kernel_of(case) in FLOAT32_ONLY else usual


def settings():
    for case in (*CASES, *VARIANTS):
        name = kernel_of(case)
        for dim in SIZES:
            for last in (False, True):
                if last and (dim == 1 or name in DEFAULT_ONLY):
                    continue
                if dim != 2 and name in PLANE_ONLY:
                    continue
                if not last and name in LAST_ONLY:
                    continue
                yield pytest.param(case, dim, last, id=f"{case}-{dim}d{'-last' if last else ''}")


def arguments(case, dim, last, dtype, learns):
    torch.manual_seed(0)
    return (CASES | VARIANTS)[case](Make(dim, last, dtype, learns))


def takes(kernel, args, kwargs):
    return kernel.when is None or kernel.when(*args, **kwargs)


def flat(args):
    for arg in args:
        yield from flat(arg) if isinstance(arg, tuple | list) else (arg,)


def derivatives(formula, args, kwargs):
    """The result, and its first and second derivatives by every input that has some."""
    y = formula(*args, **kwargs)
    inputs = [a for a in flat(args) if isinstance(a, torch.Tensor) and a.requires_grad]
    torch.manual_seed(1)
    weights = torch.randn(y.shape, dtype=y.dtype)
    first = torch.autograd.grad((y * weights).sum(), inputs, create_graph=True, allow_unused=True)
    some = [g for g in first if g is not None and g.requires_grad]
    second = [None] * len(inputs)
    if some:
        total = sum((g.sin() * torch.arange(g.numel()).view(g.shape)).sum() for g in some)
        second = torch.autograd.grad(total, inputs, allow_unused=True)
    return y, [*first, *second]


def assert_same(ours, plain, dtype):
    tolerance = {"rtol": 2e-4, "atol": 2e-4} if dtype == torch.float32 else {}
    for one, other in zip(ours, plain, strict=True):
        if one is None or other is None:  # no graph leads there, or one of zeros
            assert all(g is None or not g.any() for g in (one, other))
        else:
            if dtype == torch.bfloat16:  # eight bits, in sums of terms of either sign
                tolerance = {"rtol": 0, "atol": 0.03 * other.abs().max().item()}
            torch.testing.assert_close(one, other, check_dtype=False, **tolerance)


def test_every_kernel_has_a_case():
    assert set(CASES) == set(KERNEL)
    assert set(FORMULA_OF.values()) <= set(FORMULAS)


@pytest.mark.parametrize(("case", "dim", "last"), list(settings()))
def test_the_kernel_takes_its_case(case, dim, last):
    learns = case in TRAINING or kernel_of(case) in TRAINING
    args, kwargs = arguments(case, dim, last, dtype_of(case, torch.float32), learns)
    with limits(**SMALL), nullcontext() if learns else torch.no_grad():
        assert takes(KERNEL[kernel_of(case)], args, kwargs)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("case", "dim", "last"), list(settings()))
def test_values(case, dim, last, side):
    name = kernel_of(case)
    dtype = dtype_of(case, torch.float64)
    args, kwargs = arguments(case, dim, last, dtype, learns=False)
    formula = FORMULAS[FORMULA_OF[name]]
    with torch.no_grad(), limits(**SIDES[side]):
        ours, direct = formula(*args, **kwargs), None
        if takes(KERNEL[name], args, kwargs):
            direct = KERNEL[name].run(*args, **kwargs)
        with ts.plain():
            expected = formula(*args, **kwargs)
    for result in (ours, direct):
        if result is None:
            continue
        if result.dtype == torch.int64:
            assert torch.equal(result, expected)
        else:
            assert_same([result], [expected], dtype)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("case", "dim", "last"), [s for s in settings() if kernel_of(s.values[0]) not in INFERENCE]
)
def test_derivatives(case, dim, last, side):
    name = kernel_of(case)
    dtype = dtype_of(case, torch.float64)
    formula = FORMULAS[FORMULA_OF[name]]
    args, kwargs = arguments(case, dim, last, dtype, learns=True)
    with limits(**SIDES[side]):
        y, ours = derivatives(formula, args, kwargs)
    with ts.plain():
        z, plain = derivatives(formula, args, kwargs)
    if case.endswith(", half"):  # the second ones round by several percent; float32 has a case
        ours, plain = ours[: len(ours) // 2], plain[: len(plain) // 2]
    assert_same([y, *ours], [z, *plain], dtype)


SHIFTED = [  # (formula, arguments, by how much its result moves when its first argument moves by n)
    ("keep_phase", lambda m: (m.map(), m.hard, m.stride), 0.5),
    ("blur", lambda m: (m.map(), m.tri(), "circular"), 1),
    ("blur_down", lambda m: (m.map(), m.tri(), m.hard, m.stride, "circular"), 0.5),
    ("blur_up", lambda m: (m.map(), m.tri(), m.hard, m.stride, "circular"), 2),
    ("max_blur", lambda m: (m.map(), m.tri(), "circular"), 1),
    ("max_down", lambda m: (m.map(), m.tri(), m.hard, "circular"), 0.5),
    (
        "conv_down",
        lambda m: (m.map(), m.conv(), m.hard, m.stride, "circular"),
        0.5,
    ),
    (
        "convolution",
        lambda m: (m.map(), m.conv(), (1,) * m.dim, "circular"),
        1,
    ),
    ("order_free_mean", lambda m: (m.map(), tuple(range(2, 2 + m.dim))), 0),
]


@pytest.mark.parametrize("mode", ["kernels", "plain"])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("last", [False, True], ids=["default", "last"])
@pytest.mark.parametrize(("name", "make", "factor"), SHIFTED, ids=[row[0] for row in SHIFTED])
def test_bits_do_not_depend_on_the_position(name, make, factor, last, side, mode):
    torch.manual_seed(0)
    x, *rest = make(Make(2, last, torch.float32, False))
    keywords = {"exact": True} if name.startswith("conv") else {}
    formula = FORMULAS[name]
    with torch.no_grad(), limits(**SIDES[side]), ts.plain() if mode == "plain" else nullcontext():
        expected = formula(x, *rest, **keywords)
        for shift in [(2, 0), (4, 6), (6, 10)]:
            moved = formula(ts.shifts.circular_shift(x, *shift), *rest, **keywords)
            by = [int(n * factor) for n in shift]
            assert torch.equal(
                moved, ts.shifts.circular_shift(expected, *by) if factor else expected
            )


def test_logits_permute_bit_by_bit():
    make = Make(2, False, torch.float32, False)
    x, theta = make.map(), make.theta
    for formula in (
        lambda x: functional.conv_logits(x, theta, (2, 2), "circular", exact=True),
        lambda x: functional.norm_logits(x, 2, (2, 2), exact=True),
    ):
        with torch.no_grad():
            expected = formula(x).view(3, 2, 2)
            for shift in [(1, 0), (0, 1), (3, 5), (2, 4)]:
                moved = formula(ts.shifts.circular_shift(x, *shift)).view(3, 2, 2)
                assert torch.equal(moved, expected.roll(shift, (1, 2)))


def test_thresholds_are_restored_and_named():
    before = LIMITS.chunk
    with pytest.raises(ValueError, match="unknown"), limits(chunks=1):
        pass
    with limits(chunk=1):
        assert LIMITS.chunk == 1
    assert LIMITS.chunk == before


@pytest.fixture
def _broken_kernels():
    def fail(*_, **__):
        raise AssertionError("a kernel ran")

    before = {name: list(kernels) for name, kernels in KERNELS.items()}
    for kernels in KERNELS.values():
        kernels[:] = [kernel._replace(run=fail) for kernel in kernels]
    yield
    for name, kernels in KERNELS.items():
        kernels[:] = before[name]


@pytest.mark.usefixtures("_broken_kernels")
def test_plain_runs_no_kernel():
    x, layer = torch.randn(2, 4, 8, 8), ts.LPD(4, antialias="tri3").eval()
    with ts.plain():
        assert layer(x).shape == (2, 4, 4, 4)
    with pytest.raises(AssertionError, match="a kernel ran"):
        layer(x)


def _network(train):
    network = ts.models.unet(ts.Sampling("lps", "tri3"), 2, 2, widths=(4, 8)).train(train)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return network


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own jvp
@pytest.mark.usefixtures("_broken_kernels")
def test_transforms_of_functions_take_the_formulas(train):
    network, x = _network(train), torch.randn(2, 2, 8, 8)
    parameters = dict(network.named_parameters())

    def total(parameters, x):
        return torch.func.functional_call(network, parameters, (x[None],)).sum()

    per_image = torch.func.vmap(torch.func.grad(total), (None, 0), randomness="different")
    grads = per_image(parameters, x)
    assert all(torch.isfinite(grad).all() for grad in grads.values())
    _, tangent = torch.func.jvp(network, (x,), (torch.ones_like(x),))
    assert torch.isfinite(tangent).all()
    with forward_ad.dual_level():
        y = network(forward_ad.make_dual(x, torch.ones_like(x)))
        assert torch.isfinite(forward_ad.unpack_dual(y).tangent).all()


@pytest.mark.usefixtures("_broken_kernels")
def test_fake_tensors_take_the_formulas():
    layer = ts.LPD(4, antialias="tri3").eval()
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert layer(torch.empty(2, 4, 8, 8)).shape == (2, 4, 4, 4)


def test_the_first_argument_may_be_named():
    y = ts.functional.order_free_mean(x=torch.tensor([1.0, 3.0]), dim=0)
    assert round(y.item(), 9) == 2


def test_an_expanded_map_has_a_gradient():
    x = torch.randn(1, 1, 8, 8, requires_grad=True)
    ts.LPD(4, antialias="tri3")(x.expand(2, 4, 8, 8)).sum().backward()
    assert torch.isfinite(x.grad).all()


def test_a_learned_kernel_has_a_gradient():
    kernel = functional.binomial_kernel(3, 2).repeat(2, 1, 1, 1).requires_grad_()
    phase = torch.full((1, 4), 0.25)
    functional.blur_up(torch.randn(1, 2, 4, 4), kernel, phase, (2, 2), "circular").sum().backward()
    assert kernel.grad is not None


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["choose_by_rounded_sums", "choose_by_rounded_norms"])
def test_scores_that_are_not_finite_are_an_error(name, value):
    args, kwargs = arguments(name, 2, False, torch.float32, learns=False)
    args[0][1, :, 0, 0] = value
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match=r"choose: scores must be finite.*(nan|inf)"),
    ):
        KERNEL[name].run(*args, **kwargs)
