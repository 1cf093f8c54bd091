"""The passes of an audit: compare outputs, show a few images, look inside."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trueshift._validate import check_positive
from trueshift.audit.inputs import (
    ImageSource,
    Network,
    Offsets,
    Shifts,
    confidence_of,
    default_window,
    labels_of,
    resolve_shifts,
    see,
    shift_ranges,
)
from trueshift.audit.layers import LayerError, LayerRecorder
from trueshift.audit.margins import Choice, SelectorRecorder
from trueshift.audit.probes import learned_layers
from trueshift.audit.results import Example, Measurement
from trueshift.audit.selection import Selection, diagnose_selectors
from trueshift.audit.tally import Tally

_DRAWS = 3  # of random choices
_RUNS = 2 + _DRAWS
_LAYER_IMAGES = 4
_LAYER_SHIFTS = ((0, 1), (1, 0), (1, 1), (3, 2))
_VIEW_RADIUS = {"classification": 8, "segmentation": 4}
_VIEW_PIXELS = 2**22  # of all masks of one example

Progress = Callable[[int, int], None]


class Plan(NamedTuple):
    """One kind of shift: what the network sees, and the shifts to measure."""

    kind: str
    window: tuple[int, int]
    shifts: tuple[Offsets, ...]


def make_plans(
    source: ImageSource,
    network: Network,
    kinds: Sequence[str],
    shifts: Shifts,
    window: int | None,
    seed: int,
) -> tuple[Plan, ...]:
    """Return what to measure for every kind of shift; arguments as for :func:`audit`."""
    size = source.shape[1:]
    standard = _window(network.module, size, window)
    plans = []
    for kind in kinds:
        seen = size if kind == "circular" else standard
        plans.append(Plan(kind, seen, resolve_shifts(shifts, kind, size, seen, seed)))
    return tuple(plans)


class Passes:
    """What the passes of one audit share. The first plan is the one that is shown.

    Args:
        source: The images.
        network: The network, in eval mode.
        plans: What to measure.
        batch_size: Images per call.
        num_examples: How many images :meth:`view` will be asked for.
        layers: Whether to look inside, if there is an inside.
        progress: Called with the number of images seen so far and to see in all passes.
    """

    def __init__(
        self,
        source: ImageSource,
        network: Network,
        plans: tuple[Plan, ...],
        batch_size: int,
        num_examples: int,
        layers: bool,
        progress: Progress | None,
    ) -> None:
        self.source, self.network, self.plans = source, network, plans
        self.batch_size, self.num_examples, self.progress = batch_size, num_examples, progress
        self.layers = layers and network.module is not None
        self.selectors = SelectorRecorder(network.module) if network.module is not None else None
        self.learns = self.layers and bool(learned_layers(network.module))  # type: ignore[arg-type]
        self.done, self.task = 0, ""

    def measure(self) -> tuple[Measurement, ...]:
        """Compare all images at all shifts, one kind after the other."""
        measurements = []
        for plan in self.plans:
            tally = Tally(*plan, len(self.source))
            for indices in self._batches():
                images, labels = self.source.batch(indices)
                self._compare(images, labels, tally, indices, record=plan is self.plans[0])
            measurements.append(tally.result())
        return tuple(measurements)

    def view(self, measured: Measurement, chosen: Sequence[int]) -> tuple[Example, ...]:
        """Predict a few images at every shift of :attr:`view_shifts`."""
        return tuple(self._example(index, measured) for index in chosen)

    def inside(self, first: int) -> tuple[tuple[Choice, ...], tuple[LayerError, ...]]:
        """Compare the maps inside the network on a few images; note what selectors see of one."""
        module, plan = self.network.module, self.plans[0]
        if not self.layers or module is None:
            return (), ()
        recorder = LayerRecorder(module, plan.kind)
        images, _ = self.source.batch(range(self._num_inside))
        still = see(images, plan.kind, plan.window, (0, 0))
        for shift in self.layer_shifts:
            moved = see(images, plan.kind, plan.window, shift)
            with recorder.recording(2 * len(images), plan.window, shift):
                self.network(torch.cat([still, moved]))
            self._tell(len(images))
        selectors = SelectorRecorder(module)
        if selectors.layers:
            one = see(self.source.batch([first])[0], plan.kind, plan.window, (0, 0))
            with selectors.recording(1, picture=0):
                self.network(one)
        return tuple(selectors.choices.values()), recorder.errors()

    def selection(self) -> Selection | None:
        """Diagnose learned selectors on the unshifted images, if there are any."""
        if not self.learns:
            return None
        plan = self.plans[0]

        def batches() -> Iterator[tuple[Tensor, Tensor | None]]:
            for indices in self._batches():
                images, labels = self.source.batch(indices)
                if labels is not None and labels.ndim > 1:
                    labels = see(labels, plan.kind, plan.window, (0, 0))
                yield see(images, plan.kind, plan.window, (0, 0)), labels
                self._tell(_RUNS * len(images))

        return diagnose_selectors(self.network.model, batches(), _DRAWS, output=self.network.output)

    @functools.cached_property
    def view_shifts(self) -> tuple[Offsets, ...]:
        """A small square of shifts around none; known when the network has been called."""
        plan = self.plans[0]
        reach = min(_VIEW_RADIUS[self.task], *(n // 2 for n in self.source.shape[1:]))
        num_measured = len(self.source) * len(plan.shifts)
        while reach > 4 and (2 * reach + 1) ** 2 * self.num_examples > num_measured:
            reach -= 1  # what is only looked at should not take longer than what is measured
        if self.task == "segmentation":
            pixels = plan.window[0] * plan.window[1]
            while reach > 1 and (2 * reach + 1) ** 2 * pixels > _VIEW_PIXELS:
                reach -= 1
        near = [[v for v in axis if abs(v) <= reach] for axis in self._ranges]
        return tuple(itertools.product(*near))  # type: ignore[arg-type]

    @functools.cached_property
    def layer_shifts(self) -> tuple[Offsets, ...]:
        """The shifts at which modules are compared: a few small ones that are allowed."""
        rows, columns = self._ranges
        few = tuple((dy, dx) for dy, dx in _LAYER_SHIFTS if dy in rows and dx in columns)
        return few or (min(self.plans[0].shifts, key=lambda s: abs(s[0]) + abs(s[1])),)

    @property
    def _ranges(self) -> list[range]:
        return shift_ranges(self.plans[0].kind, self.source.shape[1:], self.plans[0].window)

    @property
    def _num_inside(self) -> int:
        return min(_LAYER_IMAGES, max(self.batch_size // 2, 1), len(self.source))

    @functools.cached_property
    def _total(self) -> int:
        measured = len(self.source) * sum(len(plan.shifts) for plan in self.plans)
        shown = self.num_examples * len(self.view_shifts)
        inside = self._num_inside * len(self.layer_shifts) if self.layers else 0
        selection = _RUNS * len(self.source) if self.learns else 0
        return measured + shown + inside + selection

    def _tell(self, num_images: int) -> None:
        self.done += num_images
        if self.progress is not None:
            self.progress(self.done, self._total)

    def _batches(self) -> Iterator[range]:
        num = len(self.source)
        for low in range(0, num, self.batch_size):
            yield range(low, min(low + self.batch_size, num))

    def _compare(
        self, images: Tensor, labels: Tensor | None, tally: Tally, indices: range, record: bool
    ) -> None:
        """Compare a few images at all shifts.

        A call holds several shifts if there are few images. Every call has the same size, and an
        image is compared with itself at the same place of the batch: how a sum over channels rounds
        may depend on both.
        """
        at_once = max(self.batch_size // len(images), 1)
        at_once = min(at_once, len(tally.shifts))
        still = see(images, tally.kind, tally.window, (0, 0)).repeat(at_once, 1, 1, 1)
        reference = self._reference(still, len(images), record)
        tally.start(reference[: len(images)], labels)
        for low in range(0, len(tally.shifts), at_once):
            shifts = tally.shifts[low : low + at_once]
            padded = shifts + ((0, 0),) * (at_once - len(shifts))
            moved = torch.cat([see(images, tally.kind, tally.window, s) for s in padded])
            found = self.network(moved)
            for k in range(len(shifts)):
                rows = slice(k * len(images), (k + 1) * len(images))
                tally.add(low + k, reference[rows], found[rows], labels, indices)
            self._tell(len(images) * len(shifts))

    def _reference(self, still: Tensor, rows: int, record: bool) -> Tensor:
        """Return the outputs of unshifted images; note what selectors make of the first rows."""
        if self.selectors is not None and record:
            with self.selectors.recording(rows):
                found = self.network(still)
        else:
            found = self.network(still)
        self.task = "classification" if found.ndim == 2 else "segmentation"
        return found

    def _example(self, index: int, measured: Measurement) -> Example:
        images, labels = self.source.batch([index])
        found, sure = [], []
        for low in range(0, len(self.view_shifts), self.batch_size):
            part = self.view_shifts[low : low + self.batch_size]
            moved = torch.cat([see(images, measured.kind, measured.window, s) for s in part])
            logits = self.network(moved)
            found.append(labels_of(logits).cpu())
            sure.append(confidence_of(logits).cpu())
            self._tell(len(part))
        target = int(labels[0]) if labels is not None and labels.ndim == 1 else None
        return Example(
            index=index,
            picture=as_picture(images[0]),
            target=target,
            consistency=measured.image_shares[index],
            labels=torch.cat(found),
            confidences=torch.cat(sure),
        )


def as_picture(image: Tensor) -> Tensor:
    """Return what a person sees of a normalised image: uint8 ``(3, H, W)``, stretched to 0..255.

    Examples:
        >>> as_picture(torch.tensor([[[-1.0, 0.0, 1.0]]]))[0]
        tensor([[  0, 128, 255]], dtype=torch.uint8)
    """
    image = image.detach().float().cpu()
    image = image if image.shape[0] == 3 else image.mean(0, keepdim=True).expand(3, -1, -1)
    low, high = float(image.min()), float(image.max())
    return ((image - low) * (255 / max(high - low, 1e-12))).round().to(torch.uint8)


def _window(module: nn.Module | None, size: tuple[int, int], given: int | None) -> tuple[int, int]:
    """Return the window of standard shifts."""
    multiple = getattr(module, "required_multiple", 1)
    if given is None:
        return default_window(size, multiple if isinstance(multiple, int) else 1)
    check_positive("audit", window=given)
    if given > min(size):
        raise ValueError(
            f"audit: window={given} is larger than the images, {size}. Use a smaller one."
        )
    return given, given
