"""Train and test a segmenter."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassJaccardIndex

from trueshift import models
from trueshift.metrics import MaskCircularConsistency, MaskShiftConsistency
from trueshift.models.anysize import extend, predict_mask
from trueshift.shifts import circular_shift
from trueshift.training.module import NetworkModule, NumPairs
from trueshift.training.outside import PACKAGED, packaged_weights
from trueshift.training.randomness import step_seed
from trueshift.training.timing import BatchTimes

IGNORE = 255
Batch = tuple[Any, Any]


class Segmenter(NetworkModule):
    """Semantic segmentation with cross-entropy; pixels labelled 255 do not count.

    Validation logs mIoU; a test also measures circular consistency (mASCC), standard consistency
    (mASSC), the mIoU on images under a random circular shift, and whether the output for that shift
    is bitwise the shifted output. All are fractions. In validation and test, images of any size,
    also lists of images of several sizes, are first extended to the next multiple that the network
    takes (see :func:`trueshift.models.segment`); the new pixels are not labelled. Circular shifts
    are then shifts of the extended image.

    Args:
        backbone: What the backbone starts from (in networks of other packages the part called
            ``encoder``): a checkpoint of a :class:`Classifier`, a file of ``trueshift.save``, with
            its tau, or ``"mobilenet_v2"``: torchvision's ImageNet weights, from a package.
        backbone_lr: Learning rate of the backbone, as a share of ``lr``; 0.1 in the authors' code.
        backbone_momentum: Momentum of the statistics of the backbone's batch norms; 0.01 in the
            authors' code. ``None`` keeps torch's 0.1; 0 freezes them: they normalise while training
            too.
        num_pairs: Pairs of shifts per image that consistency compares, or ``"all"``; 5 in the
            paper.
        **options: Other arguments of :class:`NetworkModule`.
    """

    monitor = "val/miou"

    def __init__(
        self,
        backbone: str | None = None,
        backbone_lr: float = 1.0,
        backbone_momentum: float | None = None,
        num_pairs: NumPairs = 5,
        **options: Any,
    ) -> None:
        super().__init__(num_pairs=num_pairs, **options)
        given = {"backbone": backbone, "backbone_lr": backbone_lr}
        self.save_hyperparameters({**given, "backbone_momentum": backbone_momentum})
        if (backbone, backbone_lr, backbone_momentum) != (None, 1.0, None) and not self._backbone():
            raise ValueError(
                f"Segmenter: {options['network']} has no backbone, so backbone, backbone_lr and"
                " backbone_momentum have nothing to act on. Leave them out."
            )
        for module in self._backbone():
            if isinstance(module, nn.BatchNorm2d) and backbone_momentum is not None:
                module.momentum = backbone_momentum
        self.val_miou, self.test_miou, self.shifted_miou = (self._miou() for _ in range(3))
        self.consistency = self.build_consistency(MaskCircularConsistency)
        self.shift_consistency = self.build_consistency(MaskShiftConsistency)
        self.bitwise_equal = MeanMetric()
        self.times = BatchTimes()
        self.train()  # Lightning keeps the modes that it finds

    def setup(self, stage: str) -> None:
        fresh = stage == TrainerFn.FITTING and self.trainer.ckpt_path is None
        if fresh and self.hparams["backbone"] is not None:
            load_backbone(self._backbone()[0], self.hparams["backbone"])
        super().setup(stage)

    def train(self, mode: bool = True) -> Segmenter:
        """Set the mode; frozen statistics stay in eval mode."""
        super().train(mode)
        for module in self._backbone() if self.hparams["backbone_momentum"] == 0 else ():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Split every group in two where the backbone has a learning rate of its own."""
        groups, lr = super().parameter_groups(), self.hparams["lr"]
        share = self.hparams["backbone_lr"]
        if share == 1:
            return groups
        slow = set(self._backbone()[0].parameters())
        split = [
            {**group, "lr": rate, "params": [p for p in group["params"] if (p in slow) == inside]}
            for group in groups
            for inside, rate in ((False, lr), (True, share * lr))
        ]
        return [group for group in split if group["params"]]

    def _backbone(self) -> list[nn.Module]:
        """Return the modules of the backbone, itself first; none if the network has none."""
        ours = "." not in self.hparams["network"]
        backbone = getattr(self.network, "backbone" if ours else "encoder", None)
        return [] if backbone is None else list(backbone.modules())

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        images, target = batch
        loss = self._loss(self(images), target)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        every = self.hparams["consistency_every"]
        for images, target in self._by_size(batch):
            logits = self(images)
            self.val_miou.update(logits, target)
            self.log("val/loss", self._loss(logits, target), sync_dist=True, batch_size=len(images))
            if every and (self.current_epoch + 1) % every == 0:
                self.consistency.update(self, images, target)
        self.log("val/miou", self.val_miou, prog_bar=True, on_epoch=True)
        if every and (self.current_epoch + 1) % every == 0:
            self.log("val/circular_consistency", self.consistency, on_epoch=True)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        generator = torch.Generator().manual_seed(step_seed(self.global_rank, batch_idx))
        for images, target in self._by_size(batch):
            logits = self.times.measure(self, images)
            self.test_miou.update(logits, target)
            self.consistency.update(self, images, target)
            self.shift_consistency.size = self._window(images)
            self.shift_consistency.update(self, images, target)
            high = self.hparams["max_shift"] + 1
            shift = torch.randint(1, high, (2,), generator=generator).tolist()
            moved = circular_shift(self(circular_shift(images, *shift)), *(-by for by in shift))
            self.shifted_miou.update(moved, target)
            self.bitwise_equal.update((moved == logits).flatten(1).all(1))
        self.log("test/miou", self.test_miou, on_epoch=True)
        self.log("test/shifted_miou", self.shifted_miou, on_epoch=True)
        self.log("test/circular_consistency", self.consistency, on_epoch=True)
        self.log("test/shift_consistency", self.shift_consistency, on_epoch=True)
        self.log("test/bitwise_equal", self.bitwise_equal, on_epoch=True)

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, list[Tensor]]:
        images = batch[0] if isinstance(batch, list | tuple) else batch
        masks = []
        for image in images:
            mask = predict_mask(self, image[None], multiple=self._multiple)
            masks.append(mask[0].to(torch.uint8))
        return {"mask": masks}

    @property
    def _multiple(self) -> int:
        return int(self.network.required_multiple)  # type: ignore[arg-type]

    def _by_size(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """Split into groups of one size each, extended to what the network takes."""
        images, target = batch
        if isinstance(images, Tensor):
            groups = [(images, target)]
        else:
            groups = [(x[None], y[None]) for x, y in zip(images, target, strict=True)]
        return [
            (extend(x, self._multiple, 0.0), extend(y, self._multiple, IGNORE)) for x, y in groups
        ]

    def _window(self, images: Tensor) -> tuple[int, ...]:
        """Return the largest window that every shift leaves inside the image."""
        room = [size - self.hparams["max_shift"] for size in images.shape[-2:]]
        return tuple(size - size % self._multiple if size > 0 else 1 for size in room)

    def _loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits, target.long(), ignore_index=IGNORE)

    def _miou(self) -> MulticlassJaccardIndex:
        return MulticlassJaccardIndex(self.hparams["num_classes"], ignore_index=IGNORE)


def load_backbone(backbone: nn.Module, path: str | os.PathLike[str]) -> None:
    """Load the network of a classifier into the backbone of a segmenter, tau included.

    What only the classifier has is left out: its last layer, and selectors of down-samplings that
    dilation replaces here.

    Args:
        backbone: The network to load into, changed in place.
        path: A checkpoint of :class:`Classifier`, a ``.safetensors`` of ``trueshift.save``, or a
            name in :data:`PACKAGED`.
    """
    path = packaged_weights(str(path)) if path in PACKAGED else Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"Segmenter: no backbone at {path}. Train one with `trueshift fit` on an ImageNet"
            " recipe, or leave backbone out to start from scratch."
        )
    if path.suffix == ".safetensors":
        state = models.load(path).state_dict()
    elif path.suffix == ".pth":
        state = torch.load(path, map_location="cpu", weights_only=True)
    else:
        saved = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
        prefix = "network."
        state = {k.removeprefix(prefix): v for k, v in saved.items() if k.startswith(prefix)}
    own = backbone.state_dict()
    missing = [key for key in own if key not in state]
    if missing:
        raise ValueError(
            f"Segmenter: {path} is not of the same network as the backbone: it lacks {missing[:5]}"
            f" ({len(missing)} in all). Use a checkpoint of the same recipe row."
        )
    backbone.load_state_dict({key: state[key] for key in own})
