"""Phases that do not read the border: ``Sampling(margin=...)``."""

import pytest
import torch

import trueshift as ts


@pytest.mark.parametrize("method", ["aps", "lps"])
@pytest.mark.parametrize(("stride", "margin"), [(2, 1), (2, 3), (3, 2)])
def test_what_lies_in_the_margin_does_not_change_the_choice(method, stride, margin):
    layer = ts.Sampling(method, padding_mode="zeros", margin=margin).down(4, stride).eval()
    x = torch.randn(3, 4, 24, 36)
    border = margin * stride
    other = 100 * torch.randn_like(x)
    inside = (..., slice(border, -border), slice(border, -border))
    other[inside] = x[inside]
    _, phase = layer(x, return_phase=True)
    _, same = layer(other, return_phase=True)
    assert torch.equal(phase, same)
    plain = ts.PolyphaseDown(layer.selector, stride, padding_mode="zeros").eval()
    layer.selector.margin = ()
    _, read = plain(other, return_phase=True)
    assert not torch.equal(read, phase)  # without it the border is read


def test_the_interior_keeps_the_order_of_components():
    selector = ts.Sampling("aps", padding_mode="zeros", margin=1).selector(2)
    x = torch.randn(5, 2, 12, 8)
    expected = ts.NormSelector().eval()(x[..., 2:-2, 2:-2])
    assert torch.equal(selector.eval()(x), expected)


def test_axes_that_wrap_have_no_margin_and_small_maps_keep_a_cell():
    selector = ts.Sampling("aps", padding_mode=("zeros", "circular"), margin=2).selector(2)
    assert selector.margin == (2, 0)
    assert selector.interior(torch.zeros(1, 2, 12, 8), (2, 2)).shape == (1, 2, 4, 8)
    assert selector.interior(torch.zeros(1, 2, 4, 8), (2, 2)).shape == (1, 2, 4, 8)
    assert selector.interior(torch.zeros(1, 2, 6, 8), (2, 2)).shape == (1, 2, 2, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin": 1}, "margin=1 leaves out borders, .* Pass another padding_mode"),
        ({"margin": -1, "padding_mode": "zeros"}, "margin must be at least 1, got -1"),
    ],
)
def test_margins_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=f"Sampling: {message}"):
        ts.Sampling("aps", **options)


def test_the_margin_is_saved_with_a_network(tmp_path):
    spec = ts.Sampling("aps", padding_mode="zeros", margin=2)
    model = ts.models.resnet(spec, (1, 1), (4, 8), num_classes=3, stem="cifar")
    ts.save(model, tmp_path / "net.safetensors")
    again = ts.load(tmp_path / "net.safetensors")
    assert again.spec.margin == 2
    assert [m.margin for m in again.modules() if isinstance(m, ts.NormSelector)] == [(2, 2)]
