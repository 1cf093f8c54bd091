"""An audit of the tested network on a few of the test images."""

from __future__ import annotations

import copy
import sys
from collections import Counter
from typing import Any, TypeGuard

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn

from trueshift.audit import AuditResult, audit
from trueshift.models.anysize import extend
from trueshift.training.emulator import Emulator
from trueshift.training.module import NetworkModule
from trueshift.training.segmenter import IGNORE, Segmenter
from trueshift.training.timing import centre_crop

_MOST_IMAGES, _MOST_PAIRS, _FEWEST_PAIRS = 16, 1024, 32
_PIXELS = 2**24  # of all shifted images, so that it takes seconds

Item = tuple[Tensor, Tensor]


class AuditTested(Callback):
    """Audit the network when a test ends; ``result`` then holds the numbers.

    A few images, spread over the test data, are shifted: fewer the larger they are. Where that is
    not possible it says why, and ``result`` stays ``None``.
    """

    def __init__(self) -> None:
        self.result: AuditResult | None = None
        self._kept: list[Item] = []

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._kept = []

    def on_test_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if _is_about_images(pl_module) and trainer.is_global_zero:
            self._kept += _some(batch, batch_idx, trainer.num_test_batches[dataloader_idx])

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not _is_about_images(pl_module) or not trainer.is_global_zero:
            return
        try:
            if trainer.world_size > 1 and not isinstance(trainer.strategy, DDPStrategy):
                raise ValueError("the network is spread over several processes.")
            self.result = _audit(pl_module, trainer, self._kept)
        except (MemoryError, ValueError) as error:  # the results are written all the same
            print(f"no audit: {error}", file=sys.stderr)


def _is_about_images(module: LightningModule) -> TypeGuard[NetworkModule]:
    """Whether a module labels images; the states of flows have no labels to compare."""
    return isinstance(module, NetworkModule) and not isinstance(module, Emulator)


def budget(pixels: int) -> tuple[int, int]:
    """Return how many images to shift, and how many shifts of each, for images of so many pixels.

    Examples:
        >>> budget(32 * 32), budget(224 * 224), budget(528 * 528)
        ((16, 64), (16, 20), (4, 15))
    """
    pairs = min(max(_PIXELS // pixels, _FEWEST_PAIRS), _MOST_PAIRS)
    num_images = _MOST_IMAGES if pairs >= 256 else 4
    return num_images, pairs // num_images


def _some(batch: Any, batch_idx: int, num_batches: int | float) -> list[Item]:
    """Take a few images of a batch, so that all batches together give enough of them."""
    images, targets = batch
    every = 1 if num_batches == float("inf") else max(int(num_batches) // _MOST_IMAGES, 1)
    if batch_idx % every or batch_idx // every >= _MOST_IMAGES:
        return []
    count = min(len(images), -(-_MOST_IMAGES // max(int(min(num_batches, _MOST_IMAGES)), 1)))
    places = [k * len(images) // count for k in range(count)]
    return [(images[k].detach().cpu(), targets[k].detach().cpu()) for k in places]


def _audit(module: NetworkModule, trainer: Trainer, kept: list[Item]) -> AuditResult:
    images, labels = _of_one_size([_fitted(module, *item) for item in kept])
    num_images, num_shifts = budget(images.shape[-2] * images.shape[-1])
    images, labels = images[:num_images], labels[:num_images]
    window = _window(module, images)
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    names = getattr(data, "class_names", None)
    where = "the test images" if data is None else f"the test images of {type(data).__name__}"
    return audit(
        _uncompiled(module.network),
        images,
        labels,
        num_shifts,
        "circular" if window is None else "standard",
        batch_size=len(images),
        window=window,
        examples=4 if num_shifts >= 64 else 2,
        name=_name(module),
        class_names=names if names and len(names) == module.hparams["num_classes"] else None,
        images_from=f"{len(images)} of {where}",
    )


def _fitted(module: NetworkModule, image: Tensor, target: Tensor) -> Item:
    """Bring an image and its target to the size that the test gives to the network."""
    if isinstance(module, Segmenter):
        multiple: Any = module.network.required_multiple
        return extend(image, multiple, 0.0), extend(target, multiple, IGNORE)
    if _is_standard(module):
        return image, target  # a window moves over it
    return centre_crop(image[None], module.hparams["crop_size"])[0], target


def _of_one_size(items: list[Item]) -> Item:
    """Stack the images of the size that most of them have."""
    if not items:
        raise ValueError("the test had no images.")
    (size, _), *_ = Counter(image.shape for image, _ in items).most_common(1)
    same = [item for item in items if item[0].shape == size]
    return torch.stack([image for image, _ in same]), torch.stack([target for _, target in same])


def _is_standard(module: NetworkModule) -> bool:
    """Tell whether the test is about standard shifts: images are not periodic and leave room."""
    periodic = module.spec.padding_mode == "circular"
    return not periodic and module.hparams["crop_size"] is not None


def _window(module: NetworkModule, images: Tensor) -> int | None:
    """Return the window of standard shifts, or None for circular ones."""
    size = module.hparams["crop_size"]
    return size if _is_standard(module) and size < min(images.shape[-2:]) else None


def _name(module: NetworkModule) -> str:
    """Return for instance ``resnet18, lps + tri3``."""
    method, antialias = module.spec.method, module.spec.antialias
    sampling = method if antialias is None else f"{method} + {antialias}"
    return f"{module.hparams['network']}, {sampling}"


def _uncompiled(network: nn.Module) -> nn.Module:
    """Return the network as it is written: hooks do not run in what is compiled."""
    plain = copy.copy(network)
    plain._compiled_call_impl = None
    return plain
