"""The passes of an audit: compare outputs, show a few images, look inside."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from trueshift.anchor import Anchored
from trueshift.audit.images import ImageSource
from trueshift.audit.layers import LayerError, LayerRecorder
from trueshift.audit.margins import Choice, SelectorRecorder
from trueshift.audit.predictor import Predictor, confidence_of, labels_of
from trueshift.audit.probes import learned_layers
from trueshift.audit.results import Example, Measurement
from trueshift.audit.selection import Selection, diagnose_selectors
from trueshift.audit.shifting import ALL_MOVES, Offsets, ShiftSet
from trueshift.audit.tally import Tally

_DRAWS = 3  # of random choices
_SELECTION_RUNS = 2 + _DRAWS
_LAYER_IMAGES = 4
_LAYER_SHIFTS = ((0, 1), (1, 0), (1, 1), (3, 2))
_VIEW_RADIUS = {"classification": 8, "segmentation": 4}
_VIEW_PIXELS = 2**22  # of all masks of one example

Progress = Callable[[int, int], None]


class Passes:
    """What the passes of one audit share.

    Args:
        source: The images.
        network: The network, in eval mode.
        shift_sets: What to measure; the first one is also used to show images and to look inside.
        batch_size: Images per call.
        num_examples: How many images :meth:`view` will be asked for.
        layers: Whether to look inside, if there is an inside.
        progress: Called with the number of images seen so far and to see in all passes.
    """

    def __init__(
        self,
        source: ImageSource,
        network: Predictor,
        shift_sets: tuple[ShiftSet, ...],
        batch_size: int,
        num_examples: int,
        layers: bool,
        progress: Progress | None,
    ) -> None:
        self.source, self.network, self.shift_sets = source, network, shift_sets
        self.first = shift_sets[0]
        self.batch_size, self.num_examples, self.progress = batch_size, num_examples, progress
        self.module = network.module if layers and not isinstance(network.model, Anchored) else None
        self.learns = self.module is not None and bool(learned_layers(self.module))
        self.selectors = None if network.module is None else SelectorRecorder(network.module)
        self.done, self.task = 0, ""

    def measure(self) -> tuple[Measurement, ...]:
        """Compare all images at all shifts, one kind after the other."""
        measurements = []
        for shift_set in self.shift_sets:
            tally = Tally(shift_set, len(self.source))
            for indices in self._batches():
                self._compare(indices, tally)
            measurements.append(tally.result())
        return tuple(measurements)

    def view(self, measured: Measurement, chosen: Sequence[int]) -> tuple[Example, ...]:
        """Predict a few images at every shift of :attr:`view_shifts`."""
        return tuple(self._example(index, measured) for index in chosen)

    def inside(self, example: int) -> tuple[tuple[Choice, ...], tuple[LayerError, ...]]:
        """Compare the maps inside the network on a few images; record the choices for one."""
        if self.module is None:
            return (), ()
        recorder = LayerRecorder(self.module, self.first.kind)
        images, _ = self.source.batch(range(self._num_inside))
        still = self.first.see(images)
        for shift in self.layer_shifts:
            both = torch.cat([still, self.first.see(images, shift)])
            with recorder.recording(len(both), self.first.window, shift):
                self.network(both)
            self._tell(len(images))
        selectors = SelectorRecorder(self.module)
        if selectors.layers:
            with selectors.recording(1, picture=0):
                self.network(self.first.see(self.source.batch([example])[0]))
        return tuple(selectors.choices.values()), recorder.errors()

    def selection(self) -> Selection | None:
        """Diagnose learned selectors on the unshifted images, if there are any."""
        if not self.learns:
            return None
        network = self.network
        return diagnose_selectors(network.model, self._unshifted(), _DRAWS, output=network.output)

    @functools.cached_property
    def view_shifts(self) -> tuple[Offsets, ...]:
        """A small square of shifts around none; known when the network has been called."""
        reach = min(_VIEW_RADIUS[self.task], *(n // 2 for n in self.source.shape[1:]))
        num_measured = len(self.source) * len(self.first.shifts)
        while reach > 4 and (2 * reach + 1) ** 2 * self.num_examples > num_measured:
            reach -= 1  # what is only shown should not take longer than what is measured
        if self.task == "segmentation":
            pixels = self.first.window[0] * self.first.window[1]
            while reach > 1 and (2 * reach + 1) ** 2 * pixels > _VIEW_PIXELS:
                reach -= 1
        rows, columns = ([v for v in axis if abs(v) <= reach] for axis in self._ranges)
        return tuple(itertools.product(rows, columns))

    @functools.cached_property
    def layer_shifts(self) -> tuple[Offsets, ...]:
        """The shifts at which modules are compared: a few small ones that are allowed."""
        rows, columns = self._ranges
        few = tuple((dy, dx) for dy, dx in _LAYER_SHIFTS if dy in rows and dx in columns)
        return few or (min(self.first.shifts, key=lambda s: abs(s[0]) + abs(s[1])),)

    @property
    def _ranges(self) -> list[range]:
        return self.first.ranges(self.source.shape[1:])

    @property
    def _num_inside(self) -> int:
        return min(_LAYER_IMAGES, max(self.batch_size // 2, 1), len(self.source))

    @functools.cached_property
    def _total(self) -> int:
        measured = len(self.source) * sum(len(one.shifts) for one in self.shift_sets)
        shown = self.num_examples * len(self.view_shifts)
        inside = 0 if self.module is None else self._num_inside * len(self.layer_shifts)
        selection = _SELECTION_RUNS * len(self.source) if self.learns else 0
        return measured + shown + inside + selection

    def _tell(self, num_images: int) -> None:
        self.done += num_images
        if self.progress is not None:
            self.progress(self.done, self._total)

    def _batches(self) -> Iterator[range]:
        num = len(self.source)
        for low in range(0, num, self.batch_size):
            yield range(low, min(low + self.batch_size, num))

    def _unshifted(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        for indices in self._batches():
            images, labels = self.source.batch(indices)
            masks = labels is not None and labels.ndim > 1
            yield self.first.see(images), self.first.see(labels) if masks else labels  # type: ignore[arg-type]
            self._tell(_SELECTION_RUNS * len(images))

    def _compare(self, indices: range, tally: Tally) -> None:
        """Compare a few images at all shifts.

        A call holds several shifts if there are few images. Every call has the same size, and an
        image is compared with itself at the same place of the batch: how a sum over channels rounds
        may depend on both.
        """
        images, labels = self.source.batch(indices)
        shift_set = tally.shift_set
        at_once = min(max(self.batch_size // len(images), 1), len(shift_set.shifts))
        still = shift_set.see(images).repeat(at_once, 1, 1, 1)
        reference = self._reference(still, len(images), record=shift_set is self.first)
        tally.start(reference[: len(images)], labels)
        for low in range(0, len(shift_set.shifts), at_once):
            shifts = shift_set.shifts[low : low + at_once]
            padded = shifts + ((0, 0),) * (at_once - len(shifts))
            outputs = self.network(torch.cat([shift_set.see(images, s) for s in padded]))
            for k in range(len(shifts)):
                rows = slice(k * len(images), (k + 1) * len(images))
                same = self._same_windows(shift_set, images, shifts[k])
                tally.add(low + k, reference[rows], outputs[rows], labels, indices, same)
            self._tell(len(images) * len(shifts))

    def _reference(self, still: Tensor, rows: int, record: bool) -> Tensor:
        """Return the outputs of unshifted images; record selectors on the first rows."""
        if self.selectors is not None and record:
            with self.selectors.recording(rows):
                outputs = self.network(still)
        else:
            outputs = self.network(still)
        self.task = "classification" if outputs.ndim == 2 else "segmentation"
        return outputs

    def _same_windows(self, shift_set: ShiftSet, images: Tensor, shift: Offsets) -> Tensor | None:
        """Tell whether windows moved along with the content: boolean ``(B,)``."""
        windows = self._windows(shift_set, images, (0, 0), shift)
        if windows is None or shift not in ALL_MOVES:
            return None
        still, moved = windows[..., :2].chunk(2)
        return (moved == still + still.new_tensor(shift)).flatten(1).all(1)

    def _windows(self, shift_set: ShiftSet, images: Tensor, *shifts: Offsets) -> Tensor | None:
        """Return top, left, height and width of the windows of an anchored classifier."""
        if not isinstance(self.network.model, Anchored) or self.task != "classification":
            return None
        frames = torch.cat([shift_set.see(images, shift) for shift in shifts])
        corners = self.network.model.corners(frames)  # (B * shifts, K, 2)
        return torch.cat(
            [corners, corners.new_tensor(self.network.model.window).expand_as(corners)], 2
        )

    def _example(self, index: int, measured: Measurement) -> Example:
        images, labels = self.source.batch([index])
        answers, confidences = [], []
        for low in range(0, len(self.view_shifts), self.batch_size):
            part = self.view_shifts[low : low + self.batch_size]
            logits = self.network(torch.cat([self.first.see(images, s) for s in part]))
            answers.append(labels_of(logits).cpu())
            confidences.append(confidence_of(logits).cpu())
            self._tell(len(part))
        return Example(
            index=index,
            picture=as_picture(images[0]),
            target=int(labels[0]) if labels is not None and labels.ndim == 1 else None,
            consistency=measured.image_shares[index],
            labels=torch.cat(answers),
            confidences=torch.cat(confidences),
            windows=self._windows(self.first, images, *self.view_shifts),
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
