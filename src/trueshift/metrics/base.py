"""What the four consistencies share: pairs of views, the model's labels, counts, reduction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trueshift._torchvision import import_torchvision
from trueshift._validate import check_choice, check_positive
from trueshift.metrics.agreement import agreement, predicted_labels, wilson_interval
from trueshift.metrics.protocol import process_generator, random_pairs

with suppress(ImportError):  # torchmetrics imports torchvision where it is installed
    import_torchvision()
from torchmetrics import Metric

Model = Callable[[Tensor], Tensor]
Batch = Tensor | Sequence[Tensor]
Offsets = tuple[int, int]
Pair = tuple[Offsets, Offsets]


class Consistency(Metric, ABC):
    """Base of the consistencies; see :class:`CircularConsistency` for the protocol.

    A subclass says how an image is seen under a shift and how two masks come back to one frame.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    share_sum: Tensor
    num_compared: Tensor
    num_images: Tensor
    correct_share_sum: Tensor
    num_correct: Tensor

    spatial: int  # spatial axes of a prediction: 0 for a label, 2 for a mask
    ignore_index: int | None = None

    def __init__(
        self,
        num_pairs: int,
        max_shift: int,
        shifts: Literal["random", "all"],
        seed: int,
        confidence: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        who = type(self).__name__
        check_positive(who, num_pairs=num_pairs, max_shift=max_shift)
        check_choice(who, "shifts", shifts, ("random", "all"))
        wilson_interval(0.5, 1, confidence)
        self.num_pairs = num_pairs
        self.max_shift = max_shift
        self.shifts = shifts
        self.seed = seed
        self.confidence = confidence
        self._generator: torch.Generator | None = None
        self._keeps_draws = False
        self._totals: dict[str, float] = {}
        for name in ("share_sum", "correct_share_sum"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        for name in ("num_compared", "num_images", "num_correct"):
            self.add_state(name, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(
        self, model_or_preds: Model | Batch, images_or_preds: Batch, target: Batch | None = None
    ) -> None:
        """Count a batch: ``update(model, images, target)`` or ``update(preds_a, preds_b, target)``.

        Args:
            model_or_preds: A model in eval mode, called on shifted images; or the predictions of
                the first views: logits or labels, already unshifted.
            images_or_preds: Images ``(B, C, H, W)``, or a list of ``(C, H, W)`` of any sizes; or
                the predictions of the second views.
            target: Labels ``(B,)`` or masks ``(B, H, W)``, for the variant conditioned on correct
                predictions and for the pixels to ignore.
        """
        size = len(images_or_preds)
        if target is not None and len(target) != size:
            raise ValueError(f"{self._who}: got {size} images and {len(target)} targets.")
        with torch.no_grad():
            if not isinstance(images_or_preds, Tensor):
                for k in range(size):
                    first = model_or_preds if callable(model_or_preds) else model_or_preds[k][None]
                    one = None if target is None else torch.as_tensor(target[k])[None]
                    self._update_batch(first, images_or_preds[k][None], one)
                return
            whole = torch.as_tensor(target) if target is not None else None
            self._update_batch(model_or_preds, images_or_preds, whole)

    def compute(self) -> Tensor:
        """Return the fraction, float64 of shape ``()``; NaN if nothing was compared."""
        self._totals = {name: getattr(self, name).item() for name in self._defaults}
        return self.share_sum / self.num_compared

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson interval of the fraction over all processes, at the level ``confidence``.

        Pairs of one image are not independent, so the number of samples is the number of images:
        with several pairs per image the interval is wider than necessary, never too narrow.
        Calls ``compute``: in distributed runs, ask for it on every process.
        """
        fraction = float(self.compute())
        num = int(self._totals["num_images"])
        return wilson_interval(fraction if num else 0.0, num, self.confidence)

    @property
    def given_correct(self) -> float:
        """The fraction over what the first view of a pair labels correctly; needs ``target``.

        NaN if no target was given or nothing was correct. Calls ``compute``: in distributed runs,
        ask for it on every process.
        """
        self.compute()
        num = self._totals["num_correct"]
        return self._totals["correct_share_sum"] / num if num else float("nan")

    def reset(self) -> None:
        """Forget what was counted and rewind the shifts: the next run draws the same ones."""
        super().reset()
        if not self._keeps_draws:
            self._generator = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._keeps_draws = True  # torchmetrics resets the counts in between
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._keeps_draws = False

    @abstractmethod
    def _see(self, image: Tensor, offsets: Offsets) -> Tensor:
        """Return ``image``, ``(C, H, W)``, as the model sees it under a shift."""

    @abstractmethod
    def _align(
        self, a: Tensor, b: Tensor, target: Tensor | None, pair: Pair
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Bring the masks of one image's two views, and its target, to the same frame."""

    def _moves(self, model: Model) -> tuple[bool, ...]:
        """Tell along which axes images of a model are shifted."""
        return (True, True)

    def _offsets(self, size: int) -> range:
        """Return the shifts of an axis of ``size`` that ``shifts="all"`` goes through."""
        return range(min(self.max_shift + 1, size))

    @property
    def _lowest(self) -> int:
        """What is added to a draw from ``0..max_shift``."""
        return 0

    @property
    def _who(self) -> str:
        return type(self).__name__

    def _update_batch(self, first: Any, second: Tensor, target: Tensor | None) -> None:
        if not callable(first):
            a, b = (predicted_labels(preds, self.spatial) for preds in (first, second))
            self.num_images += self._count(a, b, target).sum()
            return
        if isinstance(first, nn.Module) and first.training:
            raise ValueError(
                f"{self._who}: the model is in training mode. Call model.eval() first."
            )
        if second.ndim != 4:
            raise ValueError(
                f"{self._who}: images must have shape (B, C, H, W), got {tuple(second.shape)}."
                " For images of several sizes pass a list of (C, H, W)."
            )
        if len(second):
            counted = [self._count_pair(*views, target) for views in self._views(first, second)]
            self.num_images += torch.stack(counted).any(0).sum()

    def _views(self, model: Model, images: Tensor) -> Iterator[tuple[Tensor, Tensor, list[Pair]]]:
        num, moves = len(images), self._moves(model)
        if self.shifts == "all":
            still = self._label(model, images, [(0, 0)] * num)
            axes = zip(images.shape[2:], moves, strict=True)
            for offsets in product(*(self._offsets(n) if yes else range(1) for n, yes in axes)):
                dy, dx = offsets
                if (dy, dx) != (0, 0):
                    moved = self._label(model, images, [(dy, dx)] * num)
                    yield still, moved, [((0, 0), (dy, dx))] * num
            return
        self._generator = self._generator or process_generator(self.seed)
        drawn = random_pairs(num, self.num_pairs, self.max_shift, self._generator) + self._lowest
        drawn = drawn * torch.tensor(moves)
        for k in range(self.num_pairs):
            pairs = [((ay, ax), (by, bx)) for (ay, ax), (by, bx) in drawn[:, k].tolist()]
            a, b = (self._label(model, images, [pair[view] for pair in pairs]) for view in (0, 1))
            yield a, b, pairs

    def _label(self, model: Model, images: Tensor, offsets: list[Offsets]) -> Tensor:
        seen = torch.stack([self._see(x, o) for x, o in zip(images, offsets, strict=True)])
        labels = predicted_labels(model(seen), self.spatial)
        expected = (len(seen), *seen.shape[2:][: self.spatial])
        if labels.shape != expected:
            raise ValueError(
                f"{self._who}: the model must give predictions for {expected}, got"
                f" {tuple(labels.shape)} for images of shape {tuple(seen.shape)}."
            )
        return labels

    def _count_pair(self, a: Tensor, b: Tensor, pairs: list[Pair], target: Tensor | None) -> Tensor:
        if not self.spatial:
            return self._count(a, b, target)
        counted = []
        for k, pair in enumerate(pairs):
            one = None if target is None else target[k]
            mask_a, mask_b, one = self._align(a[k], b[k], one, pair)
            counted.append(
                self._count(mask_a[None], mask_b[None], None if one is None else one[None])
            )
        return torch.cat(counted)

    def _count(self, a: Tensor, b: Tensor, target: Tensor | None) -> Tensor:
        """Add the shares of equal labels; return which images had anything to compare, ``(B,)``."""
        where = torch.ones_like(a, dtype=torch.bool)
        if target is not None:
            if target.shape != a.shape:
                raise ValueError(
                    f"{self._who}: target must have the shape of the labels {tuple(a.shape)}, got"
                    f" {tuple(target.shape)}."
                )
            target = target.to(a.device)
            if self.ignore_index is not None:
                where = target != self.ignore_index
        shares, counted = agreement(a, b, where)
        device = self.share_sum.device
        self.share_sum += shares.sum().to(device)
        self.num_compared += counted.sum().to(device)
        if target is not None:
            correct_shares, any_correct = agreement(a, b, where & (a == target))
            self.correct_share_sum += correct_shares.sum().to(device)
            self.num_correct += any_correct.sum().to(device)
        return counted.to(device)
