import pytest
import torch
from PIL import Image

import trueshift as ts
from trueshift.report.figures import components_figure, filters_figure

BLUE, RED = (31, 111, 235), (209, 36, 47)


def count(path, colour):
    """Return how many pixels of a picture have exactly this colour, and where their middle is."""
    with Image.open(path) as file:
        picture = file.convert("RGB")
    pixels = torch.tensor(list(picture.tobytes())).view(picture.height, picture.width, 3)
    matching = (pixels == torch.tensor(colour)).all(-1).nonzero()
    return len(matching), (matching.double().mean(0) / torch.tensor(pixels.shape[:2])).tolist()


def test_components_are_boxed(tmp_path):
    x = torch.zeros(1, 2, 8, 8)
    x[:, :, 1::2, 1::2] = 1  # component 3 is the largest
    path = components_figure(x, torch.tensor([0]), tmp_path / "x.png")
    (blues, blue), (reds, red) = count(path, BLUE), count(path, RED)
    assert min(blues, reds) > 100
    assert blue[1] < 0.25
    assert red[1] > 0.75
    both = components_figure(x, torch.tensor([3]), tmp_path / "both.png")
    assert count(both, BLUE)[0] > 100
    assert count(both, RED)[0] > 100
    assert count(both, BLUE)[1][1] > 0.75


def test_components_of_a_layer(tmp_path):
    x = torch.randn(2, 3, 12, 12)
    _, phase = ts.LPD(3, stride=3).eval()(x, return_phase=True)
    path = components_figure(x, phase, tmp_path / "x.png", stride=3)
    with Image.open(path) as picture:
        width, height = picture.size
    assert width > 3 * height  # nine components of two maps
    with pytest.raises(ValueError, match="phase must be hard"):
        components_figure(x, torch.ones(2, 4) / 4, tmp_path / "x.png")
    with pytest.raises(ValueError, match=r"phase must be in 0..3, got 7"):
        components_figure(x, torch.tensor([0, 7]), tmp_path / "x.png")


def test_filters_of_a_selector(tmp_path):
    selector = ts.ConvSelector(3, hidden_channels=10)
    with torch.no_grad():
        selector.conv1.weight.zero_()
        selector.conv1.weight[0, 1] = 1.0
    mean, one, other = (
        filters_figure(selector, tmp_path / f"{c}.png", channel=c) for c in (None, 1, 0)
    )
    deepest_red = (103, 0, 31)
    assert count(mean, deepest_red)[0] == count(one, deepest_red)[0] > 100
    assert count(other, deepest_red)[0] == 0
    with pytest.raises(TypeError, match="must be a ConvSelector for 2-D maps"):
        filters_figure(ts.NormSelector(), tmp_path / "x.png")
    with pytest.raises(ValueError, match=r"channel must be in 0..2, got 3"):
        filters_figure(selector, tmp_path / "x.png", channel=3)
    with pytest.raises(FileNotFoundError, match="no folder"):
        filters_figure(selector, tmp_path / "missing" / "x.png")
