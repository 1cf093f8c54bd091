"""What the data modules share: the order of samples, datasets in memory, loaders.

The order of epoch ``e``, and everything random about a sample in it, follows from the seed and
``e`` alone: a run that starts again at epoch ``e`` sees what it would have seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trueshift._torchvision import import_torchvision
from trueshift._validate import check_positive

import_torchvision()  # Lightning imports it by way of torchmetrics
from lightning.pytorch import LightningDataModule  # noqa: E402

Key = int | tuple[int, int]


class EpochSampler(DistributedSampler[Any]):
    """Indices of this process: shuffled by (seed, epoch) for training, in order otherwise.

    Lightning keeps it in distributed runs and tells it the epoch. Batch ``t`` of all processes
    together holds the samples that one process with the whole batch would take in step ``t``.
    For training every process gets as many samples as the others, by repeating a few; for
    evaluation nothing is repeated, so that each sample counts once.

    Args:
        dataset: What is sampled, of known length.
        shuffle: Training, in which case the items are ``(epoch, index)``; else plain indices.
        seed: Seed of the order.
        num_replicas: Number of processes; by default that of the process group, or 1.
        rank: Number of this process; by default that in the process group, or 0.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        shuffle: bool,
        seed: int,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if num_replicas is None:
            num_replicas = torch.distributed.get_world_size() if distributed else 1
        if rank is None:
            rank = torch.distributed.get_rank() if distributed else 0
        super().__init__(dataset, num_replicas, rank, shuffle=shuffle, seed=seed)

    def __iter__(self) -> Iterator[Any]:
        if self.shuffle:
            return iter([(self.epoch, index) for index in super().__iter__()])
        return iter(range(self.rank, self._size, self.num_replicas))

    def __len__(self) -> int:
        if self.shuffle:
            return super().__len__()
        return len(range(self.rank, self._size, self.num_replicas))

    @property
    def _size(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]


class InMemory(Dataset[Any]):
    """Images and targets as tensors; batches are taken, flipped and normalised at once.

    Args:
        images: uint8 ``(N, C, H, W)``.
        targets: Labels ``(N,)`` or masks ``(N, H, W)``, integers.
        mean: Mean per channel, of values in [0, 1].
        std: Standard deviation per channel.
        flip: Mirror every other image left to right, chosen by (seed, epoch, index); only for
            samples that come with an epoch, as in training. ``"alternate"``: an image that is
            mirrored in one epoch is not in the next, so that both views are seen equally often.
        seed: Seed of flips and cutout.
        cutout: Set a square of so many pixels, at a place chosen in the same way, to the mean. It
            wraps around the border.
    """

    def __init__(
        self,
        images: Tensor,
        targets: Tensor,
        mean: Sequence[float],
        std: Sequence[float],
        flip: bool | Literal["alternate"] = False,
        seed: int = 0,
        cutout: int = 0,
    ) -> None:
        if flip not in (False, True, "alternate"):
            raise ValueError(f"InMemory: flip must be true, false or 'alternate', got {flip!r}.")
        if cutout < 0:
            raise ValueError(f"InMemory: cutout must be at least 0, got {cutout}.")
        if len(images) != len(targets):
            raise ValueError(f"InMemory: got {len(images)} images and {len(targets)} targets.")
        self.images = images
        self.targets = targets
        self.scale = torch.tensor([1 / (255 * s) for s in std])[:, None, None]
        self.bias = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)])[:, None, None]
        self.flip = flip
        self.seed = seed
        self.cutout = cutout
        self._draws: tuple[int, Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: Key) -> tuple[Tensor, Tensor]:
        images, targets = self.__getitems__([key])
        return images[0], targets[0]

    def __getitems__(self, keys: Sequence[Key]) -> tuple[Tensor, Tensor]:
        """Return a whole batch: images ``(B, C, H, W)``, normalised, and targets, int64."""
        index = torch.tensor([key if isinstance(key, int) else key[1] for key in keys])
        images = self.images[index].float().mul_(self.scale).add_(self.bias)
        targets = self.targets[index].long()
        if keys and not isinstance(keys[0], int):
            self._augment(keys[0][0], index, images, targets)
        return images, targets

    def _augment(self, epoch: int, index: Tensor, images: Tensor, targets: Tensor) -> None:
        """Flip and cut, in place."""
        mirrored, corners = (draw[index] for draw in self._drawn(epoch))
        if self.flip:
            images[mirrored] = images[mirrored].flip(-1)
            if targets.ndim > 1:
                targets[mirrored] = targets[mirrored].flip(-1)
        if self.cutout:
            size = torch.tensor(images.shape[2:])
            first = (corners * size).long()  # (B, 2)
            rows, columns = (
                (torch.arange(n) - at[:, None]) % n < self.cutout
                for n, at in zip(images.shape[2:], first.unbind(1), strict=True)
            )
            images.masked_fill_((rows[:, :, None] & columns[:, None, :])[:, None], 0)

    def _drawn(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Return of an epoch which images are mirrored, and the corners of cutout in [0, 1)."""
        if self._draws is None or self._draws[0] != epoch:
            source = torch.Generator().manual_seed(sample_seed(self.seed, epoch))
            mirrored = torch.rand(len(self), generator=source) < 0.5
            corners = torch.rand(len(self), 2, generator=source)
            if self.flip == "alternate":
                first = torch.Generator().manual_seed(sample_seed(self.seed, 0))
                mirrored = (torch.rand(len(self), generator=first) < 0.5) ^ (epoch % 2 == 1)
            self._draws = epoch, mirrored, corners
        return self._draws[1:]


class ImageDataModule(LightningDataModule):
    """Base of the data modules: three datasets and their loaders.

    A subclass fills ``datasets`` in ``setup`` with "train", "val" and "test", and says
    ``num_classes``, ``image_size``, ``mean`` and ``std``. Batches are (images, targets): images
    floating ``(B, 3, H, W)``, normalised; targets int64.
    """

    num_classes: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    collate: Callable[[Any], Any] | None = None

    def __init__(self, batch_size: int, num_workers: int, seed: int) -> None:
        super().__init__()
        check_positive(type(self).__name__, batch_size=batch_size)
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.seed = seed
        self.datasets: dict[str, Dataset[Any]] = {}

    def train_dataloader(self) -> DataLoader[Any]:
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return self._loader("val", shuffle=False)

    def test_dataloader(self) -> DataLoader[Any]:
        return self._loader("test", shuffle=False)

    def predict_dataloader(self) -> DataLoader[Any]:
        return self._loader("test", shuffle=False)

    def _batch_size(self, split: str) -> int:
        return self.batch_size

    def _loader(self, split: str, shuffle: bool) -> DataLoader[Any]:
        if split not in self.datasets:
            raise ValueError(
                f"{type(self).__name__}: the {split} data is not loaded yet. Call setup() first."
            )
        dataset = self.datasets[split]
        collate = whole_batch if isinstance(dataset, InMemory) else self.collate
        return DataLoader(
            dataset,
            batch_size=self._batch_size(split),
            sampler=EpochSampler(dataset, shuffle, self.seed),
            num_workers=self.num_workers,
            collate_fn=collate,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=self.num_workers > 0,
        )


def whole_batch(batch: Any) -> Any:
    """Leave alone a batch that the dataset has made at once."""
    return batch


def sample_seed(*parts: int) -> int:
    """Return a seed that follows from all parts, the same on every machine.

    Examples:
        >>> sample_seed(0, 1) != sample_seed(1, 0)
        True
    """
    text = ",".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
