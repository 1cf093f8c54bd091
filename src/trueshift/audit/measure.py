"""``audit``: run a network on shifted images and compare."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trueshift._validate import check_choice, check_positive
from trueshift.audit.images import Images, ImageSource
from trueshift.audit.passes import Passes, Progress
from trueshift.audit.predictor import Predictor, in_eval_mode
from trueshift.audit.results import AuditResult, Measurement
from trueshift.audit.shifting import BOTH, Shifts, shift_set
from trueshift.shifts import check_wraps, wraps_of

KINDS = ("circular", "standard", "both")


def audit(
    model: Callable[[Tensor], Any],
    images: Images,
    labels: Tensor | None = None,
    shifts: Shifts | None = None,
    kind: str = "circular",
    output: str | int | None = None,
    batch_size: int = 64,
    progress: Progress | None = None,
    *,
    window: int | None = None,
    examples: int | Sequence[int] = 4,
    layers: bool = True,
    seed: int = 0,
    wraps: Sequence[bool] | None = None,
    name: str | None = None,
    class_names: Sequence[str] | None = None,
    images_from: str = "the caller",
) -> AuditResult:
    """Measure how much a network changes when its input moves, and where inside it breaks.

    Every shifted image is compared with the unshifted one, in eval mode, on the network's own
    device. Masks are moved back first. No more than a batch of outputs is kept at a time.

    Args:
        model: A classifier ``(B, C, H, W) -> (B, classes)`` or a segmenter ``-> (B, classes, H,
            W)``. With a single class, the sign of the logit is the label.
        images: ``(N, C, H, W)``, floating and normalised as in training; or a sequence of
            ``(C, H, W)`` or ``(image, label)`` of one size, read when needed.
        labels: ``(N,)``, or masks ``(N, H, W)`` where 255 does not count; for the accuracy.
        shifts: ``"all"``, a number to draw at random, or a list of (dy, dx). By default all
            circular ones; of standard ones the eight within a pixel and those by exactly 1, 2, 4,
            8, 16 and 32 pixels along both axes, as far as images have room.
        kind: ``"circular"``: what leaves on one side comes back on the other; ``"standard"``: the
            network sees a window of the image that moves; or ``"both"``.
        output: Key or index of the logits in a dict or tuple; dots go deeper: ``"out.0"``.
        batch_size: Images per call of the network.
        progress: Called with the number of shifted images seen so far and to see in all.
        window: Size of the frame that moves over an image, for standard shifts; by default about
            three quarters of it.
        examples: How many of the least consistent images to keep for the report, or which ones.
        layers: Also measure the error of every module; not inside an anchored network.
        seed: Seed of random shifts.
        wraps: Along which axes circular shifts go, (vertical, horizontal); ``None`` means those
            that the network names in ``spec`` or ``plan``, else both.
        name: What to call the network; by default its class.
        class_names: Names of the labels.
        images_from: Where the images come from, for the report.

    Returns:
        The numbers, with ``to_html`` and ``to_json``.

    Examples:
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
    source, network = ImageSource(images, labels), Predictor(model, output)
    _check_examples(examples, len(source))
    kinds = ("circular", "standard") if kind == "both" else (kind,)
    multiple = getattr(network.module, "required_multiple", 1)
    multiple = multiple if isinstance(multiple, int | tuple) else 1
    size, moves = source.shape[1:], check_wraps("audit", wraps) or wraps_of(model) or BOTH
    sets = tuple(shift_set(one, shifts, size, window, multiple, seed, moves) for one in kinds)
    num_examples = min(examples, len(source)) if isinstance(examples, int) else len(examples)
    passes = Passes(source, network, sets, batch_size, num_examples, layers, progress)
    with in_eval_mode(network.module):
        measurements = passes.measure()
        shown = passes.view(measurements[0], _chosen(measurements[0], examples))
        choices, errors = passes.inside(shown[0].index if shown else 0)
        selection = passes.selection()
    return AuditResult(
        name=name or type(model).__name__,
        task=passes.task,
        num_images=len(source),
        image_shape=source.shape,
        measurements=measurements,
        layers=errors,
        layer_shifts=passes.layer_shifts if errors else (),
        margins=passes.selectors.margins() if passes.selectors is not None else (),
        choices=choices,
        selection=selection,
        examples=shown,
        view=passes.view_shifts,
        class_names=None if class_names is None else tuple(class_names),
        images_from=images_from,
        device=str(network.device),
        dtype=str(network.dtype).removeprefix("torch."),
        batch_size=batch_size,
        seconds=time.perf_counter() - start,
        versions={"python": platform.python_version(), "torch": torch.__version__},
    )


def _check_examples(examples: int | Sequence[int], num_images: int) -> None:
    wanted = [] if isinstance(examples, int) else examples
    bad = [index for index in wanted if not 0 <= index < num_images]
    if bad:
        raise ValueError(f"audit: examples must be in 0..{num_images - 1}, got {bad[0]}.")


def _chosen(measured: Measurement, examples: int | Sequence[int]) -> tuple[int, ...]:
    """Return the images to show: those given, or the least consistent ones."""
    if not isinstance(examples, int):
        return tuple(examples)
    shares = torch.tensor(measured.image_shares)
    return tuple(shares.argsort(stable=True)[:examples].tolist())
