"""PASCAL VOC 2012 segmentation with the augmented training list (paper sections 5.4, 5.5)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from trueshift._validate import check_positive
from trueshift.data import IMAGENET_MEAN, IMAGENET_STD
from trueshift.data.loading import ImageDataModule, Key, sample_seed

IGNORE_INDEX = 255
_HOW = (
    "Get VOC with: trueshift data voc --root DIR. Or unpack VOCtrainval_11-May-2012.tar, and place"
    " SegmentationClassAug (labels of SBD as plain PNG) and ImageSets/Segmentation/train_aug.txt"
    " (10,582 names) next to it."
)


class VOCDataset(Dataset[Any]):
    """Images and masks of one list; what is random follows from (seed, epoch, index).

    Args:
        folder: The folder ``VOC2012``.
        names: Name of the list in ``ImageSets/Segmentation``, without ``.txt``.
        masks: Folder of the masks, ``SegmentationClass`` or ``SegmentationClassAug``.
        crop_size: Size of the crop, or None for whole images.
        scales: Range of the random scale, or None: then the shorter side is resized to the crop
            and the crop is the centre.
        mean: Mean per channel.
        std: Standard deviation per channel.
        seed: Seed of the augmentation.
        cache: Whether decoded images stay in memory.
    """

    def __init__(
        self,
        folder: Path,
        names: str,
        masks: str,
        crop_size: int | None,
        scales: tuple[float, float] | None,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        seed: int = 0,
        cache: bool = False,
    ) -> None:
        path = folder / "ImageSets" / "Segmentation" / f"{names}.txt"
        if not path.is_file():
            raise FileNotFoundError(f"VOCSegmentation: no file {path}. {_HOW}")
        self.names = path.read_text().split()
        self.images, self.masks = folder / "JPEGImages", folder / masks
        missing = [
            str(file)
            for name in self.names
            for file in (self.images / f"{name}.jpg", self.masks / f"{name}.png")
            if not file.is_file()
        ]
        if missing or not self.names:
            raise FileNotFoundError(
                f"VOCSegmentation: {path} lists {len(self.names)} images; {len(missing)} of their"
                f" files are missing, such as {missing[:3]}. {_HOW}"
            )
        self.crop_size = crop_size
        self.scales = scales
        self.mean = torch.tensor(mean)[:, None, None]
        self.std = torch.tensor(std)[:, None, None]
        self.seed = seed
        self._kept: dict[str, tuple[Any, Any]] | None = {} if cache else None

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, key: Key) -> tuple[Tensor, Tensor]:
        epoch, index = (0, key) if isinstance(key, int) else key
        image, mask = self._pair(self.names[index])
        source = random.Random(sample_seed(self.seed, epoch, index))
        if self.scales is not None:
            image, mask = _scaled(image, mask, source.uniform(*self.scales))
        elif self.crop_size is not None:
            image, mask = _scaled(image, mask, self.crop_size / min(image.size))
        pixels = (torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)).view(
            image.height, image.width, 3
        )
        x = (pixels.permute(2, 0, 1).float() / 255 - self.mean) / self.std
        labels = torch.frombuffer(bytearray(mask.tobytes()), dtype=torch.uint8).long()
        y = labels.view(mask.height, mask.width)
        if self.crop_size is not None:
            x, y = _cropped(x, y, self.crop_size, source if self.scales is not None else None)
        if self.scales is not None and source.random() < 0.5:
            x, y = x.flip(-1), y.flip(-1)
        return x.contiguous(), y.contiguous()

    def _pair(self, name: str) -> tuple[Any, Any]:
        if self._kept is None:
            return self._read(name)
        if name not in self._kept:
            self._kept[name] = self._read(name)
        return self._kept[name]

    def _read(self, name: str) -> tuple[Any, Any]:
        from PIL import Image

        image_path, mask_path = self.images / f"{name}.jpg", self.masks / f"{name}.png"
        try:
            with Image.open(image_path) as file:
                image = file.convert("RGB")
            with Image.open(mask_path) as file:
                mask = file.copy()
        except OSError as error:
            raise OSError(
                f"VOCSegmentation: {image_path} or {mask_path} cannot be read ({error})."
            ) from error
        if mask.mode not in ("P", "L") or mask.size != image.size:
            raise ValueError(
                f"VOCSegmentation: {mask_path} must hold one label per pixel of {image_path}, got"
                f" mode {mask.mode} and size {mask.size} for {image.size}."
            )
        unknown = [n for n, count in enumerate(mask.histogram()) if count and 21 <= n < 255]
        if unknown:
            raise ValueError(
                f"VOCSegmentation: {mask_path} has labels {unknown[:5]}. Labels are 0 (background)"
                " to 20, and 255 for pixels to ignore."
            )
        return image, mask


class VOCSegmentation(ImageDataModule):
    """PASCAL VOC 2012: 20 classes and the background; label 255 is ignored.

    Training: scale at random, crop at random, flip half of the images; pixels beyond an image that
    is smaller than the crop are the mean colour and ignored. Validation and test, as in the
    authors' code: the shorter side resized to ``eval_crop`` (masks to the nearest pixel), then the
    centre; or whole images of their own size, one by one, with ``eval_crop=None``.

    Args:
        root: Folder ``VOC2012``, or one that holds ``VOCdevkit/VOC2012`` or ``VOC2012``.
        batch_size: Images per batch and process.
        crop_size: Size of the training crop.
        eval_crop: Size of the crop for validation and test; None: whole images, batches of one.
        train_list: List to train on; ``train_aug`` takes ``SegmentationClassAug``, and others do so
            where there is no ``SegmentationClass``.
        num_workers: Processes that read images.
        seed: Seed of order and augmentation.
        scales: Range of the random scale.
        val_list: List to validate on.
        cache: Keep decoded images in memory, in every process that reads them.
    """

    num_classes = 21
    mean = IMAGENET_MEAN
    std = IMAGENET_STD

    def __init__(
        self,
        root: str = "data/VOCdevkit/VOC2012",
        batch_size: int = 16,
        crop_size: int = 513,
        eval_crop: int | None = 513,
        train_list: str = "train_aug",
        num_workers: int = 4,
        seed: int = 0,
        scales: tuple[float, float] = (0.5, 2.0),
        val_list: str = "val",
        cache: bool = False,
    ) -> None:
        super().__init__(batch_size, num_workers, seed)
        check_positive("VOCSegmentation", crop_size=crop_size)
        if not 0 < scales[0] <= scales[1]:
            raise ValueError(
                f"VOCSegmentation: scales must be positive and increasing, got {scales}."
            )
        self.root = root
        self.crop_size = self.image_size = crop_size
        self.eval_crop = eval_crop
        self.train_list, self.val_list = train_list, val_list
        self.scales, self.cache = scales, cache

    def setup(self, stage: str | None = None) -> None:
        if self.datasets:
            return
        folder = self._folder()
        own = "SegmentationClass"
        own = own if (folder / own).is_dir() else "SegmentationClassAug"
        masks = "SegmentationClassAug" if self.train_list.endswith("aug") else own
        rest = self.mean, self.std, self.seed, self.cache
        train = VOCDataset(folder, self.train_list, masks, self.crop_size, self.scales, *rest)
        val = VOCDataset(folder, self.val_list, own, self.eval_crop, None, *rest)
        self.datasets = {"train": train, "val": val, "test": val}

    def _batch_size(self, split: str) -> int:
        return 1 if split != "train" and self.eval_crop is None else self.batch_size

    def _folder(self) -> Path:
        root = Path(self.root)
        for folder in (root, root / "VOCdevkit" / "VOC2012", root / "VOC2012"):
            if (folder / "ImageSets" / "Segmentation").is_dir():
                return folder
        raise FileNotFoundError(
            f"VOCSegmentation: looked for ImageSets/Segmentation in {root}, VOCdevkit/VOC2012"
            f" and VOC2012, found none. {_HOW}"
        )


def _scaled(image: Any, mask: Any, scale: float) -> tuple[Any, Any]:
    from PIL import Image

    size = (max(round(image.width * scale), 1), max(round(image.height * scale), 1))
    return image.resize(size, Image.Resampling.BILINEAR), mask.resize(
        size, Image.Resampling.NEAREST
    )


def _cropped(
    x: Tensor, y: Tensor, size: int, source: random.Random | None
) -> tuple[Tensor, Tensor]:
    """Crop at random, or the centre; beyond the image lies the mean colour, ignored."""
    height, width = y.shape
    top, left = (max(n - size, 0) for n in (height, width))
    top, left = (source.randint(0, n) if source else n // 2 for n in (top, left))
    x, y = x[:, top : top + size, left : left + size], y[top : top + size, left : left + size]
    pad = (0, size - y.shape[1], 0, size - y.shape[0])
    return (
        torch.nn.functional.pad(x, pad),
        torch.nn.functional.pad(y, pad, value=IGNORE_INDEX),
    )
