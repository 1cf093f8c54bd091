"""Images that an audit is given: tensors, datasets, or the files of a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Images = Tensor | Sequence[Any]
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".ppm", ".tif", ".tiff")


class ImageSource:
    """Images one batch at a time, checked.

    Args:
        images: A tensor ``(N, C, H, W)``, or anything with a length whose items are ``(C, H, W)``
            or ``(image, label)``, such as a dataset that reads files.
        labels: ``(N,)`` or masks ``(N, H, W)``; by default those of the items, if any.
    """

    def __init__(self, images: Images, labels: Tensor | None = None) -> None:
        self._images, self._labels = images, labels
        if isinstance(images, Tensor) and images.ndim != 4:
            raise ValueError(
                f"audit: images must have shape (N, C, H, W), got {tuple(images.shape)}."
                " Networks for signals and volumes are not audited. For one image, pass"
                " images[None]."
            )
        if len(images) == 0:
            raise ValueError("audit: got no images. Pass at least one.")
        if labels is not None and len(labels) != len(images):
            raise ValueError(f"audit: got {len(images)} images and {len(labels)} labels.")
        first, label = self._item(0)
        self.has_labels = label is not None
        self.shape: tuple[int, int, int] = tuple(first.shape)  # type: ignore[assignment]
        if len(self.shape) != 3 or min(self.shape[1:]) < 2:
            raise ValueError(
                f"audit: images must be (C, H, W) with at least 2 x 2 pixels to be shifted, got"
                f" shape {tuple(first.shape)}."
            )

    def __len__(self) -> int:
        return len(self._images)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Return images ``(B, C, H, W)`` and their labels, if there are any."""
        items = [self._item(i) for i in indices]
        for i, (image, _) in zip(indices, items, strict=True):
            if tuple(image.shape) != self.shape:
                raise ValueError(
                    f"audit: all images must have the shape of the first one {self.shape}, got"
                    f" {tuple(image.shape)} for image {i}. Resize or crop them."
                )
            if not image.isfinite().all():
                raise ValueError(f"audit: image {i} holds NaN or infinity. Leave it out.")
        labels = [label for _, label in items]
        kept = torch.stack(labels) if self.has_labels else None  # type: ignore[arg-type]
        return torch.stack([image for image, _ in items]), kept

    def _item(self, index: int) -> tuple[Tensor, Tensor | None]:
        item = self._images[index]
        image, label = item if isinstance(item, tuple | list) else (item, None)
        label = label if self._labels is None else self._labels[index]
        if not isinstance(image, Tensor) or not image.is_floating_point():
            got = image.dtype if isinstance(image, Tensor) else type(image).__name__
            raise TypeError(
                f"audit: images must be floating-point tensors, normalised as in training, got"
                f" {got}. For bytes: images.float() / 255."
            )
        return image, None if label is None else torch.as_tensor(label).long()


class FolderImages:
    """The images below a folder, in order of their paths, normalised.

    Args:
        folder: Where to look, sub-folders included.
        size: Height and width: the shorter side is resized to it and the centre cropped. None
            takes the images as they are; they must then have one size.
        mean: Mean per channel, of values in [0, 1]; one value makes grey images.
        std: Standard deviation per channel.
        num_images: At most this many, spread evenly over all; None takes all.
        labels: Items are (image, label), the label being the name of the image's first sub-folder
            if all of these are numbers, else its place in the order of names.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        size: int | None,
        mean: Sequence[float],
        std: Sequence[float],
        num_images: int | None = None,
        labels: bool = False,
    ) -> None:
        folder = Path(folder)
        paths = _find(folder)
        names = sorted({_class(p, folder) for p in paths}) if labels else []
        if "" in names:
            raise ValueError(
                f"audit: labels are the names of sub-folders, but {folder} holds images itself."
                " Sort them into a folder for each class, or leave out the labels."
            )
        numbered = all(name.isdecimal() for name in names)
        self.labels = {name: int(name) if numbered else k for k, name in enumerate(names)}
        self.class_names = () if numbered else tuple(names)
        self.paths = _spread(paths, num_images)
        self.folder, self.size = folder, size
        self.mean, self.std = (torch.tensor(v)[:, None, None] for v in (mean, std))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor | tuple[Tensor, int]:
        path = self.paths[index]
        pixels = _read_pixels(path, self.size, len(self.mean))
        image = (pixels.float() / 255 - self.mean) / self.std
        if not self.labels:
            return image
        return image, self.labels[_class(path, self.folder)]


def read_picture(path: Path, size: int | None) -> Tensor:
    """Read an image as uint8 ``(3, H, W)``; see :class:`FolderImages`."""
    return _read_pixels(path, size, 3)


def picture_paths(
    folder: Path, num_images: int | None, names: Sequence[str] | None = None
) -> list[Path]:
    """Return files of images below a folder: those with these names, or some of all.

    Args:
        folder: Where to look, sub-folders included.
        num_images: At most this many, spread evenly over all; None takes all.
        names: Names without suffix; then these are taken, in this order.
    """
    paths = _find(folder)
    if names is None:
        return _spread(paths, num_images)
    by_name = {path.stem: path for path in paths}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise FileNotFoundError(
            f"audit: no images called {', '.join(missing)} in {folder}. Pass names of its files"
            " without suffix."
        )
    return [by_name[name] for name in names]


def read_labels(path: Path) -> Tensor:
    """Read a mask, a label per pixel as in PASCAL VOC, as int64 ``(H, W)``."""
    from PIL import Image

    try:
        with Image.open(path) as file:
            mask = file.copy()
    except OSError as error:
        raise ValueError(f"audit: no mask can be read from {path} ({error}).") from error
    if mask.mode not in ("P", "L"):
        raise ValueError(f"audit: {path} must hold one label per pixel, got mode {mask.mode}.")
    labels = torch.frombuffer(bytearray(mask.tobytes()), dtype=torch.uint8)
    return labels.view(mask.height, mask.width).long()


def _find(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise FileNotFoundError(f"audit: {folder} is not a folder. Pass one that holds images.")
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES)
    if not paths:
        raise FileNotFoundError(
            f"audit: no images found in {folder} (looked for {' '.join(SUFFIXES)}). Pass a"
            " folder that holds images."
        )
    return paths


def _spread(paths: list[Path], num_images: int | None) -> list[Path]:
    kept = len(paths) if num_images is None else min(num_images, len(paths))
    return [paths[i * len(paths) // kept] for i in range(kept)]


def _read_pixels(path: Path, size: int | None, channels: int) -> Tensor:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("audit needs Pillow to read images: pip install pillow.") from error
    try:
        with Image.open(path) as file:
            image = file.convert("L" if channels == 1 else "RGB")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"audit: {path} cannot be read ({error}). Replace or remove it."
        ) from error
    if size is not None:
        scale = size / min(image.size)
        wide = [max(round(side * scale), size) for side in image.size]
        left, top = ((side - size) // 2 for side in wide)
        image = image.resize((wide[0], wide[1]), Image.Resampling.BICUBIC)
        image = image.crop((left, top, left + size, top + size))
    width, height = image.size
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.view(height, width, channels).permute(2, 0, 1)


def _class(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder).parts
    return parts[0] if len(parts) > 1 else ""
