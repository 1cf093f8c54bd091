import pickle

import numpy as np
import pytest
import torch

import trueshift.data.cifar10 as cifar10
from trueshift.data.cifar10 import CIFAR10, Arrays, check_cifar10, load_cifar10, save_cifar10


@pytest.fixture(scope="module")
def arrays():
    """Random pixels with the shapes, balance and means of the real set."""
    source = torch.Generator().manual_seed(0)
    sets = []
    for num in (50_000, 10_000):
        images = torch.empty(num, 3, 32, 32, dtype=torch.uint8)
        for channel, mean in enumerate(cifar10.MEAN):
            level = mean * 255
            low = torch.rand(num, 32, 32, generator=source) > level % 1
            images[:, channel] = int(level) + (~low).to(torch.uint8)
        sets += [images, torch.arange(num) % 10]
    return Arrays(*sets)


@pytest.fixture(scope="module")
def stored(arrays, tmp_path_factory):
    root = tmp_path_factory.mktemp("cifar")
    save_cifar10(arrays, root)
    return root


def write_batches(arrays, folder):
    folder.mkdir()
    for k in range(6):
        part = slice(10_000 * k, 10_000 * (k + 1)) if k < 5 else slice(None)
        images = (arrays.train_images if k < 5 else arrays.test_images)[part]
        labels = (arrays.train_labels if k < 5 else arrays.test_labels)[part]
        batch = {b"data": images.flatten(1).numpy(), b"labels": labels.tolist()}
        name = f"data_batch_{k + 1}" if k < 5 else "test_batch"
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


def test_what_is_stored_is_read_again_and_nothing_else_is_left(arrays, stored):
    for one, two in zip(load_cifar10(stored), arrays, strict=True):
        assert torch.equal(one, two)
    assert [path.name for path in stored.iterdir()] == ["cifar10.safetensors"]
    with pytest.raises(FileExistsError, match=r"exists. Pass --force"):
        save_cifar10(arrays, stored)


def test_the_official_batches_are_read_and_run_no_code(arrays, tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    write_batches(arrays, folder)
    for root in (tmp_path, folder):
        for one, two in zip(load_cifar10(root), arrays, strict=True):
            assert torch.equal(one, two)
    (folder / "data_batch_3").write_bytes(pickle.dumps(pytest.fail))
    with pytest.raises(ValueError, match=r"data_batch_3 is missing or damaged .refused to load"):
        load_cifar10(tmp_path)
    (folder / "data_batch_3").unlink()
    with pytest.raises(ValueError, match="data_batch_3 is missing or damaged"):
        load_cifar10(tmp_path)


def test_the_rows_of_a_png_are_images(tmp_path):
    from PIL import Image

    images = np.random.default_rng(0).integers(0, 256, (7, 32, 32, 3), dtype=np.uint8)
    Image.fromarray(images.reshape(7, 1024, 3)).save(tmp_path / "rows.png")
    rows = cifar10._read_rows(tmp_path / "rows.png")
    assert torch.equal(rows, torch.from_numpy(images).permute(0, 3, 1, 2))
    (tmp_path / "rows.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"rows.png is missing or damaged"):
        cifar10._read_rows(tmp_path / "rows.png")


def test_other_data_is_refused(arrays):
    few = arrays._replace(test_images=arrays.test_images[1:])
    with pytest.raises(ValueError, match=r"test shapes \(\(9999, 3, 32, 32\), \(10000,\)\)"):
        check_cifar10(few, "here")
    labels = arrays.train_labels.clone()
    labels[0] = 5
    with pytest.raises(ValueError, match=r"in here is damaged, .* per class \[4999, 5000"):
        check_cifar10(arrays._replace(train_labels=labels), "here")
    labels[0] = -1
    with pytest.raises(ValueError, match=r"per class out of 0..9"):
        check_cifar10(arrays._replace(train_labels=labels), "here")
    dark = arrays._replace(train_images=arrays.train_images // 2)
    with pytest.raises(ValueError, match="channel means"):
        check_cifar10(dark, "here")


def test_nothing_or_a_broken_file_says_how_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"found none of .* Get it with: trueshift data"):
        load_cifar10(tmp_path)
    (tmp_path / "cifar10.safetensors").write_bytes(b"half a file")
    with pytest.raises(ValueError, match=r"cannot be read .* Remove it and fetch it again"):
        load_cifar10(tmp_path)


def test_the_module_gives_the_papers_batches(arrays, stored):
    data = CIFAR10(str(stored), batch_size=64, subset=128)
    data.setup("fit")
    images, labels = next(iter(data.train_dataloader()))
    assert images.shape == (64, 3, 32, 32)
    assert len(data.datasets["train"]) == 128
    assert len(data.datasets["test"]) == 10_000
    test, _ = next(iter(data.test_dataloader()))
    mean, std = (torch.tensor(v)[:, None, None] for v in (data.mean, data.std))
    torch.testing.assert_close(test, (arrays.test_images[:64] / 255 - mean) / std)
    assert labels.max() < data.num_classes == 10
    with pytest.raises(ValueError, match=r"subset must be in 1..50000, got 0"):
        CIFAR10(subset=0)
