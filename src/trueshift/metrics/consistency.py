"""C-Cons., S-Cons., mASCC and mASSC of the paper (section 5) as torchmetrics classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from trueshift.metrics.agreement import IGNORE_INDEX
from trueshift.metrics.base import Consistency, Model, Offsets, Pair
from trueshift.shifts import (
    check_wraps,
    circular_shift,
    common_region,
    standard_shift,
    wraps_of,
)


class CircularConsistency(Consistency):
    """C-Cons.: how often two circular shifts of an image get the same label (paper section 5.1).

    Protocol. ``update(model, images)`` draws h1, w1, h2, w2 uniformly from ``0..max_shift``
    (inclusive) for every image by itself, ``num_pairs`` times, from a generator of its own seeded
    with ``seed`` + the rank of the process; ``reset`` rewinds it, so every epoch sees the same
    shifts. The first image of a pair is the input moved by (h1, w1), the second by (h2, w2).
    With ``shifts="all"`` every shift of ``0..max_shift`` (each once: at most the size of the image)
    is compared with the unshifted image instead. ``update(preds_a, preds_b)`` counts predictions
    that were made elsewhere: logits ``(B, C)`` or labels ``(B,)``.

    On a cylinder images are shifted only along the axes that wrap: those of ``wraps``, or those
    that the model names in ``spec`` or ``plan``; other draws count as 0.

    The paper reports one pair per image, averaged over five seeds.

    Args:
        num_pairs: Pairs per image.
        max_shift: Largest shift, 32 in the paper.
        shifts: ``"random"`` or ``"all"``.
        seed: Seed of the shifts.
        confidence: Level of :attr:`interval`.
        wraps: Which axes wrap, (vertical, horizontal); ``None`` means those that the model names,
            else both.
        **kwargs: Passed to ``torchmetrics.Metric``.

    Examples:
        >>> import torch
        >>> metric = CircularConsistency()
        >>> metric.update(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 0]))
        >>> metric.compute()
        tensor(0.7500, dtype=torch.float64)
        >>> metric.update(lambda images: images.mean((2, 3)), torch.rand(4, 3, 8, 8).double())
        >>> metric.compute()
        tensor(0.8750, dtype=torch.float64)
    """

    spatial = 0

    def __init__(
        self,
        num_pairs: int = 1,
        max_shift: int = 32,
        shifts: Literal["random", "all"] = "random",
        seed: int = 0,
        confidence: float = 0.95,
        wraps: Sequence[bool] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_pairs, max_shift, shifts, seed, confidence, **kwargs)
        self.wraps = check_wraps(type(self).__name__, wraps)

    def _moves(self, model: Model) -> tuple[bool, ...]:
        return self.wraps or wraps_of(model) or super()._moves(model)

    def _see(self, image: Tensor, offsets: Offsets) -> Tensor:
        return circular_shift(image, *offsets)

    def _align(
        self, a: Tensor, b: Tensor, target: Tensor | None, pair: Pair
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        (ay, ax), (by, bx) = pair
        return circular_shift(a, -ay, -ax), circular_shift(b, -by, -bx), target


class ShiftConsistency(Consistency):
    """S-Cons.: how often two standard shifts of an image get the same label (paper section 5.2).

    Protocol. As :class:`CircularConsistency`, but each draw moves the image behind a window of
    ``size`` pixels, and the window is what the model sees: "shift, then crop the centre". Nothing
    is padded, so the image must be larger than the window by at least ``max_shift``: 256 for the
    paper's 224 and 32. A draw h from ``0..max_shift`` moves the content by
    ``h - (max_shift + 1) // 2`` away from the centre, so that with 256 and 224 every window is
    equally likely. With ``shifts="all"`` every window is compared with the centre.

    Args:
        size: Size of the crop, or (height, width); None: the image without ``max_shift``.
        num_pairs: Pairs per image.
        max_shift: Largest difference of two shifts, 32 in the paper.
        shifts: ``"random"`` or ``"all"``.
        seed: Seed of the shifts.
        confidence: Level of :attr:`interval`.
        **kwargs: Passed to ``torchmetrics.Metric``.

    Examples:
        >>> import torch
        >>> metric = ShiftConsistency(size=6, max_shift=2)
        >>> metric.update(lambda images: images.mean((2, 3)), torch.ones(4, 3, 8, 8))
        >>> metric.compute(), [round(end, 2) for end in metric.interval]
        (tensor(1., dtype=torch.float64), [0.51, 1.0])
    """

    spatial = 0

    def __init__(
        self,
        size: int | Sequence[int] | None = 224,
        num_pairs: int = 1,
        max_shift: int = 32,
        shifts: Literal["random", "all"] = "random",
        seed: int = 0,
        confidence: float = 0.95,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_pairs, max_shift, shifts, seed, confidence, **kwargs)
        self.size = size

    @property
    def _lowest(self) -> int:
        return -((self.max_shift + 1) // 2)

    def _offsets(self, size: int) -> range:
        return range(self._lowest, self._lowest + self.max_shift + 1)

    def _window(self, image: Tensor) -> tuple[int, int]:
        height, width = image.shape[-2:]
        if self.size is None:
            window = (height - self.max_shift, width - self.max_shift)
        elif isinstance(self.size, Sequence):
            window = (self.size[0], self.size[1])
        else:
            window = (self.size, self.size)
        needed = tuple(max(size, 1) + self.max_shift for size in window)
        if height < needed[0] or width < needed[1]:
            raise ValueError(
                f"{self._who}: size={self.size} and max_shift={self.max_shift} need images of at"
                f" least {needed}, got {(height, width)}. Pass larger images, a smaller max_shift,"
                " or a smaller size (None: the image without max_shift)."
            )
        return window

    def _see(self, image: Tensor, offsets: Offsets) -> Tensor:
        return standard_shift(image, self._window(image), *offsets)

    def _align(
        self, a: Tensor, b: Tensor, target: Tensor | None, pair: Pair
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        if target is not None:
            seen = standard_shift(target, self._window(target), *pair[0])
            target, _ = common_region(seen, seen, *pair)
        return *common_region(a, b, *pair), target


class MaskCircularConsistency(CircularConsistency):
    """mASCC: share of pixels whose label two circular shifts agree on (paper section 5.4).

    Protocol. Shifts are drawn as in :class:`CircularConsistency`, five pairs for every image. Each
    predicted mask is moved back by its shift; a pair scores the share of its pixels with equal
    labels; the metric is the mean over pairs. Pixels whose target is ``ignore_index`` do not
    count where a target is given. Images of several sizes come as a list, one size per call of
    the model.

    Args:
        num_pairs: Pairs per image, 5 in the paper.
        max_shift: Largest shift.
        shifts: ``"random"`` or ``"all"``.
        seed: Seed of the shifts.
        confidence: Level of :attr:`interval`.
        ignore_index: Label of the pixels that do not count.
        wraps: As for :class:`CircularConsistency`.
        **kwargs: Passed to ``torchmetrics.Metric``.

    Examples:
        >>> import torch
        >>> metric = MaskCircularConsistency()
        >>> images = [torch.rand(3, 8, 8), torch.rand(3, 6, 10)]
        >>> metric.update(lambda image: image, images)  # a logit per channel, pixel by pixel
        >>> metric.compute()
        tensor(1., dtype=torch.float64)
    """

    spatial = 2

    def __init__(
        self,
        num_pairs: int = 5,
        max_shift: int = 32,
        shifts: Literal["random", "all"] = "random",
        seed: int = 0,
        confidence: float = 0.95,
        ignore_index: int = IGNORE_INDEX,
        wraps: Sequence[bool] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_pairs, max_shift, shifts, seed, confidence, wraps, **kwargs)
        self.ignore_index = ignore_index


class MaskShiftConsistency(ShiftConsistency):
    """mASSC: share of pixels whose label two standard shifts agree on (paper section 5.5).

    Protocol. Shifts are drawn as in :class:`ShiftConsistency`, five pairs for every image; the
    model sees windows of the image, by default as large as ``max_shift`` allows. The masks of a
    pair are compared where both windows show the same content; the pixels beyond, at the boundary,
    are ignored. Everything else is as in :class:`MaskCircularConsistency`; ``target`` has the size
    of the whole image.

    Args:
        size: Size of the crop, or (height, width); None: the image without ``max_shift``.
        num_pairs: Pairs per image, 5 in the paper.
        max_shift: Largest difference of two shifts.
        shifts: ``"random"`` or ``"all"``.
        seed: Seed of the shifts.
        confidence: Level of :attr:`interval`.
        ignore_index: Label of the pixels that do not count.
        **kwargs: Passed to ``torchmetrics.Metric``.

    Examples:
        >>> import torch
        >>> metric = MaskShiftConsistency(max_shift=4)
        >>> metric.update(lambda image: image, torch.rand(2, 3, 12, 16))
        >>> metric.compute()
        tensor(1., dtype=torch.float64)
    """

    spatial = 2

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        num_pairs: int = 5,
        max_shift: int = 32,
        shifts: Literal["random", "all"] = "random",
        seed: int = 0,
        confidence: float = 0.95,
        ignore_index: int = IGNORE_INDEX,
        **kwargs: Any,
    ) -> None:
        super().__init__(size, num_pairs, max_shift, shifts, seed, confidence, **kwargs)
        self.ignore_index = ignore_index
