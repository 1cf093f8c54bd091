import pytest
import torch
from PIL import Image

import trueshift as ts
from trueshift.audit.masks import Masks, common_multiple, masks_under_shift, shown_region
from trueshift.data import make_shapes
from trueshift.report.figures import qualitative_figure
from trueshift.report.images import colour_mask

RED = (255, 0, 60)


def unet(method="lps", **options):
    spec = ts.Sampling(method, "tri3" if method == "lps" else None, hidden=2, **options)
    torch.manual_seed(0)
    model = ts.models.unet(spec, num_classes=3, widths=(4, 8, 8)).eval()
    with torch.no_grad():  # untrained networks see one class everywhere: give all the same mean
        model.head.bias -= model(torch.randn(8, 3, 16, 16)).mean((0, 2, 3))
    return model


class Brightness(torch.nn.Module):
    """Pixel by pixel, so shifts of every kind change nothing."""

    required_multiple = 8

    def forward(self, x):
        return torch.stack([x[:, 0], -x[:, 0]], 1)


@pytest.mark.parametrize("size", [(24, 16), (21, 13)])
def test_equivariant_networks_change_nowhere_under_circular_shifts(size, generator):
    image = torch.randn(3, *size, generator=generator)
    lps, plain = unet(), unet("stride")
    masks = masks_under_shift(lps, image, (3, 5), multiple=4)
    assert masks.still.shape == size
    assert not masks.changed.any()
    assert masks_under_shift(plain, image, (3, 5), multiple=4).changed.any()


@pytest.mark.parametrize("shift", [(2, -3), (0, 4), (-5, 1)])
def test_standard_shifts_compare_what_both_windows_show(shift, generator):
    image = torch.randn(3, 30, 25, generator=generator)
    masks = masks_under_shift(Brightness(), image, shift, "standard", multiple=8)
    shown = shown_region(image, shift, "standard")
    assert torch.equal(masks.still, (shown[0] < 0).long())
    assert not masks.changed.any()
    assert masks.still.shape == (30 - 3 * abs(shift[0]), 25 - 3 * abs(shift[1]))
    with pytest.raises(ValueError, match="leaves nothing of an image"):
        masks_under_shift(Brightness(), image, (15, 0), "standard")


def test_kinds_are_checked():
    with pytest.raises(ValueError, match="kind"):
        masks_under_shift(Brightness(), torch.ones(3, 8, 8), (1, 1), "round")


def test_both_networks_see_the_same_image():
    deep = ts.models.unet(ts.Sampling("aps"), widths=(4, 4, 4, 4))
    assert common_multiple(unet(), deep) == 8
    assert common_multiple(unet(padding_mode="zeros"), torch.nn.Identity()) == 1


def red_pixels(path):
    with Image.open(path) as file:
        picture = file.convert("RGB")
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    pixels = pixels.view(picture.height, picture.width, 3)
    return (pixels == torch.tensor(RED)).all(-1).nonzero().double() / picture.height


def test_figure_marks_what_changed_and_nothing_else(tmp_path):
    pictures = list(make_shapes(2, 16)[0])
    same = torch.zeros(16, 16, dtype=torch.int64)
    other = same.clone()
    other[8:] = 1
    masks = {"A": [Masks(same, other)] * 2, "B": [Masks(same, same)] * 2}
    marked = red_pixels(qualitative_figure(pictures, masks, tmp_path / "x.png"))
    assert len(marked) > 500
    assert float(marked[:, 0].min()) > 0.4  # the third of five rows
    assert float(marked[:, 0].max()) < 0.65
    clean = {"A": masks["B"], "B": masks["B"]}
    assert len(red_pixels(qualitative_figure(pictures, clean, tmp_path / "y.png"))) == 0


def test_figure_refuses_masks_of_another_size(tmp_path):
    masks = {"A": [Masks(torch.zeros(4, 4), torch.zeros(4, 4))]}
    with pytest.raises(ValueError, match=r"masks of 'A' must have the sizes of the images"):
        qualitative_figure([torch.zeros(3, 5, 5, dtype=torch.uint8)], masks, tmp_path / "x.png")
    images = [torch.zeros(3, 4, 4, dtype=torch.uint8)]
    with pytest.raises(FileNotFoundError, match="no folder"):
        qualitative_figure(images, masks, tmp_path / "no" / "x.png")


def test_every_class_of_voc_has_a_colour_of_its_own():
    colours = colour_mask(torch.tensor([[*range(21), 255]]))[:, 0].T.tolist()
    assert len({tuple(colour) for colour in colours}) == 22
    assert torch.equal(colour_mask(torch.tensor([[0]])), colour_mask(torch.tensor([[21]])))
