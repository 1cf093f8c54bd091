"""Images that an audit is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Images = Tensor | Sequence[Any]


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
                " Networks for signals and volumes are not audited; one image needs images[None]."
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
                f"audit: images must be floating tensors, normalised as in training, got {got}."
                " For bytes: images.float() / 255."
            )
        return image, None if label is None else torch.as_tensor(label).long()
