"""Measure every row of a network in one interleaved run."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trueshift._validate import check_choice, check_positive
from trueshift.bench.meters import Run, flops_per_image, interleaved, peak_mib
from trueshift.bench.models import NETWORKS, ROWS, NotAvailable, build
from trueshift.data.drawing import make_shapes
from trueshift.layers.spec import HIDDEN
from trueshift.optimize import optimize

LAYOUTS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MODES = ("eval", "optimized", "train")
MEASURES = (*MODES, "memory")
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """How a network is measured.

    Attributes:
        network: A key of :data:`NETWORKS`.
        layout: ``"nchw"`` or ``"channels_last"``.
        dtype: ``"float32"``, or ``"bfloat16"`` by autocast.
        repeats: Timed runs of every row.
        batch: Images per call; ``None`` is the network's own.
        size: Pixels of both axes; ``None`` is the network's own.
        measures: What to measure in addition to parameters and FLOPs: times at test time, of
            networks as they are and optimized (:func:`trueshift.optimize`), times of a training
            step, and peak memory.
        hidden: Width of learned selectors; ``None`` is the network's own.
    """

    network: str
    layout: str = "nchw"
    dtype: str = "float32"
    repeats: int = 7
    batch: int | None = None
    size: int | None = None
    measures: tuple[str, ...] = MEASURES
    hidden: str | None = None

    def __post_init__(self) -> None:
        check_choice("bench", "network", self.network, tuple(NETWORKS))
        check_choice("bench", "layout", self.layout, tuple(LAYOUTS))
        check_choice("bench", "dtype", self.dtype, tuple(DTYPES))
        check_positive("bench", repeats=self.repeats)
        for one in self.measures:
            check_choice("bench", "measure", one, MEASURES)
        check_choice("bench", "hidden", self.hidden, (None, *HIDDEN))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of a batch."""
        known = NETWORKS[self.network]
        size = self.size or known.size
        return (self.batch or known.batch, known.in_channels, size, size)

    @property
    def width(self) -> str:
        """Width of learned selectors."""
        return self.hidden or NETWORKS[self.network].hidden


@dataclass
class Measured:
    """Numbers of one row; times fill up as runs are made."""

    parameters: int
    flops: int
    times: dict[str, list[float]] = field(default_factory=lambda: {mode: [] for mode in MODES})
    peak_mib: dict[str, float] = field(default_factory=dict)

    def median_ms(self, mode: str) -> float | None:
        """Return the median time in one of :data:`MODES`, ``None`` before the first run."""
        times = self.times.get(mode)
        return statistics.median(times) if times else None


@dataclass
class Bench:
    """All that is known of one network in one setting.

    Attributes:
        setting: How it is measured.
        rows: Numbers by key of :data:`ROWS`.
        missing: Why other rows are not there.
        complete: Whether nothing cut the measuring short.
    """

    setting: Setting
    rows: dict[str, Measured] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    complete: bool = False

    def time_ratio(self, row: str, to: str | None, mode: str) -> float | None:
        """Return how many times longer a row takes than another, or ``None`` if not measured.

        It is the median of the ratios within each round of runs: a machine that slows down for a
        while slows both, which a ratio of two medians does not see.
        """
        if to is None or row not in self.rows or to not in self.rows:
            return None
        times = (self.rows[key].times.get(mode, []) for key in (row, to))
        rounds = zip(*times, strict=False)
        ratios = [above / below for above, below in rounds]
        return statistics.median(ratios) if ratios else None

    def memory_ratio(self, row: str, to: str | None, mode: str) -> float | None:
        """Return how many times more memory a row holds than another, or ``None``."""
        if to is None or row not in self.rows or to not in self.rows:
            return None
        above, below = (self.rows[key].peak_mib.get(mode) for key in (row, to))
        return above / below if above is not None and below else None


def measure(
    bench: Bench, rows: Iterable[str] = tuple(ROWS), tell: Tell = lambda text: None
) -> None:
    """Measure the rows of a network; ``bench`` holds what is known at any time.

    Args:
        bench: Where the numbers go. After an interruption it holds those made so far.
        rows: Keys of :data:`ROWS`.
        tell: Called with one line of progress now and then.
    """
    setting = bench.setting
    images, labels = make_batch(setting)
    networks = {}
    for key in rows:
        check_choice("bench", "row", key, tuple(ROWS))
        tell(f"building {ROWS[key].title}")
        try:
            model = prepare(setting, key, images)
        except NotAvailable as reason:
            bench.missing[key] = str(reason)
            continue
        count = sum(parameter.numel() for parameter in model.parameters())
        bench.rows[key] = Measured(count, flops_per_image(model, images[:2]))
        networks[key] = model
    for mode in MODES:
        wanted = mode in setting.measures
        if not wanted and ("memory" not in setting.measures or mode == "optimized"):
            continue
        runs = {}
        for key, net in networks.items():
            net.train(mode == "train")
            ready = optimize(net, images) if mode == "optimized" else net
            runs[key] = runner(ready, images, labels, setting, mode)
        if wanted:
            _time(bench, mode, runs, tell)
        if "memory" in setting.measures and mode != "optimized":
            for key, run in runs.items():
                tell(f"memory, {mode}: {ROWS[key].title}")
                bench.rows[key].peak_mib[mode] = peak_mib(run)
    bench.complete = True


def _time(bench: Bench, mode: str, runs: Mapping[str, Run], tell: Tell) -> None:
    for key, elapsed in interleaved(runs, bench.setting.repeats):
        done = bench.rows[key].times[mode]
        if elapsed is not None:
            done.append(elapsed)
        tell(f"{mode}, run {len(done)} of {bench.setting.repeats}: {ROWS[key].title}")


def make_batch(setting: Setting) -> tuple[Tensor, Tensor]:
    """Return pictures and labels. Noise would not do: its components are too much alike."""
    batch, channels, size, _ = setting.shape
    network = NETWORKS[setting.network]
    pictures, _, masks = make_shapes(batch, size, seed=0)
    images = (pictures[:, :channels].float() / 255 - 0.5) / 0.25
    images = images.contiguous(memory_format=LAYOUTS[setting.layout])
    generator = torch.Generator().manual_seed(0)
    classes = torch.randint(network.num_classes, (batch,), generator=generator)
    if network.builder.startswith(("deeplab", "unet")):
        return images, masks.long().clamp(max=network.num_classes - 1)
    return images, classes


def prepare(setting: Setting, key: str, images: Tensor) -> nn.Module:
    """Build a network whose batch norms know the images, as those of a trained network do."""
    torch.manual_seed(0)
    network = dataclasses.replace(NETWORKS[setting.network], hidden=setting.width)
    model = build(network, ROWS[key]).to(memory_format=LAYOUTS[setting.layout])  # type: ignore[call-overload]
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(images)
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum
    evaluated: nn.Module = model.eval()
    return evaluated


def runner(model: nn.Module, images: Tensor, labels: Tensor, setting: Setting, mode: str) -> Run:
    """Return a function that runs a network once, at test time or for a training step."""
    half = setting.dtype == "bfloat16"

    def autocast() -> contextlib.AbstractContextManager[Any]:
        return torch.autocast("cpu", torch.bfloat16) if half else contextlib.nullcontext()

    def evaluate() -> None:
        with torch.inference_mode(), autocast():
            model(images)

    if mode != "train":
        return evaluate
    # Without a rate the weights stay what they are, and the step costs the same.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def train() -> None:
        with autocast():
            loss = F.cross_entropy(model(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return train
