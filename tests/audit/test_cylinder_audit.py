"""Audits and consistencies on a cylinder: images move along the axes that wrap only."""

import pytest
import torch
from networks import trained
from torch import nn

import trueshift as ts
from trueshift.metrics import CircularConsistency, MaskCircularConsistency
from trueshift.report.words import summary_rows, verdict


@pytest.fixture(scope="module")
def segmenter():
    torch.manual_seed(0)
    spec = ts.Sampling("lps", "tri3", ("zeros", "circular"), hidden=4)
    return trained(ts.models.unet(spec, 3, 2, widths=(4, 8)))


IMAGES = torch.randn(3, 3, 7, 8, generator=torch.Generator().manual_seed(1))


def test_an_audit_shifts_where_the_network_wraps(segmenter, tmp_path):
    result = ts.audit(segmenter, IMAGES)
    (measured,) = result.measurements
    assert measured.shifts == tuple((0, dx) for dx in (-4, -3, -2, -1, 1, 2, 3))
    assert measured.wraps == (False, True)
    assert result.bitwise_equal
    assert all(dy == 0 for dy, _ in (*result.view, *result.layer_shifts))
    assert "in 21 horizontally shifted images not one bit" in verdict(result)
    assert ("Shifted", "horizontally only, where the network wraps") in summary_rows(result)
    assert result.to_dict()["measurements"][0]["wraps"] == [False, True]
    assert "horizontally only" in result.to_html(tmp_path / "audit.html").read_text()


def test_the_caller_may_ask_for_other_axes(segmenter):
    result = ts.audit(segmenter, IMAGES, wraps=(True, True), layers=False)
    assert len(result.measurements[0].shifts) == 7 * 8 - 1
    assert not result.bitwise_equal
    assert "circularly shifted" in verdict(result)
    up = ts.audit(segmenter, IMAGES, wraps=(True, False), layers=False)
    assert "vertically shifted" in verdict(up)


def test_windows_fit_the_multiples_of_each_axis(segmenter):
    result = ts.audit(segmenter, torch.randn(2, 3, 11, 16), kind="both", layers=False)
    assert result.measurements[1].window == (8, 8)
    assert result.measurements[1].wraps == (True, True)


@pytest.mark.parametrize("wraps", [(False, False), (True,), "yes", (0, 1)], ids=str)
@pytest.mark.parametrize(
    "call",
    [
        lambda wraps: CircularConsistency(wraps=wraps),
        lambda wraps: MaskCircularConsistency(wraps=wraps),
        lambda wraps: ts.audit(nn.Identity(), IMAGES, wraps=wraps),
    ],
    ids=["CircularConsistency", "MaskCircularConsistency", "audit"],
)
def test_wraps_that_say_nothing(call, wraps):
    with pytest.raises(ValueError, match="wraps must say for each of 2 spatial axes"):
        call(wraps)


def test_a_shift_that_the_network_does_not_promise(segmenter):
    with pytest.raises(ValueError, match=r"the shift \(1, 0\) moves images along axis 2, which"):
        ts.audit(segmenter, IMAGES, shifts=[(0, 1), (1, 0)])


class Recorder(nn.Module):
    """Tells which row and column the brightest pixel of each image is in."""

    def __init__(self, wraps):
        super().__init__()
        self.seen, self.spec = [], ts.Sampling("aps", padding_mode=wraps)
        self.eval()

    def forward(self, images):
        self.seen += [divmod(int(x[0].argmax()), x.shape[-1]) for x in images]
        return torch.zeros(len(images), 2)


@pytest.mark.parametrize("shifts", ["random", "all"])
@pytest.mark.parametrize(
    ("modes", "wraps", "moved"),
    [
        (("zeros", "circular"), None, {1}),
        ("zeros", None, {0, 1}),
        ("circular", (True, False), {0}),
    ],
    ids=str,
)
def test_consistencies_shift_along_the_same_axes(modes, wraps, moved, shifts):
    images = torch.zeros(8, 1, 6, 6)
    images[..., 2, 3] = 1
    model = Recorder(modes)
    CircularConsistency(max_shift=5, shifts=shifts, wraps=wraps).update(model, images)
    rows, columns = zip(*model.seen, strict=True)
    assert {axis for axis, places in enumerate((rows, columns)) if len(set(places)) > 1} == moved


def test_a_segmenter_on_a_cylinder_is_consistent(segmenter):
    metric = MaskCircularConsistency(shifts="all")
    metric.update(segmenter, IMAGES)
    assert metric.compute() == 1


def test_a_converted_network_says_where_it_wraps():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    new = ts.convert(net, "aps", IMAGES[..., :6, :], padding=("keep", "circular"))
    result = ts.audit(new, IMAGES[..., :6, :])
    assert result.measurements[0].wraps == (False, True)
    assert result.bitwise_equal
