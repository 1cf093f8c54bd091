import pytest
import torch
from PIL import Image

from trueshift.data import VOCSegmentation


@pytest.fixture
def root(tmp_path, generator):
    """Two images; each mask repeats the red channel, so that what belongs together shows."""
    folder = tmp_path / "VOCdevkit" / "VOC2012"
    for name in ("JPEGImages", "SegmentationClass", "SegmentationClassAug"):
        (folder / name).mkdir(parents=True)
    lists = folder / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    for name, size in (("a", (30, 20)), ("b", (18, 26))):
        labels = torch.zeros(size[1], size[0], dtype=torch.uint8)
        labels[4:12, 5:14] = 20
        labels[0] = 255
        picture = (labels == 20).to(torch.uint8)[..., None].expand(-1, -1, 3) * 255
        Image.fromarray(picture.numpy()).save(folder / "JPEGImages" / f"{name}.jpg", quality=100)
        for masks in ("SegmentationClass", "SegmentationClassAug"):
            Image.fromarray(labels.numpy()).save(folder / masks / f"{name}.png")
    (lists / "train_aug.txt").write_text("a\nb\n")
    (lists / "val.txt").write_text("b\n")
    return tmp_path


def make(root, **options):
    options = {"crop_size": 24, "eval_crop": 24, "batch_size": 2, "num_workers": 0} | options
    data = VOCSegmentation(str(root), **options)
    data.setup()
    return data


def test_training_crops_hold_image_and_mask_alike(root):
    data = make(root)
    train = data.datasets["train"]
    views = [train[epoch, k] for epoch in range(10) for k in (0, 1)]
    for image, mask in views:
        assert image.shape == (3, 24, 24)
        assert mask.shape == (24, 24)
        assert set(mask.unique().tolist()) <= {0, 20, 255}
        known = mask != 255
        bright = image[0] > 0
        assert (bright == (mask == 20))[known].float().mean() > 0.85
    assert len({mask.numpy().tobytes() for _, mask in views}) > 10
    assert torch.equal(train[3, 1][0], make(root).datasets["train"][3, 1][0])


def test_evaluation_is_the_centre_of_the_resized_image(root):
    image, mask = make(root, eval_crop=36).datasets["val"][0]  # 26 high, 18 wide, so twice as large
    assert image.shape == (3, 36, 36)
    expected = torch.zeros(52, 36, dtype=torch.int64)
    expected[8:24, 10:28] = 20
    expected[:2] = 255
    assert torch.equal(mask, expected[8:44])
    small, _ = make(root, eval_crop=9).datasets["val"][0]
    assert small.shape == (3, 9, 9)


def test_whole_images_come_one_by_one(root):
    images, masks = next(iter(make(root, eval_crop=None).test_dataloader()))
    assert images.shape == (1, 3, 26, 18)
    assert masks.shape == (1, 26, 18)
    assert masks.dtype == torch.int64


@pytest.mark.parametrize("below", ["", "VOCdevkit/VOC2012", "VOCdevkit"])
def test_the_folder_is_found(root, below):
    assert len(make(root / below).datasets["train"]) == 2


def test_missing_files_are_named(root, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"looked for ImageSets/Segmentation in .* Get VOC"):
        make(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"no file .*train\.txt"):
        make(root, train_list="train")
    (root / "VOCdevkit" / "VOC2012" / "SegmentationClassAug" / "a.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"lists 2 images; 1 of their .*a\.png"):
        make(root)


def test_masks_of_another_size_are_refused(root):
    path = root / "VOCdevkit" / "VOC2012" / "SegmentationClass" / "b.png"
    Image.new("L", (3, 3)).save(path)
    with pytest.raises(ValueError, match=r"one label per pixel .* size \(3, 3\) for \(18, 26\)"):
        make(root).datasets["val"][0]
    path.write_bytes(b"broken")
    with pytest.raises(OSError, match="cannot be read"):
        make(root).datasets["val"][0]


def test_unknown_labels_are_refused(root):
    path = root / "VOCdevkit" / "VOC2012" / "SegmentationClass" / "b.png"
    Image.new("L", (18, 26), 21).save(path)
    with pytest.raises(ValueError, match=r"b\.png has labels \[21\]\. Labels are 0 .* to 20, and"):
        make(root).datasets["val"][0]


def test_images_smaller_than_the_crop_are_extended_by_ignored_pixels(root):
    image, mask = make(root, crop_size=64, scales=(1, 1)).datasets["train"][0, 0]  # 30 x 20 pixels
    assert image.shape == (3, 64, 64)
    assert (mask != 255).sum() == 30 * 19  # the first row is ignored anyway
    assert (image[:, mask == 255].unique(dim=1) == 0).all(0).any()
    with pytest.raises(ValueError, match=r"scales must be positive and increasing, got \(2, 1\)"):
        make(root, scales=(2, 1))


def test_cached_images_are_the_same(root):
    plain, kept = (make(root, cache=cache).datasets["train"] for cache in (False, True))
    for key in [(0, 0), (1, 0), (1, 1)]:
        for a, b in zip(plain[key], kept[key], strict=True):
            assert torch.equal(a, b)
    (root / "VOCdevkit" / "VOC2012" / "JPEGImages" / "a.jpg").unlink()
    assert torch.equal(kept[2, 0][1], kept[2, 0][1])  # read once


def test_masks_of_sbd_serve_where_there_are_no_others(root):
    folder = root / "VOCdevkit" / "VOC2012"
    (folder / "SegmentationClass").rename(folder / "elsewhere")
    (folder / "ImageSets" / "Segmentation" / "part.txt").write_text("a\n")
    data = make(root, train_list="part", val_list="part")
    assert data.datasets["val"].masks.name == "SegmentationClassAug"
    assert data.datasets["val"].names == data.datasets["train"].names == ["a"]
