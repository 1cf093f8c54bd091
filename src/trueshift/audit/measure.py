"""``audit``: run a network on shifted images and compare."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from trueshift._validate import check_choice, check_positive
from trueshift.audit.inputs import (
    Images,
    ImageSource,
    Network,
    Offsets,
    Shifts,
    confidence_of,
    default_window,
    in_eval_mode,
    labels_of,
    resolve_shifts,
    see,
)
from trueshift.audit.layers import LayerError, LayerRecorder
from trueshift.audit.margins import SelectorRecorder
from trueshift.audit.results import AuditResult, Example, Measurement, Spread
from trueshift.shifts import circular_shift, common_region, standard_shift

KINDS = ("circular", "standard", "both")
IGNORE = 255  # pixels without a label
_LAYER_IMAGES = 4
_LAYER_SHIFTS = ((0, 1), (1, 0), (1, 1), (3, 2))
_KEPT = 2**20  # changes kept for the median
_VIEW_RADIUS = {"classification": 8, "segmentation": 4}
_VIEW_PIXELS = 2**22  # of all masks of one example

Progress = Callable[[int, int], None]


def audit(
    model: Callable[[Tensor], Any],
    images: Images,
    labels: Tensor | None = None,
    shifts: Shifts = "all",
    kind: str = "circular",
    output: str | int | None = None,
    batch_size: int = 64,
    progress: Progress | None = None,
    *,
    window: int | None = None,
    examples: int | Sequence[int] = 4,
    layers: bool = True,
    seed: int = 0,
    name: str | None = None,
    class_names: Sequence[str] | None = None,
    images_from: str = "the caller",
) -> AuditResult:
    """Measure how much a network changes when its input moves, and where inside it breaks.

    Every shifted image is compared with the unshifted one, in eval mode, on the network's own
    device. Masks are moved back first. No more than a batch of outputs is kept at a time.

    Args:
        model: A classifier ``(B, C, H, W) -> (B, classes)`` or a segmenter ``-> (B, classes, H,
            W)``. Of a single class the logit's sign is the label.
        images: ``(N, C, H, W)``, floating and normalised as in training; or a sequence of
            ``(C, H, W)`` or ``(image, label)`` of one size, read when needed.
        labels: ``(N,)``, or masks ``(N, H, W)`` where 255 does not count; for the accuracy.
        shifts: ``"all"``, a number to draw at random, or a list of (dy, dx).
        kind: ``"circular"``: what leaves re-enters opposite; ``"standard"``: the network sees a
            window of the image that moves; or ``"both"``.
        output: Key or index of the logits in a dict or tuple; dots go deeper: ``"out.0"``.
        batch_size: Images per call of the network.
        progress: Called with the number of images seen so far and to see in all.
        window: Size of the window of standard shifts; by default about three quarters.
        examples: How many of the least consistent images to keep for the report, or which ones.
        layers: Also measure the error of every module.
        seed: Seed of random shifts.
        name: What to call the network; by default its class.
        class_names: Names of the labels.
        images_from: Where the images come from, for the report.

    Returns:
        The numbers, with ``to_html`` and ``to_json``.

    Example:
        >>> from trueshift import Sampling, models
        >>> net = models.resnet(Sampling("lps"), (1, 1), (4, 8), num_classes=3, stem="cifar")
        >>> result = audit(net, torch.rand(2, 3, 8, 8))
        >>> result.consistency, result.bitwise_equal
        (1.0, True)
    """
    start = time.perf_counter()
    check_choice("audit", "kind", kind, KINDS)
    check_positive("audit", batch_size=batch_size)
    if not callable(model):
        raise TypeError(f"audit: model must be a network, got {type(model).__name__}.")
    source, network = ImageSource(images, labels), Network(model, output)
    run = _Run(source, network, batch_size, window, seed, progress)
    kinds = ("circular", "standard") if kind == "both" else (kind,)
    with in_eval_mode(network.module):
        measurements = run.measure(kinds, shifts)
        chosen = _worst(measurements[0], examples, len(source))
        view, shown = run.view(measurements[0], chosen)
        first = shown[0].index if shown else 0
        recorder, found = run.inside(measurements[0], first) if layers else (None, ())
    return AuditResult(
        name=name or type(model).__name__,
        task=run.task,
        num_images=len(source),
        image_shape=source.shape,
        measurements=tuple(measurements),
        layers=found,
        layer_shifts=run.layer_shifts(measurements[0]) if found else (),
        margins=run.selectors.margins() if run.selectors is not None else (),
        choices=() if recorder is None else tuple(recorder.choices.values()),
        examples=shown,
        view=view,
        class_names=None if class_names is None else tuple(class_names),
        images_from=images_from,
        device=str(network.device),
        dtype=str(network.dtype).removeprefix("torch."),
        batch_size=batch_size,
        seconds=time.perf_counter() - start,
        versions={"python": platform.python_version(), "torch": torch.__version__},
    )


class _Run:
    """What the parts of one audit share."""

    def __init__(
        self,
        source: ImageSource,
        network: Network,
        batch_size: int,
        window: int | None,
        seed: int,
        progress: Progress | None,
    ) -> None:
        self.source, self.network = source, network
        self.batch_size, self.seed, self.progress = batch_size, seed, progress
        self.size = source.shape[1:]
        self.window = self._window(window)
        self.selectors = SelectorRecorder(network.module) if network.module is not None else None
        self.task = ""

    def measure(self, kinds: Sequence[str], shifts: Shifts) -> list[Measurement]:
        """Compare all images at all shifts, one kind after the other."""
        plans = [(kind, self._seen(kind)) for kind in kinds]
        found = [
            resolve_shifts(shifts, kind, self.size, window, self.seed) for kind, window in plans
        ]
        total = sum(len(one) for one in found) * len(self.source)
        done, measurements = 0, []
        for (kind, window), offsets in zip(plans, found, strict=True):
            tally = _Tally(kind, window, offsets, len(self.source))
            for indices in self._batches():
                images, labels = self.source.batch(indices)
                record = kind == kinds[0]
                for part in self._compare(images, labels, tally, indices, record):
                    done += part
                    if self.progress is not None:
                        self.progress(done, total)
            measurements.append(tally.result())
        return measurements

    def view(
        self, measured: Measurement, chosen: Sequence[int]
    ) -> tuple[tuple[Offsets, ...], tuple[Example, ...]]:
        """Predict a few images at every shift of a small square, for the interactive picture."""
        allowed = resolve_shifts("all", measured.kind, self.size, measured.window, 0)
        reach = min(_VIEW_RADIUS[self.task], *(n // 2 for n in self.size))
        measured_pairs = len(self.source) * len(measured.shifts)
        while reach > 4 and (2 * reach + 1) ** 2 * len(chosen) > measured_pairs:
            reach -= 1  # what is only looked at should not take longer than what is measured
        if self.task == "segmentation":
            pixels = measured.window[0] * measured.window[1]
            while reach > 1 and (2 * reach + 1) ** 2 * pixels > _VIEW_PIXELS:
                reach -= 1
        near = {(dy, dx) for dy, dx in (*allowed, (0, 0)) if max(abs(dy), abs(dx)) <= reach}
        view = tuple(sorted(near))
        return view, tuple(self._example(index, view, measured) for index in chosen)

    def inside(
        self, measured: Measurement, first: int
    ) -> tuple[SelectorRecorder | None, tuple[LayerError, ...]]:
        """Compare the maps inside the network on a few images; note what selectors see of one."""
        if self.network.module is None or self.selectors is None:
            return None, ()
        recorder = LayerRecorder(self.network.module, measured.kind)
        count = min(_LAYER_IMAGES, max(self.batch_size // 2, 1), len(self.source))
        images, _ = self.source.batch(range(count))
        still = see(images, measured.kind, measured.window, (0, 0))
        for shift in self.layer_shifts(measured):
            moved = see(images, measured.kind, measured.window, shift)
            with recorder.recording(measured.window, shift):
                self.network(torch.cat([still, moved]))
        looked = SelectorRecorder(self.network.module)
        one = see(self.source.batch([first])[0], measured.kind, measured.window, (0, 0))
        with looked.recording(1, picture=0):
            self.network(one)
        return looked, recorder.errors()

    def layer_shifts(self, measured: Measurement) -> tuple[Offsets, ...]:
        """Return the shifts at which modules are compared: a few small ones that are allowed."""
        allowed = set(resolve_shifts("all", measured.kind, self.size, measured.window, 0))
        return tuple(shift for shift in _LAYER_SHIFTS if shift in allowed) or tuple(
            sorted(allowed, key=lambda s: (abs(s[0]) + abs(s[1]), s))[:1]
        )

    def _window(self, given: int | None) -> tuple[int, int]:
        multiple = getattr(self.network.module, "required_multiple", 1)
        if given is None:
            return default_window(self.size, multiple if isinstance(multiple, int) else 1)
        check_positive("audit", window=given)
        if given > min(self.size):
            raise ValueError(
                f"audit: window={given} is larger than the images, {self.size}. Use a smaller one."
            )
        return given, given

    def _seen(self, kind: str) -> tuple[int, int]:
        return self.size if kind == "circular" else self.window

    def _batches(self) -> Iterator[range]:
        num = len(self.source)
        for low in range(0, num, self.batch_size):
            yield range(low, min(low + self.batch_size, num))

    def _compare(
        self, images: Tensor, labels: Tensor | None, tally: _Tally, indices: range, record: bool
    ) -> Iterator[int]:
        """Compare a few images at all shifts; yield how many were seen in each call.

        A call holds several shifts if there are few images. Every call has the same size, and an
        image is compared with itself at the same place of the batch: how a sum over channels rounds
        may depend on both.
        """
        at_once = max(self.batch_size // len(images), 1)
        at_once = min(at_once, len(tally.shifts))
        still = see(images, tally.kind, tally.window, (0, 0)).repeat(at_once, 1, 1, 1)
        reference = self._reference(still, len(images), record)
        tally.start(reference[: len(images)], labels, indices)
        for low in range(0, len(tally.shifts), at_once):
            shifts = tally.shifts[low : low + at_once]
            padded = shifts + ((0, 0),) * (at_once - len(shifts))
            moved = torch.cat([see(images, tally.kind, tally.window, s) for s in padded])
            found = self.network(moved)
            for k in range(len(shifts)):
                rows = slice(k * len(images), (k + 1) * len(images))
                tally.add(low + k, reference[rows], found[rows], labels, indices)
            yield len(images) * len(shifts)

    def _reference(self, still: Tensor, rows: int, record: bool) -> Tensor:
        """Return the outputs of unshifted images; note what selectors make of the first rows."""
        if self.selectors is not None and record:
            with self.selectors.recording(rows):
                found = self.network(still)
        else:
            found = self.network(still)
        self.task = "classification" if found.ndim == 2 else "segmentation"
        return found

    def _example(self, index: int, view: tuple[Offsets, ...], measured: Measurement) -> Example:
        images, labels = self.source.batch([index])
        found, sure = [], []
        for low in range(0, len(view), self.batch_size):
            part = view[low : low + self.batch_size]
            moved = torch.cat([see(images, measured.kind, measured.window, s) for s in part])
            logits = self.network(moved)
            found.append(labels_of(logits).cpu())
            sure.append(confidence_of(logits).cpu())
        target = int(labels[0]) if labels is not None and labels.ndim == 1 else None
        return Example(
            index=index,
            picture=as_picture(images[0]),
            target=target,
            consistency=measured.image_shares[index],
            labels=torch.cat(found),
            confidences=torch.cat(sure),
        )


class _Tally:
    """Counts of one kind of shift."""

    def __init__(
        self, kind: str, window: tuple[int, int], shifts: tuple[Offsets, ...], num_images: int
    ) -> None:
        self.kind, self.window, self.shifts = kind, window, shifts
        self.shares = torch.zeros(len(shifts), dtype=torch.float64)
        self.image_shares = torch.zeros(num_images, dtype=torch.float64)
        self.correct = torch.zeros(len(shifts), 2, dtype=torch.float64)  # right, counted
        self.correct_still = torch.zeros(2, dtype=torch.float64)
        self.largest, self.bitwise = 0.0, 0
        self.changes: list[Tensor] = []
        self.every = -(-len(shifts) * num_images // _KEPT)
        self.num_compared = 0
        self.moments = torch.zeros(3, dtype=torch.float64)  # count, sum, sum of squares

    def start(self, reference: Tensor, labels: Tensor | None, indices: range) -> None:
        values = reference.detach().double()
        sums = torch.stack([values.sum(), values.square().sum()]).cpu()
        self.moments += torch.cat([torch.tensor([float(values.numel())]), sums])
        if labels is not None:
            self.correct_still += self._right(labels_of(reference), labels, (0, 0))

    def add(
        self, k: int, reference: Tensor, found: Tensor, labels: Tensor | None, indices: range
    ) -> None:
        """Count a batch at shift number ``k``."""
        from trueshift.metrics.agreement import agreement  # the package needs torchmetrics

        shift = self.shifts[k]
        still, moved = self._aligned(reference, found, shift)
        same, _ = agreement(labels_of(still), labels_of(moved))
        self.shares[k] += same.sum().cpu()
        self.image_shares[indices.start : indices.stop] += same.cpu()
        change = (still - moved).abs().flatten(1).amax(1).float().cpu()
        self.largest = max(self.largest, float(change.max()))
        self.bitwise += int((change == 0).sum())
        offset = -self.num_compared % self.every
        self.changes.append(change[offset :: self.every])
        self.num_compared += len(change)
        if labels is not None:
            self.correct[k] += self._right(labels_of(found), labels, shift)

    def result(self) -> Measurement:
        """Return the fractions."""
        from trueshift.metrics.agreement import wilson_interval  # the package needs torchmetrics

        num_images, num_shifts = len(self.image_shares), len(self.shifts)
        shares = self.shares / num_images
        consistency = float(shares.mean()) if bool((shares < 1).any()) else 1.0
        count, total, squares = self.moments.tolist()
        variance = max(squares / count - (total / count) ** 2, 0.0)
        return Measurement(
            kind=self.kind,
            window=self.window,
            shifts=self.shifts,
            shares=tuple(shares.tolist()),
            consistency=consistency,
            interval=wilson_interval(consistency, num_images),
            worst_shift=self.shifts[int(shares.argmin())],
            accuracy=self._accuracy(),
            largest_change=self.largest,
            median_change=float(torch.cat(self.changes).median()),
            output_scale=variance**0.5,
            bitwise_share=self.bitwise / self.num_compared,
            image_shares=tuple((self.image_shares / num_shifts).tolist()),
        )

    def _accuracy(self) -> Spread | None:
        if self.correct_still[1] == 0:
            return None
        each = self.correct[:, 0] / self.correct[:, 1].clamp(min=1)
        still = float(self.correct_still[0] / self.correct_still[1])
        return Spread(still, float(each.min()), float(each.mean()), float(each.max()))

    def _aligned(self, still: Tensor, moved: Tensor, shift: Offsets) -> tuple[Tensor, Tensor]:
        """Move the outputs of a segmenter back; those of a classifier are where they are."""
        if still.ndim == 2:
            return still, moved
        if self.kind == "circular":
            return still, circular_shift(moved, -shift[0], -shift[1])
        return common_region(still, moved, (0, 0), shift)

    def _right(self, found: Tensor, labels: Tensor, shift: Offsets) -> Tensor:
        """Return how many labels are right and how many count."""
        target = labels.to(found.device)
        if found.ndim == 3:
            move = self.kind == "circular"
            target = (
                circular_shift(target, *shift)
                if move
                else standard_shift(target, self.window, *shift)
            )
        if target.shape != found.shape:
            raise ValueError(
                f"audit: labels must have shape {tuple(found.shape)} for this network, got"
                f" {tuple(target.shape)}."
            )
        counts = target != IGNORE if found.ndim == 3 else torch.ones_like(target, dtype=torch.bool)
        right = ((found == target) & counts).sum()
        return torch.stack([right, counts.sum()]).double().cpu()


def as_picture(image: Tensor) -> Tensor:
    """Return what a person sees of a normalised image: uint8 ``(3, H, W)``, stretched to 0..255.

    Example:
        >>> as_picture(torch.tensor([[[-1.0, 0.0, 1.0]]]))[0]
        tensor([[  0, 128, 255]], dtype=torch.uint8)
    """
    image = image.detach().float().cpu()
    image = image if image.shape[0] == 3 else image.mean(0, keepdim=True).expand(3, -1, -1)
    low, high = float(image.min()), float(image.max())
    return ((image - low) * (255 / max(high - low, 1e-12))).round().to(torch.uint8)


def _worst(
    measured: Measurement, examples: int | Sequence[int], num_images: int
) -> tuple[int, ...]:
    if isinstance(examples, int):
        shares = torch.tensor(measured.image_shares)
        return tuple(shares.argsort(stable=True)[:examples].tolist())
    bad = [index for index in examples if not 0 <= index < num_images]
    if bad:
        raise ValueError(f"audit: examples must be in 0..{num_images - 1}, got {bad[0]}.")
    return tuple(examples)
