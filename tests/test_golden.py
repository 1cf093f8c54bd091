"""The numbers of the authors' own layers, reproduced from their weights and inputs.

``data/golden_layers.pt`` maps the name of a fixture to its input, its weights (under the authors'
names) and its output. Selections are compared exactly, values to 1e-5.
"""

from pathlib import Path

import pytest
import torch

import trueshift as ts
from trueshift.functional import polyphase_merge, polyphase_split, polyphase_up

PATH = Path(__file__).parent / "data" / "golden_layers.pt"
GOLDEN = torch.load(PATH, weights_only=True)

NAMES = {
    "component_selection.get_logits.": "selector.",
    "component_selection.gumbel_tau": "selector.tau",
    "_antialias_layer.": "antialias.",
}
FILTER = "_antialias_layer.filt"  # not a weight of ours: a formula
TAU = "component_selection.gumbel_tau"

LPD = {
    "lpd_c8_h1_circular_test": {"hidden_channels": 1},
    "lpd_c8_h8_circular_test": {},
    "lpd_c8_h8_zeros_test": {"padding_mode": "zeros"},
    "lpd_ddac3_g1_circular_test": {"antialias": "adapt3", "groups": 1},
    "lpd_ddac3_g2_circular_test": {"antialias": "adapt3", "groups": 2},
    "lpd_ddac3_g2_select_unfiltered_circular_test": {
        "antialias": "adapt3",
        "groups": 2,
        "score_filtered": False,
    },
    "lpd_lpf2_select_filtered_circular_test": {"antialias": "rect2"},
    "lpd_lpf2_select_unfiltered_circular_test": {"antialias": "rect2", "score_filtered": False},
    "lpd_lpf3_select_filtered_circular_test": {"antialias": "tri3"},
    "lpd_lpf3_select_unfiltered_circular_test": {"antialias": "tri3", "score_filtered": False},
    "lpd_lpf3_zeropad_filter_zeros_logits_test": {"antialias": "tri3", "padding_mode": "zeros"},
}
LPD_SOFT = {
    "lpd_c8_h8_circular_test_convex_tau0p5": {"test_rule": "softmax"},
    "lpd_c8_h8_circular_train_convex_tau0p5": {"train_rule": "softmax"},
    "lpd_c8_h8_circular_train_gumbel_tau0p5_seed77": {"train_rule": "gumbel"},
}
GRADIENTS = ["lpd_c8_h8_circular_train_convex_tau0p5"]
ODD_SIZE = ["lpd_c8_h8_circular_test_odd15x17"]
SHORTCUT = [
    "lpd_shortcut_precomputed_logits_lpf3_test",
    "lpd_shortcut_precomputed_prob_lpf3_train",
]
APS = {
    "aps_l2_lpf3_select_filtered": {"antialias": "tri3"},
    "aps_l2_lpf3_select_unfiltered": {"antialias": "tri3", "score_filtered": False},
    "aps_l2_nofilter": {},
}
LPU = {
    "apsu_max2norm": {},
    "lpu_test": {},
    "lpu_test_convex_tau0p5": {},
    "lpu_test_ddac3_g2_scale2": {"antialias": "adapt3", "groups": 2},
    "lpu_test_lpf2_scale2": {"antialias": "rect2"},
    "lpu_test_lpf3_scale2": {"antialias": "tri3"},
    "lpu_train_given_prob": {},
}
ROUND_TRIP = ["lpu_of_lpd_roundtrip"]
LOWPASS = {f"lowpass{size}_circular_same": size for size in range(1, 8)}
DDAC_EVAL = ["ddac3_g2_zero_eval"]
DDAC_TRAIN = ["ddac3_g2_circular_train"]
ORDER = ["poly_order"]
GROUPS = [LPD, LPD_SOFT, GRADIENTS, ODD_SIZE, SHORTCUT, APS, LPU, ROUND_TRIP]
GROUPS += [LOWPASS, DDAC_EVAL, DDAC_TRAIN, ORDER]


def assert_near(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def our_name(name):
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def load(layer, state, drop=()):
    """Load a state dict of the authors; their filters are checked against our formula."""
    kernels = {name: value for name, value in state.items() if name == FILTER}
    weights = {n: v for n, v in state.items() if n != FILTER and n not in drop}
    layer.load_state_dict({our_name(name): value for name, value in weights.items()})
    for kernel in kernels.values():
        scale = kernel.sum() / layer.antialias.kernel.sum()
        assert scale in (1, 4)  # 4 after up-sampling by 2 x 2
        assert_near(layer.antialias.kernel * scale, kernel)
    return layer


def hard_phase(fixture):
    return fixture["index"] if "index" in fixture else fixture["logits"].argmax(1)


@pytest.mark.parametrize("name", LPD)
def test_lpd_hard(name):
    fixture = GOLDEN[name]
    layer = load(ts.LPD(8, **LPD[name]), fixture["state_dict"]).eval()
    x = fixture["input"]
    y, phase = layer(x, return_phase=True)
    assert torch.equal(phase, fixture["index"])
    assert_near(y, fixture["output"])
    filtered = x if layer.antialias is None else layer.antialias(x)
    if "filtered" in fixture:
        assert_near(filtered, fixture["filtered"])
    assert_near(layer.selector(filtered if layer.score_filtered else x), fixture["logits"])
    if "components" in fixture:
        assert torch.equal(polyphase_split(x, 2).transpose(0, 1), fixture["components"])


@pytest.mark.parametrize("name", LPD_SOFT)
def test_lpd_soft(name):
    fixture = GOLDEN[name]
    layer = load(ts.LPD(8, **LPD_SOFT[name]), fixture["state_dict"])
    layer.train(fixture["mode"].startswith("train"))
    assert layer.selector.tau == fixture["tau"]
    assert_near(layer.selector(fixture["input"]), fixture["logits"])
    torch.manual_seed(77)
    y, phase = layer(fixture["input"], return_phase=True)
    assert_near(phase, fixture["prob"])
    assert_near(y, fixture["output"])


@pytest.mark.parametrize("name", GRADIENTS)
def test_lpd_gradients(name):
    fixture = GOLDEN[name]
    layer = load(ts.LPD(8, **LPD_SOFT[name]), fixture["state_dict"]).train()
    x = fixture["input"].clone().requires_grad_()
    y = layer(x)
    (y * torch.arange(y.numel(), dtype=y.dtype).cos().view(y.shape)).sum().backward()
    assert_near(x.grad, fixture["grad_input"])
    gradients = {n: p.grad for n, p in layer.named_parameters()}
    expected = {our_name(n): grad for n, grad in fixture["grad_params"].items()}
    assert gradients.keys() == expected.keys()
    for parameter, gradient in gradients.items():
        assert_near(gradient, expected[parameter])


@pytest.mark.parametrize("name", ODD_SIZE)
def test_lpd_refuses_odd_sizes_where_the_authors_add_zeros(name):
    fixture = GOLDEN[name]
    layer = load(ts.LPD(8), fixture["state_dict"]).eval()
    message = r"divisible by stride=2, got x of shape \(4, 8, 15, 17\). Pad to \(16, 18\)"
    with pytest.raises(ValueError, match=message):
        layer(fixture["input"])
    # Padded on purpose, it is their result.
    y, phase = layer(torch.nn.functional.pad(fixture["input"], (0, 1, 0, 1)), return_phase=True)
    assert torch.equal(phase, fixture["index"])
    assert_near(y, fixture["output"])


@pytest.mark.parametrize("name", SHORTCUT)
def test_shortcut_follows_a_phase(name):
    fixture = GOLDEN[name]
    layer = ts.PolyphaseDown(None, antialias=ts.Blur(8, 3))
    load(layer, fixture["state_dict"], drop=[TAU]).train(fixture["mode"] == "train")
    phase = fixture["prob"] if "prob" in fixture else hard_phase(fixture)
    assert_near(layer(fixture["input"], phase=phase), fixture["output"])


@pytest.mark.parametrize("name", APS)
def test_aps(name):
    fixture = GOLDEN[name]
    layer = load(ts.APS(8, **APS[name]), fixture["state_dict"]).eval()
    y, phase = layer(fixture["input"], return_phase=True)
    assert torch.equal(phase, fixture["index"])
    assert_near(y, fixture["output"])


@pytest.mark.parametrize("name", LPU)
def test_lpu(name):
    fixture = GOLDEN[name]
    layer = load(ts.LPU(8, **LPU[name]), fixture.get("state_dict", {}), drop=[TAU]).eval()
    if "prob" in fixture:
        phase = fixture["prob"]
    elif "tau" in fixture:
        phase = (fixture["logits"] / fixture["tau"]).softmax(1)
    else:
        phase = hard_phase(fixture)
    assert_near(layer(fixture["input"], phase), fixture["output"])


@pytest.mark.parametrize("name", ROUND_TRIP)
def test_lpu_of_lpd(name):
    fixture = GOLDEN[name]
    lpd = load(ts.LPD(8), fixture["state_dict_lpd"]).eval()
    y, phase = lpd(fixture["input"], return_phase=True)
    assert torch.equal(phase, hard_phase(fixture))
    assert torch.equal(y, fixture["down"])
    assert torch.equal(polyphase_up(y, phase, 2), fixture["up"])


@pytest.mark.parametrize("name", LOWPASS)
def test_blur(name):
    fixture, size = GOLDEN[name], LOWPASS[name]
    layer = ts.Blur(8, size)
    assert_near(layer.kernel, fixture["filt"])
    assert fixture["pad_tuple"] == [(size - 1) // 2, size // 2] * 2
    assert_near(layer(fixture["input"]), fixture["output"])


@pytest.mark.parametrize("name", DDAC_EVAL)
def test_adaptive_blur(name):
    fixture = GOLDEN[name]
    layer = load(ts.AdaptiveBlur(8, 3, 2, "zeros"), fixture["state_dict"]).eval()
    assert_near(layer(fixture["input"]), fixture["output"])


@pytest.mark.parametrize("name", DDAC_TRAIN)
def test_adaptive_blur_and_its_statistics_while_training(name):
    fixture = GOLDEN[name]
    layer = load(ts.AdaptiveBlur(8, 3, 2), fixture["state_dict_before"]).train()
    assert_near(layer(fixture["input"]), fixture["output"])
    state = layer.state_dict()
    assert state.keys() == fixture["state_dict_after"].keys()
    for key, value in fixture["state_dict_after"].items():
        assert_near(state[key], value)
    before = fixture["state_dict_before"]["bn.running_mean"]
    assert not torch.allclose(state["bn.running_mean"], before)


@pytest.mark.parametrize("name", ORDER)
def test_order_of_the_components(name):
    fixture = GOLDEN[name]
    components = fixture["components"].transpose(0, 1)
    assert torch.equal(polyphase_split(fixture["input"], 2), components)
    assert torch.equal(polyphase_merge(components, 2), fixture["input"])


def test_every_fixture_is_used():
    used = {name for group in GROUPS for name in group}
    assert used == GOLDEN.keys()


def test_the_file_stays_small():
    assert PATH.stat().st_size < 1_500_000
