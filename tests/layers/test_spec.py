import copy
import dataclasses
import itertools
import pickle

import pytest
import torch

import trueshift as ts

METHODS = {"stride": ts.FixedSelector, "aps": ts.NormSelector, "lps": ts.ConvSelector}
FILTERS = {
    None: None,
    "rect2": (ts.Blur, 2),
    "tri3": (ts.Blur, 3),
    "bin4": (ts.Blur, 4),
    "bin5": (ts.Blur, 5),
    "bin6": (ts.Blur, 6),
    "bin7": (ts.Blur, 7),
    "adapt3": (ts.AdaptiveBlur, 3),
    "adapt5": (ts.AdaptiveBlur, 5),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("antialias", FILTERS)
def test_every_cell_of_the_grid_builds_its_selector_and_filter(method, antialias):
    spec = ts.Sampling(method, antialias)
    down = spec.down(16)
    assert isinstance(down.selector, METHODS[method])
    for layer in (down, spec.follow(16), spec.up(16)):
        if antialias is None:
            assert layer.antialias is None
            continue
        kind, size = FILTERS[antialias]
        assert isinstance(layer.antialias, kind)
        assert layer.antialias.size == size
    x = torch.randn(2, 16, 8, 12)
    y, phase = down.eval()(x, return_phase=True)
    assert y.shape == spec.follow(16).eval()(x, phase=phase).shape == (2, 16, 4, 6)
    assert spec.up(16).eval()(y, phase).shape == x.shape


@pytest.mark.parametrize(
    ("hidden", "channels", "width"),
    [("same", 24, 24), ("eighth", 64, 8), ("eighth", 4, 1), (5, 64, 5)],
)
def test_hidden_width(hidden, channels, width):
    spec = ts.Sampling("lps", hidden=hidden)
    assert spec.hidden_channels(channels) == width
    assert spec.down(channels).selector.conv1.out_channels == width


def test_every_field_reaches_its_layer():
    spec = ts.Sampling(
        "lps",
        "adapt5",
        padding_mode="zeros",
        hidden=3,
        dim=1,
        groups=2,
        score_filtered=False,
        train_rule="softmax",
        test_rule="softmax",
    )
    down = spec.down(4, stride=3)
    assert (down.stride, down.score_filtered, down.padding_mode) == (3, False, "zeros")
    selector, blur = down.selector, down.antialias
    assert (selector.train_rule, selector.test_rule) == ("softmax", "softmax")
    assert (selector.dim, selector.padding_mode) == (1, "zeros")
    assert (blur.groups, blur.size, blur.dim, blur.padding_mode) == (2, 5, 1, "zeros")
    assert ts.Sampling("aps", norm=1).down(4).selector.p == 1


def test_a_follower_has_no_selector_and_its_own_filter():
    spec = ts.Sampling("lps", "adapt3", groups=2)
    down, follow = spec.down(4), spec.follow(4)
    assert follow.selector is None
    assert follow.antialias is not down.antialias
    assert follow.antialias.conv.weight is not down.antialias.conv.weight


def test_is_a_value():
    spec = ts.Sampling("lps", "tri3")
    assert spec == ts.Sampling(method="lps", antialias="tri3")
    assert spec != ts.Sampling("aps", "tri3")
    assert len({spec, copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.method = "aps"
    assert dataclasses.replace(spec, method="aps") == ts.Sampling("aps", "tri3")


def test_defaults_are_those_of_the_paper():
    spec = ts.Sampling()
    assert dataclasses.asdict(spec) == {
        "method": "lps",
        "antialias": None,
        "padding_mode": "circular",
        "hidden": "same",
        "dim": 2,
        "groups": 8,
        "norm": 2,
        "score_filtered": True,
        "train_rule": "gumbel",
        "test_rule": "argmax",
        "select_from": "output",
        "selector_padding": None,
        "margin": 0,
    }


@pytest.mark.parametrize("build", ["down", "follow", "up"])
def test_two_layers_of_one_spec_share_nothing(build):
    spec = ts.Sampling("lps", "adapt3", groups=2)
    first, second = getattr(spec, build)(4), getattr(spec, build)(4)
    for a, b in itertools.product(first.parameters(), second.parameters()):
        assert a is not b


def test_one_width_per_layer():
    spec = ts.Sampling("lps", hidden=[4, 8])
    assert spec.hidden == (4, 8)
    assert [one.hidden for one in spec.per_layer(2)] == [4, 8]
    with pytest.raises(ValueError, match="names 2 widths, but the network has 3"):
        spec.per_layer(3)
    with pytest.raises(ValueError, match="one width per layer of a network"):
        spec.down(16)
    with pytest.raises(ValueError, match="hidden must be at least 1"):
        ts.Sampling("lps", hidden=(4, 0))


def test_selectors_of_the_input():
    down = ts.Sampling("lps", "tri3", hidden="eighth", select_from="input").down(
        64, input_channels=3
    )
    assert (down.selector.channels, down.selector.conv1.out_channels) == (3, 8)
    assert down.antialias.channels == 64
    with pytest.raises(ValueError, match=r"unknown select_from 'inputs'. Did you mean 'input'\?"):
        ts.Sampling("lps", select_from="inputs")


def test_the_border_of_selectors_may_differ():
    down = ts.Sampling("lps", "tri3", "zeros", selector_padding="circular").down(8)
    assert (down.selector.padding_mode, down.antialias.padding_mode) == ("circular", "zeros")
    with pytest.raises(ValueError, match="unknown selector_padding 'mirror'"):
        ts.Sampling("lps", selector_padding="mirror")
