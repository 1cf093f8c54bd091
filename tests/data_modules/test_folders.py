import pytest
import torch
from PIL import Image

from trueshift.data import ImageFolder, ImageNet


@pytest.fixture
def root(tmp_path, generator):
    for split, num in (("train", 3), ("val", 2)):
        for label, name in enumerate(("ant", "bee")):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for k in range(num):
                noise = torch.randint(0, 60, (40 + 5 * k, 50, 3), generator=generator)
                pixels = (noise + 150 * label).to(torch.uint8).numpy()
                Image.fromarray(pixels).save(folder / f"{k}.png")
    return tmp_path


def make(root, **options):
    data = ImageFolder(
        str(root), image_size=28, batch_size=2, num_workers=0, **{"resize": 32} | options
    )
    data.setup()
    return data


def test_classes_sizes_and_order(root):
    data = make(root)
    assert data.class_names == ("ant", "bee")
    assert data.num_classes == 2
    images, labels = next(iter(data.val_dataloader()))
    assert images.shape == (2, 3, 28, 28)
    assert labels.tolist() == [0, 0]
    assert [len(data.datasets[split]) for split in ("train", "val", "test")] == [6, 4, 4]
    assert images.mean() < make(root).datasets["val"][3][0].mean()


def test_circular_training_differs_from_evaluation_by_flips_only(root):
    data = make(root)
    train = data.datasets["train"]
    still = [data.eval_transform()(Image.open(path).convert("RGB")) for path, _ in train.samples]
    flipped = 0
    for epoch in range(4):
        for k, image in enumerate(still):
            seen = train[epoch, k][0]
            assert torch.equal(seen, image) or torch.equal(seen, image.flip(-1))
            flipped += not torch.equal(seen, image)
    assert 4 < flipped < 20


def test_standard_training_crops_at_random(root):
    train = make(root, setting="standard").datasets["train"]
    views = [train[epoch, 0][0] for epoch in range(3)]
    assert views[0].shape == (3, 28, 28)
    assert not torch.equal(views[0], views[1])
    assert torch.equal(views[2], train[2, 0][0])


def test_the_global_generator_is_left_alone(root):
    train = make(root, setting="standard").datasets["train"]
    before = torch.get_rng_state()
    train[0, 0]
    assert torch.equal(torch.get_rng_state(), before)


def test_the_papers_tables():
    steps = {}
    for setting in ("circular", "standard"):
        data = ImageNet("nowhere", setting=setting)
        for name, transform in (("train", data.train_transform()), ("test", data.eval_transform())):
            steps[setting, name] = [type(step).__name__ for step in transform.transforms]
            assert transform.transforms[0].size == (256, 256)
            assert tuple(transform.transforms[1].size) == (224, 224)
    test = ["Resize", "CenterCrop", "ToTensor", "Normalize"]
    assert steps["circular", "test"] == steps["standard", "test"] == test
    flip = ["RandomHorizontalFlip", "ToTensor", "Normalize"]
    assert steps["circular", "train"] == ["Resize", "CenterCrop", *flip]
    assert steps["standard", "train"] == ["Resize", "RandomResizedCrop", *flip]


def test_shift_consistency_gets_the_whole_image(root):
    images, _ = next(iter(make(root, eval_size=32).test_dataloader()))
    assert images.shape == (2, 3, 32, 32)
    assert ImageNet("nowhere", eval_size=256).eval_size == 256


def test_missing_and_damaged_data_is_named(root, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder train in .* Place the"):
        make(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"ImageNet: there is no folder .* image-net.org"):
        ImageNet(str(tmp_path / "none")).setup()
    with pytest.raises(ValueError, match="holds 2 class folders instead of 1000"):
        ImageNet(str(root)).setup()
    broken = root / "train" / "ant" / "0.png"
    broken.write_bytes(b"no image")
    with pytest.raises(OSError, match=r"0.png cannot be read .* Replace or remove it"):
        make(root).datasets["train"][0]
    (root / "val" / "cow").mkdir()
    with pytest.raises(ValueError, match=r"classes that are not in train: \['cow'\]"):
        make(root)


def test_empty_folders_are_named(root, tmp_path):
    for path in (root / "val").rglob("*.png"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"no images in the class folders of .*val"):
        make(root)
    (tmp_path / "empty" / "train").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="no class folders in"):
        make(tmp_path / "empty")


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="ImageNet: unknown setting 'circle'"):
        ImageNet("nowhere", setting="circle")
    with pytest.raises(ValueError, match="resize=20 must be at least image_size=28"):
        ImageFolder("nowhere", image_size=28, resize=20)
