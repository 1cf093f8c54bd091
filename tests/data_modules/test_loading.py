import subprocess
import sys

import pytest
import torch
from lightning_stub import Recorder, quiet_trainer

from trueshift.data import Shapes
from trueshift.data.loading import EpochSampler, InMemory, sample_seed


@pytest.fixture(scope="module")
def data():
    module = Shapes(size=8, batch_size=16, num_train=50, num_val=21, num_test=30, flip=True)
    module.setup()
    return module


def epoch_of(loader, epoch):
    loader.sampler.set_epoch(epoch)
    return [tuple(part.clone() for part in batch) for batch in loader]


def same(first, second):
    pairs = zip(first, second, strict=True)
    return all(torch.equal(a, b) for one, two in pairs for a, b in zip(one, two, strict=True))


def test_batches_are_normalised_images_and_targets(data):
    batches = epoch_of(data.train_dataloader(), 0)
    assert [len(images) for images, _ in batches] == [16, 16, 16, 2]
    images = torch.cat([images for images, _ in batches])
    assert images.dtype == torch.float32
    assert images.mean().abs() < 0.3
    assert 0.7 < images.std() < 1.3
    assert torch.cat([labels for _, labels in batches]).dtype == torch.int64


def test_an_epoch_depends_on_seed_and_number_only(data):
    loader = data.train_dataloader()
    third = epoch_of(loader, 3)
    assert not same(third, epoch_of(loader, 4))
    assert same(third, epoch_of(data.train_dataloader(), 3))
    torch.rand(5)
    twin = Shapes(size=8, batch_size=16, num_train=50, flip=True)
    twin.setup("fit")
    assert same(third, epoch_of(twin.train_dataloader(), 3))
    other = Shapes(size=8, batch_size=16, num_train=50, flip=True, seed=1)
    other.setup("fit")
    assert not same(third, epoch_of(other.train_dataloader(), 3))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_change_nothing(data):
    alone = epoch_of(data.train_dataloader(), 2)
    twin = Shapes(size=8, batch_size=16, num_train=50, flip=True, num_workers=1)
    twin.setup("fit")
    assert same(alone, epoch_of(twin.train_dataloader(), 2))


def test_every_training_image_comes_once_and_about_half_are_mirrored(data):
    images = torch.cat([images for images, _ in epoch_of(data.train_dataloader(), 1)])
    plain = InMemory(data.datasets["train"].images, torch.zeros(50), data.mean, data.std)
    source = torch.stack([plain[k][0] for k in range(50)])
    equal = (images[:, None] == source).flatten(2).all(2)
    mirrored = (images[:, None] == source.flip(-1)).flatten(2).all(2)
    assert torch.equal((equal | mirrored).sum(0), torch.ones(50).long())
    assert 10 < mirrored.sum() < 40


def test_masks_are_mirrored_with_their_images():
    images = torch.randint(0, 255, (40, 1, 4, 6), dtype=torch.uint8)
    data = InMemory(images.expand(-1, 3, -1, -1), images[:, 0], (0,) * 3, (1 / 255,) * 3, flip=True)
    seen, masks = data.__getitems__([(5, k) for k in range(40)])
    assert torch.equal(seen[:, 0].round().long(), masks)
    changed = (masks != images[:, 0].long()).flatten(1).any(1)
    assert 10 < changed.sum() < 30
    still, _ = data.__getitems__(list(range(40)))
    assert torch.equal(still[:, 0].round().to(torch.uint8), images[:, 0])


@pytest.mark.parametrize("size", [10, 11])
def test_two_processes_share_the_batches_of_one(size):
    dataset = range(size)
    whole = [index for _, index in EpochSampler(dataset, True, 3, 1, 0)]
    parts = [list(EpochSampler(dataset, True, 3, 2, rank)) for rank in (0, 1)]
    assert len(parts[0]) == len(parts[1]) == len(EpochSampler(dataset, True, 3, 2, 0))
    for step in range(size // 4):
        together = {i for part in parts for _, i in part[2 * step : 2 * step + 2]}
        assert together == set(whole[4 * step : 4 * step + 4])


@pytest.mark.parametrize("size", [10, 11])
def test_evaluation_takes_each_sample_once(size):
    parts = [EpochSampler(range(size), False, 0, 3, rank) for rank in range(3)]
    assert sorted(i for part in parts for i in part) == list(range(size))
    assert sum(len(part) for part in parts) == size


def test_lightning_tells_the_sampler_the_epoch(data, tmp_path):
    recorder = Recorder()
    quiet_trainer(tmp_path, max_epochs=2).fit(recorder, datamodule=data)
    loader = data.train_dataloader()
    assert same(recorder.seen, epoch_of(loader, 0) + epoch_of(loader, 1))


def test_a_loader_before_setup_is_refused():
    with pytest.raises(ValueError, match=r"Shapes: the test data is not loaded yet. Call setup"):
        Shapes().test_dataloader()


def test_splits_are_different_pictures_and_masks_have_eleven_labels():
    module = Shapes(size=8, num_train=30, num_val=30, num_test=30, masks=True)
    module.setup()
    sets = [module.datasets[split].images for split in ("train", "val", "test")]
    assert not torch.equal(sets[0], sets[1])
    assert not torch.equal(sets[1], sets[2])
    images, masks = next(iter(module.test_dataloader()))
    assert masks.shape == (30, 8, 8)
    assert images.shape == (30, 3, 8, 8)
    assert module.num_classes == 11
    assert masks.max() <= 10
    assert module.image_size == 8


def test_stages_make_only_what_they_need():
    module = Shapes(size=8, num_train=10, num_val=10, num_test=10)
    module.setup("test")
    assert set(module.datasets) == {"test"}
    module.setup("fit")
    assert set(module.datasets) == {"train", "val", "test"}


def _epochs(num=3, **options):
    images = torch.arange(1, 201, dtype=torch.uint8).view(50, 1, 2, 2).expand(-1, 3, -1, -1)
    data = InMemory(images, torch.arange(50), (0,) * 3, (1 / 255,) * 3, **options)
    plain = images.float()
    return plain, [data.__getitems__([(e, i) for i in range(50)])[0] for e in range(num)]


def test_alternating_flips_show_both_views_in_turn():
    plain, (first, second, third) = _epochs(flip="alternate")
    mirrored = (first == plain.flip(-1)).flatten(1).all(1)
    assert 10 < int(mirrored.sum()) < 40
    assert torch.equal(first[~mirrored], plain[~mirrored])
    assert torch.equal(second, first.flip(-1))
    assert torch.equal(third, first)
    other = _epochs(flip="alternate", seed=1)[1][0]
    assert not torch.equal(other, first)


def test_cutout_sets_a_square_that_wraps_to_the_mean():
    images = torch.full((64, 3, 6, 8), 200, dtype=torch.uint8)
    data = InMemory(images, torch.arange(64), (0.5,) * 3, (0.25,) * 3, cutout=3)
    batch, again, later = (data.__getitems__([(e, i) for i in range(64)])[0] for e in (0, 0, 1))
    cut = batch == 0
    assert torch.equal(cut.flatten(1).sum(1), torch.full((64,), 3 * 3 * 3))
    assert torch.equal(cut.any(1).any(1).sum(1), torch.full((64,), 3))
    corners = {tuple(map(tuple, one.nonzero().tolist())) for one in cut[:, 0]}
    assert len(corners) > 20
    assert torch.equal(batch, again)
    assert not torch.equal(batch, later)
    assert not (data.__getitems__(list(range(64)))[0] == 0).any()  # evaluation cuts nothing


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"flip": "often"}, "flip must be true, false or 'alternate', got 'often'"),
        ({"cutout": -1}, "cutout must be at least 0, got -1"),
    ],
)
def test_wrong_augmentation_is_refused(options, match):
    with pytest.raises(ValueError, match=match):
        _epochs(**options)


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="InMemory: got 2 images and 3 targets"):
        InMemory(torch.zeros(2, 3, 4, 4), torch.zeros(3), (0,) * 3, (1,) * 3)


def test_seeds_are_pinned():
    assert sample_seed(0) == sample_seed(0)
    assert len({sample_seed(a, b) for a in range(20) for b in range(20)}) == 400


def test_pictures_need_no_lightning():
    code = (
        "import sys, trueshift.data as d; d.make_shapes(2);"
        "print([m for m in ('lightning', 'torchmetrics', 'torchvision') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_are_listed_and_others_refused():
    import trueshift.data

    assert "Shapes" in dir(trueshift.data)
    with pytest.raises(AttributeError, match="no attribute 'Shape'"):
        trueshift.data.Shape  # noqa: B018
