import math
import re

import pytest
import torch

import trueshift as ts
from trueshift.shifts import circular_shift

X = torch.randn(2, 8, 12, 8)
ODD = torch.randn(1, 8, 225, 224)
SIGNAL = torch.randn(2, 8, 12)
HARD = torch.tensor([0, 1])
f = ts.functional


def raises(error, text):
    return pytest.raises(error, match=re.escape(text))


@pytest.mark.parametrize(
    ("stride", "error"),
    [
        (1, ValueError),
        (0, ValueError),
        (-2, ValueError),
        ((1, 1), ValueError),
        ((2, 0), ValueError),
        (2.0, TypeError),
        (True, TypeError),
        ("2", TypeError),
        ((), TypeError),
        ((2, 2.5), TypeError),
    ],
)
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("polyphase_split", lambda stride: f.polyphase_split(X, stride)),
        ("polyphase_down", lambda stride: f.polyphase_down(X, HARD, stride)),
        ("polyphase_up", lambda stride: f.polyphase_up(X, HARD, stride)),
        ("PolyphaseDown", lambda stride: ts.PolyphaseDown(ts.FixedSelector(), stride)),
        ("PolyphaseUp", lambda stride: ts.PolyphaseUp(stride)),
        ("LPD", lambda stride: ts.LPD(8, stride=stride)),
    ],
)
def test_stride(name, call, stride, error):
    with raises(error, f"{name}: stride must be an integer >= 2"):
        call(stride)


def test_stride_of_another_dimension():
    with raises(ValueError, "stride (2, 2, 2) has 3 entries for 2 spatial axes"):
        f.polyphase_split(X, (2, 2, 2))


@pytest.mark.parametrize(
    "call",
    [
        lambda: f.polyphase_split(ODD, 2),
        lambda: f.polyphase_down(ODD, HARD[:1], 2),
        lambda: ts.LPD(8)(ODD),
        lambda: ts.APS(8)(ODD),
        lambda: ts.PolyphaseDown(ts.FixedSelector())(ODD),
        lambda: ts.PolyphaseDown(None)(ODD, phase=HARD[:1]),
        lambda: ts.ConvSelector(8)(ODD),
        lambda: ts.NormSelector()(ODD),
    ],
)
def test_a_size_that_the_stride_does_not_divide(call):
    said = "must be divisible by stride=2, got x of shape (1, 8, 225, 224)."
    with raises(ValueError, f"{said} Pad to (226, 224) or crop to (224, 224)."):
        call()


def test_a_size_smaller_than_the_stride_can_only_be_padded():
    with raises(ValueError, "got x of shape (1, 1, 2). Pad to (3,)."):
        f.polyphase_split(torch.ones(1, 1, 2), 3)


@pytest.mark.parametrize("x", [torch.ones(4, 4), torch.ones(1, 1, 2, 2, 2, 2)])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: f.polyphase_split(x, 2),
        lambda x: f.polyphase_down(x, HARD, 2),
        lambda x: ts.PolyphaseDown(ts.FixedSelector())(x),
        lambda x: ts.NormSelector()(x),
        lambda x: ts.FixedSelector().choose(x),
        lambda x: ts.GlobalAvgPool()(x),
    ],
)
def test_rank(call, x):
    with raises(ValueError, f"(B, C, *spatial), got shape {tuple(x.shape)}"):
        call(x)


@pytest.mark.parametrize(
    "layer", [ts.ConvSelector(8), ts.Blur(8), ts.AdaptiveBlur(8)], ids=lambda m: type(m).__name__
)
def test_layers_say_how_to_change_their_dimension(layer):
    with raises(ValueError, "must have 4 dimensions (B, C, *spatial), got shape (2, 8, 12)."):
        layer(SIGNAL)
    with raises(ValueError, "or pass dim= to the layer"):
        layer(SIGNAL)


@pytest.mark.parametrize(
    "layer", [ts.LPD(4), ts.Blur(4), ts.AdaptiveBlur(4, groups=2)], ids=lambda m: type(m).__name__
)
def test_channels(layer):
    with raises(ValueError, "built for 4 channels, got x of shape (2, 8, 12, 8) with 8"):
        layer(X)


def test_not_a_tensor():
    with raises(TypeError, "x must be a torch.Tensor, got list"):
        f.polyphase_split([[1, 2]], 2)


PHASES = [
    (HARD[:1], ValueError, "of shape (1,): need (2,)"),
    (torch.rand(2, 3), ValueError, "of shape (2, 3): need (2, 4)"),
    (torch.rand(2), ValueError, "of shape (2,): need (2, 4)"),
    (HARD.int(), TypeError, "got dtype torch.int32. Convert it with phase.long()"),
    (HARD.bool(), TypeError, "got dtype torch.bool"),
    ([0, 1], TypeError, "got list"),
    (torch.tensor([0, 4]), ValueError, "phase must be in 0..3, got 4"),
    (torch.tensor([-1, 0]), ValueError, "phase must be in 0..3, got -1"),
    (HARD.to("meta"), ValueError, "phase is on meta, x on cpu. Move it with phase.to(x.device)"),
]


@pytest.mark.parametrize(("phase", "error", "text"), PHASES)
@pytest.mark.parametrize(
    "call",
    [
        lambda phase: f.polyphase_down(X, phase, 2),
        lambda phase: f.polyphase_up(X, phase, 2),
        lambda phase: ts.PolyphaseDown(None)(X, phase=phase),
        lambda phase: ts.LPU(8)(X, phase),
    ],
)
def test_phase(call, phase, error, text):
    with raises(error, text):
        call(phase)


def test_a_follower_needs_a_phase():
    with raises(ValueError, "built with selector=None, so it follows another branch. Pass phase="):
        ts.PolyphaseDown(None)(X)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: ts.Sampling("lsp"),
            "unknown method 'lsp'. Did you mean 'lps'? Choose from: stride",
        ),
        (lambda: ts.Sampling(antialias="tri"), "Did you mean 'tri3'?"),
        (lambda: ts.Sampling(padding_mode="circ"), "Did you mean 'circular'?"),
        (lambda: ts.Sampling(hidden="eight"), "Did you mean 'eighth'?"),
        (lambda: ts.Sampling(select_from="out"), "Did you mean 'output'?"),
        (lambda: ts.Sampling(train_rule="gumble"), "Did you mean 'gumbel'?"),
        (lambda: ts.Sampling(test_rule="max"), "Choose from: argmax, softmax."),
        (lambda: ts.LPD(8, antialias="adapt4"), "Did you mean 'adapt5'?"),
        (lambda: ts.APS(8, antialias="blur"), "unknown filter 'blur'"),
        (lambda: ts.LPD(8, padding_mode="zero"), "Did you mean 'zeros'?"),
        (lambda: ts.Blur(8, padding_mode="wrap"), "unknown padding_mode 'wrap'"),
        (lambda: ts.AdaptiveBlur(8, padding_mode="wrap"), "unknown padding_mode 'wrap'"),
        (lambda: ts.ConvSelector(8, train_rule="soft"), "Did you mean 'softmax'?"),
        (lambda: ts.NormSelector(train_rule="gumbel"), "Choose from: argmax, random."),
        (
            lambda: ts.ConvSelector(8, train_rule="random"),
            "Choose from: gumbel, straight, softmax.",
        ),
    ],
)
def test_unknown_names_come_with_a_suggestion(call, text):
    with raises(ValueError, text):
        call()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ts.AdaptiveBlur(12), ValueError, "channels=12 and groups=8. Try groups=4."),
        (lambda: ts.LPD(12, antialias="adapt3"), ValueError, "must be divisible by groups"),
        (lambda: ts.AdaptiveBlur(8, size=4), ValueError, "size must be odd, got 4"),
        (lambda: ts.Blur(8, size=8), ValueError, "size must be 1 to 7, got 8"),
        (lambda: ts.Blur(8, size=0), ValueError, "size must be at least 1, got 0"),
        (lambda: ts.Blur(8.0), TypeError, "channels must be an integer, got 8.0"),
        (lambda: ts.ConvSelector(0), ValueError, "channels must be at least 1, got 0"),
        (lambda: ts.LPD(8, 0), ValueError, "hidden_channels must be at least 1, got 0"),
        (lambda: ts.Sampling(hidden=0), ValueError, "hidden must be at least 1, got 0"),
        (lambda: ts.Sampling(groups=0), ValueError, "groups must be at least 1, got 0"),
        (lambda: ts.Sampling(dim=4), ValueError, "dim must be 1, 2 or 3, got 4"),
        (
            lambda: ts.Sampling("stride", train_rule="random"),
            ValueError,
            "method='stride' cannot train with random phases. Pass method='aps'",
        ),
        (lambda: ts.Sampling("lps", train_rule="random"), ValueError, "method='lps' cannot train"),
        (lambda: ts.Sampling(norm=3), ValueError, "p must be 1, 2 or inf, got 3"),
        (lambda: ts.NormSelector(0), ValueError, "p must be 1, 2 or inf, got 0"),
        (lambda: ts.FixedSelector(-1), ValueError, "index must be at least 0, got -1"),
        (lambda: ts.FixedSelector(0.5), TypeError, "index must be an integer, got 0.5"),
        (lambda: ts.PolyphaseDown(ts.FixedSelector(4))(X), ValueError, "has 4 phases, got index 4"),
        (
            lambda: ts.PolyphaseDown("lps"),
            TypeError,
            "selector must be a module or None, got 'lps'",
        ),
        (
            lambda: ts.PolyphaseDown(None, antialias="tri3"),
            TypeError,
            "Only LPD, APS, LPU and Sampling take names",
        ),
        (lambda: ts.PolyphaseUp(antialias="tri3"), TypeError, "antialias must be a module or None"),
        (
            lambda: ts.set_tau(torch.nn.Linear(2, 2), 1.0),
            ValueError,
            "Linear has no ConvSelector",
        ),
        (lambda: circular_shift(X, *range(5)), ValueError, "got 5 offsets for a tensor of shape"),
        (lambda: f.polyphase_merge(X, 2), ValueError, "makes 2 components, got 8 in shape"),
        (lambda: f.polyphase_merge(X[0], 2), ValueError, "4 to 6 dimensions (B, P, C, *spatial)"),
    ],
)
def test_arguments(call, error, text):
    with raises(error, text):
        call()


@pytest.mark.parametrize("tau", [0, -1.0, math.nan, math.inf, "1"])
def test_tau(tau):
    with raises(ValueError, f"tau must be a positive number, got {tau!r}"):
        ts.LPD(8, tau=tau)
    with raises(ValueError, "set_tau: tau must be a positive number"):
        ts.set_tau(ts.LPD(8), tau)


@pytest.mark.parametrize("size", [(24, 17), (22, 16), (24,), (24, 14)])
def test_output_size(size):
    with raises(ValueError, f"output_size {size} does not fit"):
        ts.LPU(8)(X, HARD, output_size=size)


def test_output_size_of_up_sampling():
    y, phase = torch.randn(1, 2, 4, 4), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(TypeError, match=r"output_size must be one integer per axis, got 7"):
        ts.LPU(2)(y, phase, output_size=7)


def test_a_temperature_is_a_number():
    with pytest.raises(ValueError, match="tau must be a positive number, got True"):
        ts.ConvSelector(2, tau=True)


@pytest.mark.parametrize("layer", [ts.LPD(2), ts.APS(2)], ids=["LPD", "APS"])
def test_maps_without_pixels(layer):
    with pytest.raises(ValueError, match=r"has no pixels, got shape \(1, 2, 0, 4\)"):
        layer.eval()(torch.randn(1, 2, 0, 4))
