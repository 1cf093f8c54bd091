"""The built-in data as a Lightning data module."""

from __future__ import annotations

from trueshift._validate import check_positive
from trueshift.data.drawing import SHAPE_NAMES, make_shapes
from trueshift.data.loading import ImageDataModule, InMemory, sample_seed


class Shapes(ImageDataModule):
    """Ten classes of textured shapes, drawn when needed; nothing is downloaded.

    Objects lie near the centre and nothing is shifted in training, so that a network is invariant
    only by design. See :func:`make_shapes` for the pictures.

    Args:
        size: Height and width of the images.
        batch_size: Images per batch and process.
        num_train: Images to train on.
        num_val: Images to validate on.
        num_test: Images to test on.
        masks: Targets are masks ``(B, H, W)`` of 11 labels, 0 the background, instead of labels.
        flip: Mirror half of the training images left to right.
        num_workers: Processes that make batches; with data in memory none is quickest.
        seed: Seed of the pictures and of the order.

    Examples:
        >>> data = Shapes(num_train=64, num_val=32, num_test=32, batch_size=16)
        >>> data.setup("fit")
        >>> images, labels = next(iter(data.train_dataloader()))
        >>> images.shape, labels.shape
        (torch.Size([16, 3, 32, 32]), torch.Size([16]))
    """

    class_names = SHAPE_NAMES
    mean = (0.356, 0.356, 0.356)
    std = (0.173, 0.173, 0.173)

    def __init__(
        self,
        size: int = 32,
        batch_size: int = 128,
        num_train: int = 10_000,
        num_val: int = 1_000,
        num_test: int = 2_000,
        masks: bool = False,
        flip: bool = False,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size, num_workers, seed)
        check_positive("Shapes", size=size, num_train=num_train, num_val=num_val, num_test=num_test)
        self.size = size
        self.masks = masks
        self.flip = flip
        self.num = {"train": num_train, "val": num_val, "test": num_test}
        self.image_size = size
        self.num_classes = len(SHAPE_NAMES) + int(masks)

    def setup(self, stage: str | None = None) -> None:
        splits = {"fit": ("train", "val"), "validate": ("val",), None: ("train", "val", "test")}
        for split in splits.get(stage, ("test",)):
            if split in self.datasets:
                continue
            seed = sample_seed(self.seed, ("train", "val", "test").index(split))
            images, labels, masks = make_shapes(self.num[split], self.size, seed)
            targets = masks if self.masks else labels
            flip = self.flip and split == "train"
            self.datasets[split] = InMemory(images, targets, self.mean, self.std, flip, self.seed)
