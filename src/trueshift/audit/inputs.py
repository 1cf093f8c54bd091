"""What an audit is given: images, shifts, and what a network makes of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trueshift._validate import check_positive
from trueshift.shifts import circular_shift, standard_shift

IGNORE = 255  # pixels without a label

Offsets = tuple[int, int]
Shifts = str | int | Sequence[Offsets]
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


def resolve_shifts(
    shifts: Shifts, kind: str, size: tuple[int, int], window: tuple[int, int], seed: int
) -> tuple[Offsets, ...]:
    """Return the shifts to measure, without (0, 0), in order.

    Args:
        shifts: ``"all"``, how many to draw at random, or a list of (dy, dx).
        kind: ``"circular"`` or ``"standard"``.
        size: Height and width of the images.
        window: Height and width of what the network sees.
        seed: Seed of the draw.

    Returns:
        Offsets; circular ones between minus half the size and half the size.

    Examples:
        >>> resolve_shifts("all", "circular", (2, 2), (2, 2), 0)
        ((-1, -1), (-1, 0), (0, -1))
    """
    ranges = shift_ranges(kind, size, window)
    total = math.prod(len(one) for one in ranges)
    if isinstance(shifts, str):
        if shifts != "all":
            raise ValueError(f"audit: shifts must be 'all', a number or a list, got {shifts!r}.")
        found = {(dy, dx) for dy in ranges[0] for dx in ranges[1]}
    elif isinstance(shifts, Sequence | Tensor):
        found = {_offsets(one, ranges, kind) for one in shifts}
    else:
        check_positive("audit", shifts=shifts)
        generator = torch.Generator().manual_seed(seed)
        zero = (0 - ranges[0].start) * len(ranges[1]) + (0 - ranges[1].start)
        drawn = torch.randperm(total, generator=generator)[: shifts + 1]
        kept = drawn[drawn != zero][:shifts].tolist()
        width = len(ranges[1])
        found = {(ranges[0][k // width], ranges[1][k % width]) for k in kept}
    found.discard((0, 0))
    if not found:
        raise ValueError(
            f"audit: no shift to compare with the unshifted image: images of size {size} seen"
            f" through {window} by {kind} shifts, shifts={shifts!r}. Use larger images, a smaller"
            " window or other shifts."
        )
    return tuple(sorted(found))


def shift_ranges(kind: str, size: tuple[int, int], window: tuple[int, int]) -> list[range]:
    """Return the shifts dy and dx that are possible.

    Examples:
        >>> shift_ranges("circular", (4, 5), (4, 5)), shift_ranges("standard", (4, 5), (3, 3))
        ([range(-2, 2), range(-2, 3)], [range(-1, 1), range(-1, 2)])
    """
    return [_range(kind, n, w) for n, w in zip(size, window, strict=True)]


def see(images: Tensor, kind: str, window: tuple[int, int], shift: Offsets) -> Tensor:
    """Return images as the network sees them under a shift."""
    if kind == "circular":
        return circular_shift(images, *shift)
    return standard_shift(images, window, *shift)


def default_window(size: tuple[int, int], multiple: int) -> tuple[int, int]:
    """Return the window of standard shifts: about three quarters of the image, in round numbers.

    Examples:
        >>> default_window((256, 256), 1), default_window((32, 32), 1)
        ((192, 192), (24, 24))
    """

    def side(pixels: int) -> int:
        step = math.lcm(multiple, 32 if pixels >= 128 else 8 if pixels >= 16 else 1)
        kept = pixels * 3 // 4 // step * step or pixels * 3 // 4 // multiple * multiple
        return kept or pixels

    return side(size[0]), side(size[1])


class Network:
    """A model as a function from images to one tensor of logits.

    Args:
        model: The network, or any function of images.
        output: Which part of what it returns, if that is a dict or a tuple: a key or an index;
            dots go deeper.
    """

    def __init__(self, model: Callable[[Tensor], Any], output: str | int | None) -> None:
        self.model, self.output = model, output
        self.module = model if isinstance(model, nn.Module) else None
        state = [] if self.module is None else [*self.module.parameters(), *self.module.buffers()]
        floating = [t for t in state if t.is_floating_point()]
        self.device = state[0].device if state else torch.device("cpu")
        self.dtype = floating[0].dtype if floating else torch.float32

    def __call__(self, images: Tensor) -> Tensor:
        seen = images.to(self.device, self.dtype)
        try:
            found = self._pick(self.model(seen))
        except (RuntimeError, AssertionError) as error:  # what torch and timm say of wrong shapes
            if isinstance(error, torch.OutOfMemoryError):
                raise MemoryError(
                    f"audit: no memory on {self.device} for {len(images)} images at once. Use a"
                    " smaller batch_size."
                ) from error
            raise ValueError(
                f"audit: the network does not take images of shape {tuple(images.shape)}. Check"
                f" their channels and size. It says: {error}"
            ) from error
        if found.ndim == 4 and found.shape[2:].numel() == 1:
            found = found.flatten(1)
        masks = found.ndim == 4 and found.shape[2:] == images.shape[2:]
        if not found.is_floating_point() or not (found.ndim == 2 or masks):
            raise ValueError(
                "audit: the network must return logits (B, classes), or (B, classes, H, W) as large"
                f" as the images, got {found.dtype} of shape {tuple(found.shape)} for images of"
                f" shape {tuple(images.shape)}."
            )
        if not found.isfinite().all():
            raise ValueError(
                "audit: the network's output holds NaN or infinity. Check its weights, and that"
                " the images are normalised as in training."
            )
        return found

    def _pick(self, found: Any) -> Tensor:
        for part in [] if self.output is None else str(self.output).split("."):
            keys = _keys(found)
            if part not in keys:
                raise ValueError(
                    f"audit: the network's output has no part {part!r}. Choose output from:"
                    f" {', '.join(keys) or 'nothing, it is one tensor'}."
                )
            found = found[part] if isinstance(found, dict) else found[int(part)]
        if not isinstance(found, Tensor):
            names = ", ".join(_keys(found))
            hint = f" Choose one part by output= (--output KEY), from: {names}." if names else ""
            raise ValueError(
                f"audit: the network returns a {type(found).__name__}, not a tensor.{hint}"
            )
        return found


def labels_of(logits: Tensor) -> Tensor:
    """Return the label of the largest logit; one channel alone is a logit of yes or no."""
    return (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)


def confidence_of(logits: Tensor) -> Tensor:
    """Return the probability of the label, ``(B,)``; for masks the mean over pixels."""
    logits = logits.float()
    one = logits.shape[1] == 1
    found = logits[:, 0].abs().sigmoid() if one else logits.softmax(1).amax(1)
    return found if found.ndim == 1 else found.flatten(1).mean(1)


@contextlib.contextmanager
def in_eval_mode(module: nn.Module | None) -> Iterator[None]:
    """Run a network in eval mode, without gradients; leave it as it was."""
    modules = [] if module is None else list(module.modules())
    modes = [one.training for one in modules]
    for one in modules:
        one.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for one, mode in zip(modules, modes, strict=True):
            one.training = mode


def _keys(found: Any) -> list[str]:
    if isinstance(found, dict):
        return [str(key) for key in found]
    return [str(i) for i in range(len(found))] if isinstance(found, tuple | list) else []


def _range(kind: str, pixels: int, window: int) -> range:
    if kind == "circular":
        return range(-(pixels // 2), pixels - pixels // 2)
    room = pixels - window
    return range(room // 2 - room, room // 2 + 1)


def _offsets(given: Any, ranges: list[range], kind: str) -> Offsets:
    pair = tuple(int(v) for v in given) if isinstance(given, Sequence | Tensor) else ()
    if len(pair) != 2:
        raise ValueError(f"audit: shifts must be pairs (dy, dx), got {given!r} among them.")
    if kind == "circular":
        dy, dx = (r.start + (v - r.start) % len(r) for v, r in zip(pair, ranges, strict=True))
        return dy, dx
    if any(v not in r for v, r in zip(pair, ranges, strict=True)):
        spans = " and ".join(f"{r.start}..{r.stop - 1}" for r in ranges)
        raise ValueError(
            f"audit: the standard shift {pair} moves the window out of the image; allowed: {spans}."
            " Use larger images or a smaller window."
        )
    return pair[0], pair[1]
