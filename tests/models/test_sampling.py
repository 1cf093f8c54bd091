"""Operations and the down-sampling after them, chosen on their inputs."""

import pytest
import torch
from helpers import is_circular_shift_of
from networks import trained

import trueshift as ts
from trueshift.layers.conv import SameConv2d
from trueshift.layers.maximum import max_filter
from trueshift.models import sampling
from trueshift.models.sampling import max_and_sample
from trueshift.padding import pad
from trueshift.shifts import circular_shift

INPUT = ts.Sampling("lps", hidden="eighth", select="input")


def looked_at(model):
    """Channels and width of every selector, in order."""
    selectors = [m for m in model.modules() if isinstance(m, ts.ConvSelector)]
    return [(one.channels, one.conv1.out_channels) for one in selectors]


def test_selectors_are_as_wide_as_what_they_look_at():
    assert looked_at(ts.models.resnet18(INPUT)) == [(3, 8), (16, 8), (64, 8), (128, 16), (256, 32)]
    assert looked_at(ts.models.resnet50(INPUT)) == [
        (3, 8),
        (16, 8),
        (128, 16),
        (256, 32),
        (512, 64),
    ]
    same = INPUT.replace(hidden="same")
    small = ts.models.resnet18(same, stem="cifar")
    assert looked_at(small) == [(64, 64), (128, 128), (256, 256)]
    assert looked_at(ts.models.resnet9(same)) == [(16, 32), (32, 64), (64, 128)]
    output = ts.models.resnet18(INPUT.replace(select="output"))
    assert looked_at(output) == [(64, 8), (64, 8), (128, 16), (256, 32), (512, 64)]
    given = ts.models.resnet18(INPUT.replace(hidden=(1, 2, 3, 4, 5)))
    assert [width for _, width in looked_at(given)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("filter_name", [None, "tri3"])
def test_ties_of_the_channels_looked_at_are_broken_by_all(filter_name):
    spec = ts.Sampling("lps", filter_name, select="input")
    down, x = spec.down(5, input_channels=3).eval(), torch.rand(1, 5, 8, 12)
    x[:, :3] = 1
    with torch.inference_mode():
        whole, step = max_and_sample(down, x, "circular", "input")
        phases = {step.phase.item()}
        for shift in ((0, 1), (1, 0), (1, 1), (3, 5), (2, 2)):
            found, step = max_and_sample(down, circular_shift(x, *shift), "circular", "input")
            phases.add(step.phase.item())
            assert is_circular_shift_of(found[0], whole[0])
    assert len(phases) > 1


@pytest.mark.parametrize("mode", ["circular", "zeros"])
@pytest.mark.parametrize("name", ["rect2", "tri3", "bin5"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_filtered_maxima_in_one_copy_are_those_of_the_whole_map(name, mode, layout):
    x = torch.randn(4, 5, 12, 20).contiguous(memory_format=layout)
    for method in ("stride", "lps"):
        down = ts.Sampling(method, name, mode, select="input").down(5).eval()
        with torch.inference_mode():
            found, step = max_and_sample(down, x, mode, "input")
            dense = down.antialias(max_filter(pad(x, ((0, 1), (0, 1)), mode), 2))
            assert torch.equal(found, ts.functional.polyphase_down(dense, step.phase, 2))


def test_filters_keep_the_border_that_they_were_given():
    model = trained(
        ts.models.resnet(INPUT.replace(antialias="tri3"), (1, 1), (16, 16), num_classes=3)
    )
    model.maxpool_down.antialias = ts.Blur(16, 3, "zeros")
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        found = model(x)
    torch.testing.assert_close(found, model(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [(32, 32), (33, 41)])
def test_a_stem_with_zero_padding_takes_any_size(sizes):
    spec = INPUT.replace(padding_mode="zeros")
    x = torch.randn(2, 3, *sizes)
    for strided in (False, True):
        model = ts.models.resnet(spec, (1, 1), (16, 16), num_classes=3, strided_conv1=strided)
        assert trained(model)(x).isfinite().all()


class First(torch.nn.Module):
    """A user's selector, with no more than what selectors must have."""

    def choose(self, x, stride=2):
        return ts.NormSelector(1).eval().choose(x, stride)


@pytest.mark.parametrize("selector", [ts.NormSelector(), ts.ConvSelector(16, 4), First()])
def test_other_selectors_look_at_the_whole_map(selector):
    model = trained(ts.models.resnet(INPUT, (1, 1), (16, 16), num_classes=3))
    model.maxpool_down.selector = selector.eval()
    x = torch.randn(1, 3, 16, 16)
    moved = torch.cat([circular_shift(x, *shift) for shift in ((0, 0), (1, 2), (5, 3))])
    with torch.inference_mode():
        y = model(moved)
    assert torch.equal(y, y[:1].expand_as(y))


@pytest.mark.parametrize("batch", [1, 5])
def test_what_the_pooling_does_not_look_at_still_breaks_ties(batch):
    model = trained(ts.models.resnet(INPUT, (1, 1), (16, 16), num_classes=3))
    model.bn1.weight.data[:4] = 0  # all that is looked at is constant
    x = torch.randn(batch, 3, 16, 24)
    with torch.inference_mode():
        expected = model(x)
        for shift in ((0, 1), (1, 0), (2, 3), (7, 5)):
            assert torch.equal(model(circular_shift(x, *shift)), expected)


def test_a_part_of_the_channels_keeps_their_layout():
    x = torch.randn(2, 8, 6, 10).contiguous(memory_format=torch.channels_last)
    part = pad(x.narrow(1, 0, 3), ((1, 1), (1, 1)), "circular")
    assert part.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(part, pad(x, ((1, 1), (1, 1)), "circular")[:, :3])


@pytest.mark.parametrize(
    ("method", "filter_name", "places"),
    [("aps", None, 0), ("aps", "tri3", 1), ("lps", None, 2), ("lps", "tri3", 2)],
)
def test_stems_make_their_maps_with_borders_where_only_a_result_is_wanted(
    monkeypatch, method, filter_name, places
):
    bordered, sampled = [], sampling.sample_bordered
    monkeypatch.setattr(
        sampling, "sample_bordered", lambda *args: bordered.append(1) or sampled(*args)
    )
    spec = ts.Sampling(method, filter_name, hidden="eighth")
    model = trained(ts.models.resnet18(spec, num_classes=4))
    x = torch.randn(2, 3, 64, 64)
    expected = model(x)
    assert not bordered
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected)
        assert len(bordered) == places  # a norm reads no border, and the first layer has no filter
        seen = []
        model.maxpool_down.register_forward_hook(lambda *args: seen.append(args[1][0].shape))
        torch.testing.assert_close(model(x), expected)
    assert seen == [(2, 64, 32, 32)]
    assert len(bordered) == places + max(places - 1, 0)  # what is watched is called


@pytest.mark.parametrize("filter_name", [None, "tri3"])
@torch.no_grad()
def test_maps_with_borders_are_exact(monkeypatch, filter_name):
    bordered, sampled = [], sampling.sample_bordered
    monkeypatch.setattr(
        sampling, "sample_bordered", lambda *args: bordered.append(1) or sampled(*args)
    )
    spec = ts.Sampling("lps", filter_name, hidden="eighth")
    model = trained(ts.models.resnet18(spec, num_classes=4))
    x = torch.randn(2, 3, 64, 64)
    found = model(x)
    for shift in ((1, 0), (0, 1), (3, 5), (32, 33)):
        assert torch.equal(model(circular_shift(x, *shift)), found)
    assert len(bordered) == 10


class Doubled(SameConv2d):
    def forward(self, x):
        return 2 * super().forward(x)


def plain_conv(conv):
    own = torch.nn.Conv2d(3, 64, 7, padding=3, padding_mode="circular", bias=False)
    own.load_state_dict(conv.state_dict())
    return own


def doubled_conv(conv):
    conv.__class__ = Doubled
    return conv


OTHERS = {
    "group norm": ("bn1", lambda norm: torch.nn.GroupNorm(1, 64)),
    "instance norm": ("bn1", lambda norm: torch.nn.InstanceNorm2d(64)),
    "torch's convolution": ("conv1", plain_conv),
    "a convolution of a user": ("conv1", doubled_conv),
}


@pytest.mark.parametrize("name", OTHERS)
def test_modules_that_users_put_there_are_called(name):
    model = trained(ts.models.resnet18(ts.Sampling("lps", hidden="eighth"), num_classes=4))
    place, make = OTHERS[name]
    setattr(model, place, make(getattr(model, place)))
    x = torch.randn(2, 3, 64, 64)
    expected = model.eval()(x)
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected)


def test_a_selector_of_a_user_may_score_as_before():
    class Own(ts.ConvSelector):
        def scores(self, x, stride=2):
            return super().scores(x, stride).flip(1)

    torch.manual_seed(0)
    down, x = ts.PolyphaseDown(Own(3)).eval(), torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        phase = down.choose(x)
    assert torch.equal(phase, down.selector.scores(x).argmax(1))


def test_borders_are_copied_where_that_costs_less():
    down, x = ts.LPD(4, antialias="tri3").eval(), torch.zeros(1, 3, 224, 224)
    assert sampling._border(down, x, 147) is None  # gradients are recorded
    with torch.no_grad():
        assert sampling._border(down, x, 147) == ((3, 3), (3, 3))
        assert sampling._border(down, x, 49 * 64) is None
        assert sampling._border(down, x[..., :8, :8], 147) is None
        assert sampling._border(down, x.bfloat16(), 147) is None
        assert sampling._border(ts.APS(4).eval(), x, 147) is None  # reads none
        assert sampling._border(down.train(), x, 147) is None
