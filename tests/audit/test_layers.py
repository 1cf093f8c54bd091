import pytest
import torch
from torch import nn

import trueshift as ts
from trueshift._cpu.conditions import limits
from trueshift._torchvision import import_torchvision
from trueshift.audit import audit
from trueshift.audit.layers import as_map, map_error
from trueshift.convert import convert
from trueshift.report.words import break_text, verdict

torchvision = import_torchvision()
import timm  # noqa: E402


def circular(a, b, stride=1):
    return nn.Conv2d(a, b, 3, stride, padding=1, padding_mode="circular")


def network(*middle):
    torch.manual_seed(0)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)]
    return nn.Sequential(circular(3, 4), nn.ReLU(), *middle, *head)


IMAGES = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_the_module_that_breaks_is_named():
    result = audit(network(circular(4, 4), circular(4, 4, 2), nn.ReLU()), IMAGES, shifts=4)
    assert [layer.name for layer in result.layers] == [str(i) for i in range(8)]
    assert result.first_break.name == "3"
    assert result.largest_increase.name == "3"
    assert result.layers[2].error < 1e-6
    assert result.layers[3].error > 0.1
    assert result.layers[3].input_error == result.layers[2].error
    assert result.layers[3].shape == (4, 4, 4)


def test_zero_padding_breaks_less_than_a_stride():
    result = audit(network(nn.Conv2d(4, 4, 3, padding=1)), IMAGES, shifts=4)
    assert result.first_break.name == "2"
    assert 1e-3 < result.layers[2].error < 1


def test_polyphase_layers_do_not_break():
    result = audit(network(ts.LPD(4), circular(4, 4), ts.APS(4)), IMAGES, shifts=4)
    kinds = [layer.kind for layer in result.layers]
    assert kinds[2:5] == ["LPD", "Conv2d", "APS"]
    assert result.first_break is None
    assert max(layer.error for layer in result.layers) < 1e-6


def test_modules_called_twice_are_counted():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.relu = nn.ReLU()

        def forward(self, x):
            return self.relu(self.relu(x) - 1).mean((2, 3))

    names = [layer.name for layer in audit(Twice(), IMAGES, shifts=1).layers]
    assert names == ["relu", "relu (call 2)"]


@pytest.mark.parametrize("kind", ["circular", "standard"])
def test_error_of_a_map_that_moves_along_is_zero(kind):
    wide = torch.randn(2, 3, 20, 16)
    shift, window = (2, -4), (12, 8)
    still, moved = (wide[:, :, 4 - a : 16 - a, 4 - b : 12 - b] for a, b in ((0, 0), shift))
    if kind == "circular":
        still = wide[:, :, :12, :8]
        moved = still.roll(shift, (2, 3))
    coarse = torch.cat([still, moved])[:, :, ::2, ::2]
    assert map_error(torch.cat([still, moved]), window, shift, kind) == 0
    assert map_error(coarse, window, shift, kind) == 0
    assert map_error(coarse, window, (1, 0), kind) > 0.5


def test_error_of_a_map_that_is_counted_from_an_origin_is_zero():
    still = torch.randn(2, 3, 8, 8)
    assert map_error(torch.cat([still, still]), (8, 8), (1, 2), "circular") == 0


def test_error_is_relative():
    y = torch.tensor([[3.0, 4.0], [3.0, 9.0]])
    assert map_error(y, (8, 8), (1, 0), "circular") == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((2, 5, 4, 4), (2, 5, 4, 4)),
        ((2, 4, 4, 96), (2, 96, 4, 4)),  # channels last
        ((2, 16, 7), (2, 7, 4, 4)),  # tokens
        ((2, 17, 7), (2, 7, 4, 4)),  # and a class token
        ((2, 7, 1, 1), (2, 7)),
        ((2, 7), (2, 7)),
        ((2, 13, 7), None),
        ((2,), None),
    ],
)
def test_what_is_seen_as_a_map(shape, wanted):
    seen = as_map(torch.zeros(shape), (16, 16))
    assert (None if seen is None else tuple(seen.shape)) == wanted


def test_margins_are_differences_of_the_two_largest_logits():
    down = ts.LPD(3).eval()
    model = nn.Sequential(down, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    (margin,) = audit(model, IMAGES, shifts=3).margins
    best, second = down.selector(IMAGES).detach().topk(2).values.unbind(1)
    assert margin.name == "0.selector"
    assert margin.num_images == 3
    assert margin.num_ties == 0
    assert margin.smallest == pytest.approx(float((best - second).min()), rel=1e-4)
    assert margin.median == pytest.approx(float((best - second).median()), rel=1e-4)


def test_ties_are_counted_and_choices_kept():
    images = torch.cat([IMAGES[:1], torch.ones(1, 3, 8, 8)])
    model = nn.Sequential(ts.APS(3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    result = audit(model, images, shifts=3, examples=[0])
    assert (result.margins[0].num_ties, result.margins[0].smallest) == (1, 0.0)
    (choice,) = result.choices
    assert choice.components.shape == (4, 4, 4)
    norms = [float(IMAGES[0, :, i::2, j::2].norm()) for i in (0, 1) for j in (0, 1)]
    assert choice.chosen == choice.largest == norms.index(max(norms))


def test_converted_networks_have_margins():
    net = network(circular(4, 4, 2), nn.ReLU())
    new = convert(net, "aps", IMAGES)
    result = audit(new, IMAGES, shifts=5)
    assert result.consistency == 1
    assert len(result.margins) == 1
    assert result.margins[0].num_images == 3
    assert result.first_break is None


def test_converted_windows_and_positions_do_not_break():
    options = {"img_size": 16, "patch_size": 4, "depths": (2,), "num_heads": (2,), "embed_dim": 8}
    swin = timm.create_model(
        "swin_tiny_patch4_window7_224", num_classes=3, window_size=2, **options
    )
    vit = torchvision.models.VisionTransformer(16, 4, 1, 2, 8, 16, num_classes=3)
    nn.init.normal_(vit.heads.head.weight)
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    for net in (swin, vit):
        before = audit(net.eval(), images, shifts=4)
        assert before.first_break is not None
        assert not before.only_rounds
        after = audit(convert(net, "aps", images, positions="canonical"), images, shifts=4)
        assert after.only_rounds
        assert after.first_break is after.largest_increase is None
        assert max(layer.error for layer in after.layers) < 1e-4
        assert after.consistency == 1
        assert "up to rounding" in verdict(after) or after.bitwise_equal


def test_margins_are_of_all_batches_and_of_the_first_kind():
    model = nn.Sequential(ts.LPD(3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for kind in ("circular", "standard", "both"):
        (margin,) = audit(model, IMAGES, shifts=3, kind=kind, batch_size=2, window=4).margins
        assert margin.num_images == 3


def test_an_operation_between_modules_is_found():
    class Sliced(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after = circular(3, 4), circular(4, 4)

        def forward(self, x):
            return self.after(self.before(x)[:, :, ::2, ::2]).mean((2, 3))

    result = audit(Sliced(), IMAGES, shifts=3)
    assert result.first_break.name == "after"
    assert "an operation just before after (Conv2d)" in break_text(result)


@pytest.mark.parametrize("method", ["aps", "lps"])
def test_the_choice_shown_is_the_one_made_also_in_ties(method):
    net = ts.models.resnet(ts.Sampling(method), (1, 1), (4, 8), num_classes=3, stem="cifar").eval()
    spot = torch.zeros(1, 3, 8, 8)
    spot[..., 3, 4] = 1
    for image in (spot, torch.ones(1, 3, 8, 8), torch.randn(1, 3, 8, 8)):
        (choice,) = audit(net, image, shifts=1, examples=0).choices
        with torch.no_grad():
            assert choice.chosen == int(net.features(image)[-1].steps[0].phase)


def test_modules_that_take_a_batch_in_parts_are_compared_as_a_whole():
    class Parts(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.net, self.size = net, size

        def forward(self, x):
            return torch.cat([self.net(part) for part in x.split(self.size)])

    net = network(circular(4, 4, 2))
    whole, parts = (audit(Parts(size), IMAGES, shifts=2).layers for size in (6, 4))
    assert [layer.name for layer in parts] == [layer.name for layer in whole]
    errors = [[layer.error for layer in layers] for layers in (parts, whole)]
    assert errors[0] == pytest.approx(errors[1], abs=1e-6)
    assert [layer.error > 1e-4 for layer in whole[:3]] == [False, False, True]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_scripted_networks_have_no_layers_to_observe():
    scripted = torch.jit.trace(network().eval(), IMAGES)
    result = audit(scripted, IMAGES, shifts=3)
    assert result.layers == ()
    assert 0 <= result.consistency <= 1


@pytest.mark.parametrize("method", ["aps", "lps"])
def test_maps_that_are_computed_in_parts_change_no_number(method):
    torch.manual_seed(0)
    model = ts.models.resnet(ts.Sampling(method), (1, 1), (8, 16), num_classes=3).eval()
    images = torch.randn(5, 3, 32, 32)
    whole = audit(model, images, shifts=3, batch_size=8)
    with limits(chunk=2 * 8 * 32 * 32):
        parts = audit(model, images, shifts=3, batch_size=8)
    assert {margin.num_images for margin in whole.margins} == {5}
    assert parts.margins == whole.margins
    assert parts.layers == whole.layers
