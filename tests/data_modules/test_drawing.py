import pytest
import torch
from torch.nn.functional import max_pool2d

from trueshift.data import SHAPE_NAMES, make_shapes


@pytest.fixture(scope="module")
def shapes():
    return make_shapes(600, size=32, seed=0)


def test_types_and_balance(shapes):
    images, labels, masks = shapes
    assert images.shape == (600, 3, 32, 32)
    assert images.dtype == masks.dtype == torch.uint8
    assert labels.dtype == torch.int64
    assert torch.equal(labels.bincount(), torch.full((10,), 60))
    assert all(sorted(ten) == list(range(10)) for ten in labels.view(-1, 10).tolist())


def test_the_seed_decides_and_the_number_does_not(shapes):
    again, fewer, other = make_shapes(600), make_shapes(137), make_shapes(600, seed=1)
    for one, two, short, different in zip(shapes, again, fewer, other, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one[:137], short)
        assert not torch.equal(one, different)


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    make_shapes(10)
    assert torch.equal(torch.get_rng_state(), before)


def test_masks_hold_the_label_of_the_image_and_the_background(shapes):
    _, labels, masks = shapes
    for mask, label in zip(masks, labels, strict=True):
        assert set(mask.unique().tolist()) == {0, int(label) + 1}
    assert 0.05 < (masks > 0).float().mean() < 0.3


def test_objects_stand_near_the_centre_and_inside(shapes):
    _, labels, masks = shapes
    inside = masks > 0
    assert not inside[:, 0].any()
    assert not inside[:, :, -1].any()
    rows = torch.arange(32) - 15.5
    solid = (labels != SHAPE_NAMES.index("crescent"))[:, None]
    heights = (inside.sum(2) * rows).sum(1) / inside.sum((1, 2))
    assert heights[solid[:, 0]].abs().max() < 4


def test_outlines_tell_the_classes_apart(shapes):
    _, labels, masks = shapes
    inside = (masks > 0).float()
    hole = inside[:, 12:20, 12:20].mean((1, 2))  # the middle, jitter aside
    by_name = {name: hole[labels == k].mean() for k, name in enumerate(SHAPE_NAMES)}
    assert by_name["disc"] > 0.9
    assert by_name["ring"] < 0.6
    area = {name: inside[labels == k].mean() for k, name in enumerate(SHAPE_NAMES)}
    assert area["disc"] > area["pentagon"] > area["square"] > area["triangle"]
    assert area["pentagon"] > area["star"]


def test_colours_say_nothing_about_the_class(shapes):
    images, labels, _ = shapes
    means = torch.stack([images[labels == k].float().mean((0, 2, 3)) for k in range(10)]) / 255
    assert (means - means.mean(0)).abs().max() < 0.1


def test_neighbouring_pixels_differ_but_not_only_by_noise(shapes):
    images = shapes[0].float() / 255
    steps = (images[..., 1:] - images[..., :-1]).abs().mean()
    assert 0.05 < steps < 0.2
    smooth = max_pool2d(images, 4).std()
    assert smooth > 0.1


@pytest.mark.parametrize("size", [8, 17, 48])
def test_any_size(size):
    images, _, masks = make_shapes(20, size)
    assert images.shape == (20, 3, size, size)
    assert masks.amax((1, 2)).min() > 0


def test_wrong_numbers_are_refused():
    with pytest.raises(ValueError, match="make_shapes: num must be at least 1, got 0"):
        make_shapes(0)
    with pytest.raises(TypeError, match="make_shapes: size must be an integer"):
        make_shapes(3, 1.5)
