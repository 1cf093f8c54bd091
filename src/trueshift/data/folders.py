"""Folders of classes, and ImageNet with the paper's two preprocessing tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from trueshift._validate import check_choice, check_positive
from trueshift.data import IMAGENET_MEAN, IMAGENET_STD
from trueshift.data.loading import ImageDataModule, Key, sample_seed

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm")
Setting = Literal["circular", "standard"]


class FolderDataset(Dataset[Any]):
    """Images of ``folder/<class>/<image>``; the classes are numbered in order of their names.

    Random choices depend on (seed, epoch, index) only, not on the worker that reads a sample.

    Args:
        folder: Where the folders of the classes are.
        transform: PIL image -> Tensor; it may use torch's global generator.
        seed: Seed of the transform.
        class_names: The classes that must be there, in order; found by default.
    """

    def __init__(
        self,
        folder: Path,
        transform: Callable[[Any], Tensor],
        seed: int = 0,
        class_names: tuple[str, ...] | None = None,
    ) -> None:
        found = _class_names(folder)
        self.class_names = class_names or found
        unknown = sorted(set(found) - set(self.class_names))
        if unknown:
            raise ValueError(
                f"ImageFolder: {folder} has classes that are not in train: {unknown[:5]}."
                " Every split needs the same class folders."
            )
        self.samples = [
            (path, label)
            for label, name in enumerate(self.class_names)
            if name in found
            for path in sorted((folder / name).rglob("*"))
            if path.suffix.lower() in SUFFIXES
        ]
        if not self.samples:
            raise FileNotFoundError(
                f"ImageFolder: no images in the class folders of {folder} (looked for"
                f" {' '.join(SUFFIXES)})."
            )
        self.transform = transform
        self.seed = seed

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, key: Key) -> tuple[Tensor, int]:
        from PIL import Image

        epoch, index = (0, key) if isinstance(key, int) else key
        path, label = self.samples[index]
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except OSError as error:
            raise OSError(
                f"ImageFolder: {path} cannot be read ({error}). Replace or remove it."
            ) from error
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(sample_seed(self.seed, epoch, index))
            return self.transform(image), label


class ImageFolder(ImageDataModule):
    """Any folder of classes: ``root/train/<class>/<image>`` and ``root/val/<class>/<image>``.

    The preprocessing is one of the paper's two for ImageNet (appendix), at any size:

    * ``"circular"``: resize to ``resize`` x ``resize``, crop the centre, flip (training only),
      normalise: no shifts are learnt from the data;
    * ``"standard"``: the same, but training crops a random part, resized to the image size.

    Args:
        root: Folder with ``train`` and ``val`` (and ``test``, else ``val`` is the test set).
        setting: ``"circular"`` or ``"standard"``.
        batch_size: Images per batch and process.
        image_size: Size of the images.
        resize: Size that images are resized to before the crop; by default 256 / 224 of it.
        eval_size: Size of the centre crop for validation and test, ``image_size`` if None.
            S-Cons. crops by itself: give it ``resize``.
        num_workers: Processes that read images.
        seed: Seed of order and augmentation.
    """

    mean = IMAGENET_MEAN
    std = IMAGENET_STD
    how = "Place the images as train/<class>/<image> and val/<class>/<image>."

    def __init__(
        self,
        root: str,
        setting: Setting = "circular",
        batch_size: int = 64,
        image_size: int = 224,
        resize: int | None = None,
        eval_size: int | None = None,
        num_workers: int = 4,
        seed: int = 0,
    ) -> None:
        who = type(self).__name__
        super().__init__(batch_size, num_workers, seed)
        check_choice(who, "setting", setting, ("circular", "standard"))
        self.root = root
        self.setting = setting
        self.image_size = image_size
        self.resize = round(image_size * 256 / 224) if resize is None else resize
        self.eval_size = image_size if eval_size is None else eval_size
        check_positive(who, image_size=image_size, resize=self.resize, eval_size=self.eval_size)
        if max(image_size, self.eval_size) > self.resize:
            raise ValueError(
                f"{who}: resize={self.resize} must be at least image_size={image_size} and"
                f" eval_size={self.eval_size}."
            )

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the class folders, in the order of the labels."""
        return _class_names(self._folder("train"))

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        """Number of class folders."""
        return len(self.class_names)

    def setup(self, stage: str | None = None) -> None:
        if self.datasets:
            return
        names = self.class_names
        train, val = self._folder("train"), self._folder("val")
        test = Path(self.root) / "test"
        test = test if test.is_dir() else val
        evaluation = self.eval_transform()
        self.datasets = {
            "train": FolderDataset(train, self.train_transform(), self.seed, names),
            "val": FolderDataset(val, evaluation, self.seed, names),
            "test": FolderDataset(test, evaluation, self.seed, names),
        }

    def train_transform(self) -> Callable[[Any], Tensor]:
        """Return the paper's transform for training, PIL image -> normalised tensor."""
        transforms = _transforms()
        crop = transforms.CenterCrop(self.image_size)
        if self.setting == "standard":
            crop = transforms.RandomResizedCrop(self.image_size)
        flip = transforms.RandomHorizontalFlip()
        return transforms.Compose([*self._resized(), crop, flip, *self._normalised()])

    def eval_transform(self) -> Callable[[Any], Tensor]:
        """Return the paper's transform for validation and test."""
        transforms = _transforms()
        crop = transforms.CenterCrop(self.eval_size)
        return transforms.Compose([*self._resized(), crop, *self._normalised()])

    def _resized(self) -> list[Any]:
        return [_transforms().Resize((self.resize, self.resize))]

    def _normalised(self) -> list[Any]:
        return [_transforms().ToTensor(), _transforms().Normalize(self.mean, self.std)]

    def _folder(self, split: str) -> Path:
        folder = Path(self.root) / split
        if not folder.is_dir():
            raise FileNotFoundError(
                f"{type(self).__name__}: there is no folder {split} in {self.root}. {self.how}"
            )
        return folder


class ImageNet(ImageFolder):
    """ImageNet (ILSVRC 2012) in the usual folders, with the paper's preprocessing (appendix).

    Images are resized to 256 x 256 and seen at 224; see :class:`ImageFolder` for the two settings.
    For S-Cons. (:class:`trueshift.metrics.ShiftConsistency`) test with ``eval_size=256``.

    Args:
        root: Folder with ``train/<class>/`` and ``val/<class>/``, 1000 classes each.
        setting: ``"circular"`` or ``"standard"``.
        batch_size: Images per batch and process, 64 in the paper (on 4 GPUs).
        eval_size: Size of the centre crop for validation and test.
        num_workers: Processes that read images.
        seed: Seed of order and augmentation.
    """

    num_classes = 1000
    how = (
        "Get ILSVRC 2012 from image-net.org (an account is needed) and unpack it as"
        " train/<class>/<image> and val/<class>/<image>."
    )

    def __init__(
        self,
        root: str,
        setting: Setting = "circular",
        batch_size: int = 64,
        eval_size: int = 224,
        num_workers: int = 4,
        seed: int = 0,
    ) -> None:
        super().__init__(root, setting, batch_size, 224, 256, eval_size, num_workers, seed)

    def setup(self, stage: str | None = None) -> None:
        found = len(self.class_names)
        if found != self.num_classes:
            raise ValueError(
                f"ImageNet: {Path(self.root) / 'train'} holds {found} class folders instead of"
                f" {self.num_classes}. {self.how} For other sets use ImageFolder."
            )
        super().setup(stage)


def _class_names(folder: Path) -> tuple[str, ...]:
    if not folder.is_dir():
        raise FileNotFoundError(f"ImageFolder: no folder {folder}.")
    names = tuple(sorted(path.name for path in folder.iterdir() if path.is_dir()))
    if not names:
        raise FileNotFoundError(f"ImageFolder: no class folders in {folder}.")
    return names


def _transforms() -> Any:
    from torchvision import transforms

    return transforms
