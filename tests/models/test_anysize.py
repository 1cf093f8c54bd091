import pytest
import torch

import trueshift as ts
from trueshift.models import predict_mask, segment
from trueshift.models.anysize import extend

SMALL = {"num_classes": 3, "widths": (8, 8, 8, 8)}


def deeplab(mode, **options):
    spec = ts.Sampling("lps", "tri3", hidden=2, padding_mode=mode)
    return ts.models.deeplabv3plus_resnet18(spec, **{**SMALL, **options}).eval()


def unet(mode, **options):
    spec = ts.Sampling("lps", "tri3", hidden=2, padding_mode=mode)
    return ts.models.unet(spec, **{**SMALL, **options}).eval()


@pytest.mark.parametrize("mode", ["circular", "zeros"])
@pytest.mark.parametrize("build", [deeplab, unet])
def test_a_photo_of_usual_size_gets_a_mask_of_its_size(build, mode):
    model, photo = build(mode), torch.randn(1, 3, 375, 500)
    mask = predict_mask(model, photo)
    assert mask.shape == (1, 375, 500)
    assert mask.dtype == torch.int64
    with torch.no_grad():
        logits = model(extend(photo, model.required_multiple))
    assert torch.equal(mask, logits[..., :375, :500].argmax(1))
    assert torch.equal(mask, predict_mask(model, photo))


def test_sizes_that_fit_are_left_alone():
    model, x = deeplab("circular"), torch.randn(1, 3, 64, 32)
    with torch.no_grad():
        assert torch.equal(segment(model, x), model(x))
    assert extend(x, 32) is x


def test_standard_networks_extend_nothing():
    model, x = unet("zeros"), torch.randn(1, 3, 21, 13)
    with torch.no_grad():
        assert torch.equal(segment(model, x), model(x))


def test_the_guarantee_is_of_the_extended_image():
    model, x = unet("circular"), torch.randn(2, 3, 19, 29)
    period = extend(x, model.required_multiple)
    assert period.shape == (2, 3, 24, 32)
    with torch.no_grad():
        still, moved = model(period), model(period.roll((5, 3), (2, 3)))
    assert torch.equal(moved, still.roll((5, 3), (2, 3)))
    assert torch.equal(segment(model, x), still[..., :19, :29])


def test_one_and_three_dimensions():
    line = unet("circular", dim=1)
    assert segment(line, torch.randn(2, 3, 13)).shape == (2, 3, 13)
    body = unet("circular", dim=3, widths=(4, 4))
    assert segment(body, torch.randn(1, 3, 5, 7, 9)).shape == (1, 3, 5, 7, 9)
    assert extend(torch.ones(1, 1, 5, 7, 9), 2, dim=3).shape == (1, 1, 6, 8, 10)


def test_gradients_pass():
    x = torch.randn(1, 3, 9, 10, requires_grad=True)
    segment(unet("circular").train(), x).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_a_network_that_does_not_say_its_multiple():
    model = torch.nn.Conv2d(3, 2, 1)
    with pytest.raises(TypeError, match=r"segment: Conv2d does not say .* Pass multiple"):
        segment(model, torch.ones(1, 3, 5, 5))
    assert segment(model, torch.ones(1, 3, 5, 5), multiple=4).shape == (1, 2, 5, 5)
    with pytest.raises(ValueError, match="multiple"):
        extend(torch.ones(1, 1, 5, 5), 0)
