import math
import re

import pytest
import torch
from torch import nn

import trueshift as ts
from trueshift.audit import LayerSelection, Outcome, Selection, audit, diagnose_selectors
from trueshift.convert import convert
from trueshift.report.words import selection_lines, selection_verdict


def network(spec):
    torch.manual_seed(0)
    return ts.models.resnet9(spec, widths=(8, 16), residual=(False, False)).eval()


def batches():
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 3, 8, 8, generator=generator), torch.arange(8) % 10) for _ in range(3)]


def accuracy(net):
    with torch.no_grad():
        return sum(int((net(x).argmax(1) == y).sum()) for x, y in batches()) / 24


class Reader(nn.Module):
    """Tells bright images from dark ones by the component that the selector finds brightest."""

    def __init__(self, scale):
        super().__init__()
        self.down = ts.LPD(1, 1)
        with torch.no_grad():
            for conv in (self.down.selector.conv1, self.down.selector.conv2):
                conv.weight.zero_()[..., 1, 1] = scale
                conv.bias.zero_()

    def forward(self, x):
        bright = self.down(x).mean((1, 2, 3))
        return torch.stack([bright, 1 - bright], 1)


def bright_pixels(num):
    """Images whose phase 0..3 is bright in the even ones; odd ones are dark."""
    x, label = torch.zeros(num, 1, 4, 4), torch.arange(num) % 2
    for k in range(num):
        i, j = divmod(k // 2 % 4, 2)
        x[k, :, i::2, j::2] = 1 - label[k] + 0.1
    return x, label


def resnet9_of_the_docs():
    options = {"stem": 16, "widths": (32, 64, 128), "residual": (False, True, True)}
    return ts.models.resnet9(ts.Sampling("lps", hidden="eighth"), num_classes=10, **options)


def resnet18_for_imagenet():
    return ts.models.resnet18(ts.Sampling("lps", hidden="eighth"), num_classes=10)


@pytest.mark.parametrize("build", [resnet9_of_the_docs, resnet18_for_imagenet])
def test_choices_are_observed_as_they_are_made_on_fast_paths(build):
    torch.manual_seed(0)
    net, x = build().eval(), torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        steps = net.features(x)[-1].steps
    selection = diagnose_selectors(net, [(x, torch.arange(4))], draws=1)
    assert len(selection.layers) == len(steps)
    for layer, step in zip(selection.layers, steps, strict=True):
        shares = step.phase.bincount() / 4
        wanted = -sum(float(share) * math.log2(share) for share in shares if share)
        assert layer.entropy == pytest.approx(wanted)


@pytest.mark.parametrize("select", ["output", "input"])
def test_selectors_of_aps_take_the_place_of_learned_ones(select):
    net = network(ts.Sampling("lps", hidden=4, select_from=select))
    aps = network(ts.Sampling("aps", select_from=select))
    aps.load_state_dict(net.state_dict(), strict=False)
    selection = diagnose_selectors(net.train(), batches(), draws=0)
    assert selection.num_images == 24
    assert (selection.accuracy, selection.norm.accuracy) == (accuracy(net.eval()), accuracy(aps))
    assert [layer.name for layer in selection.layers] == ["stages.0.down", "stages.1.down"]
    assert 0 < selection.mean("same_as_norm") < 1
    assert (selection.random, selection.averaged, selection.gain) == ((), None, None)
    assert isinstance(net.stages[0].down.selector, ts.ConvSelector)  # left as it was
    assert not {"choose", "scores"} & vars(net.stages[0].down.selector).keys()


def test_first_layer_is_compared_with_the_norm_of_its_map():
    net = network(ts.Sampling("lps", hidden=4))
    x = torch.randn(16, 3, 8, 8)
    with torch.no_grad():
        before = net.stages[0].norm(net.stages[0].conv(net.stem(x))).relu()
        phase = net.features(x)[0].steps[0].phase
    largest = ts.NormSelector(2).eval().choose(before, 2)
    first = diagnose_selectors(net, [(x, None)], draws=0).layers[0]
    assert first.same_as_norm == float((phase == largest).double().mean())


def test_a_layer_that_scores_some_channels_is_compared_on_the_map_it_samples():
    torch.manual_seed(0)
    spec = ts.Sampling("lps", hidden=4, select_from="input")
    net = ts.models.resnet(spec, (1, 1), (8, 16), num_classes=10).eval()
    selection = diagnose_selectors(net, batches())
    names = [layer.name for layer in selection.layers]
    assert names == ["conv1_down", "maxpool_down", "layer2.0.down"]
    assert selection.accuracy == accuracy(net)


def test_numbers_of_a_selector_follow_from_its_logits():
    net, (x, labels) = Reader(1.0).eval(), bright_pixels(16)
    (layer,) = diagnose_selectors(net, [(x[:6], labels[:6]), (x[6:], labels[6:])]).layers
    logits = net.down.selector(x).detach().double()
    best, second = logits.topk(2).values.unbind(1)
    assert (layer.name, layer.num_phases) == ("down", 4)
    assert layer.gap == pytest.approx(float((best - second).mean()))
    noise = (
        -torch.empty(20_000, 16, 4).exponential_(generator=torch.Generator().manual_seed(0)).log()
    )
    draws = (logits + noise).argmax(2) == logits.argmax(1)
    assert layer.agreement == pytest.approx(float(draws.double().mean()), abs=0.005)
    assert layer.entropy == pytest.approx(2)  # each phase is as often the bright one
    assert layer.same_as_norm == 1


@pytest.mark.parametrize("scale", [3.0, 0.01])
def test_what_choices_are_worth(scale):
    selection = diagnose_selectors(Reader(scale), [bright_pixels(64)], draws=8, phases=True)
    (layer,) = selection.layers
    assert selection.accuracy == selection.norm.accuracy == 1
    random = [one.accuracy for one in selection.random]
    assert len(set(random)) > 1
    assert selection.gain == pytest.approx(1 - sum(random) / 8)
    assert 0.25 < selection.gain < 0.5  # three of four choices miss the bright pixel
    assert 0 < selection.gain_error < 0.1
    assert layer.averaged == Outcome(0.5, 0.5)  # a quarter of the brightness is not enough
    assert layer.at_chance is (scale < 1)
    text = selection_verdict(selection)
    assert ("This selector has logits within the noise of training" in text) is (scale < 1)
    assert "The choice is worth 3" in text


def test_averages_over_random_paths_are_of_outputs():
    selection = diagnose_selectors(Reader(1.0), [bright_pixels(64)], draws=1)
    assert selection.averaged == selection.random[0]
    many = diagnose_selectors(Reader(1.0), [bright_pixels(64)], draws=64)
    assert many.averaged.accuracy == 0.5
    assert many.random[0] == selection.random[0]  # the seed decides


def test_masks_and_pixels_without_label():
    torch.manual_seed(0)
    net = ts.models.unet(ts.Sampling("lps", hidden=2), num_classes=3, widths=(4, 8)).eval()
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        masks = net(x).argmax(1)
    masks[:, :4] = 255
    masks[:, 6:] = 2 - masks[:, 6:] // 2  # another one
    assert diagnose_selectors(net, [(x, masks)]).accuracy == 0.5
    with pytest.raises(ValueError, match=r"labels must have shape \(2, 8, 8\).*got \(2,\)"):
        diagnose_selectors(net, [(x, torch.zeros(2))])


def test_converted_networks():
    conv = nn.Conv2d(3, 4, 3, 2, padding=1, padding_mode="circular")
    net = nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = torch.randn(4, 3, 8, 8)
    selection = diagnose_selectors(convert(net, "lps", x), [(x, None)], phases=True)
    assert len(selection.layers) == 1
    assert selection.accuracy is None
    assert "Other choices change " in selection_verdict(selection)


def test_networks_without_learned_selectors():
    with pytest.raises(ValueError, match="no learned selector to diagnose"):
        diagnose_selectors(network(ts.Sampling("aps")), batches())
    with pytest.raises(ValueError, match="or there were none"):
        diagnose_selectors(network(ts.Sampling("lps")), [])


def test_an_audit_diagnoses_learned_selectors():
    x, labels = bright_pixels(8)
    result = audit(Reader(0.01), x, labels, shifts=2)
    assert result.selection.accuracy == 1
    assert "This selector has logits within the noise" in str(result)
    assert result.to_dict()["selection"]["layers"][0]["name"] == "down"
    assert audit(Reader(0.01), x, shifts=2, layers=False).selection is None
    aps = nn.Sequential(ts.APS(1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert audit(aps, x, shifts=2).selection is None


def layer(name, agreement):
    return LayerSelection(name, 4, 1.9, 0.001, agreement, 0.25, None)


@pytest.mark.parametrize(
    ("layers", "gain", "words"),
    [
        ([layer("a", 0.2503), layer("b", 0.251)], 0.001, "All 2 .* at chance: .*25.0 % to 25.1 %"),
        ([layer("a", 0.25)], 0.001, "This selector chooses at chance: .* do as well"),
        ([layer("a", 0.25), layer("b", 0.9)], 0, r"1 of 2 selectors \(a\) chooses at chance"),
        ([layer("a", 0.25)], 0.02, "has logits within the noise .* is worth 2.00 points"),
        ([layer("a", 0.9)], 0.02, "at least 90.0 % of .* is worth 2.00 points of accuracy"),
        ([layer("a", 0.9)], -0.02, "Random choices do better, by 2.00 "),
        ([layer("a", 0.9)], None, "change up to 10.0 % of the answers"),
    ],
)  # fmt: skip
def test_verdicts(layers, gain, words):
    error, own = (None, None) if gain is None else (0.001, 0.8)
    random = (Outcome(own, 0.9), Outcome(own, 0.92))
    selection = Selection(
        100, tuple(layers), own, Outcome(own, 0.95), random, random[0], gain, error
    )
    lines = selection_lines(selection)
    assert re.search(words, lines[0])
    assert any("entropy 1.90 of 2 bits" in line for line in lines)
