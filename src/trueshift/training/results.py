"""The results of a test, as one JSON file."""

from __future__ import annotations

import dataclasses
import json
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning
import torch
import torchmetrics
from lightning.pytorch import Callback, LightningModule, Trainer

from trueshift import __version__
from trueshift._files import written_whole
from trueshift.training.module import NetworkModule
from trueshift.training.tau import selectors

FILE_NAME = "results.json"
FORMAT_VERSION = 1


class WriteResults(Callback):
    """Write ``results.json`` into the run folder when a test ends.

    Args:
        config: The configuration of the run, to be written too.
        folder: Where to write; by default the trainer's log folder.
    """

    def __init__(
        self, config: Mapping[str, Any] | None = None, folder: str | Path | None = None
    ) -> None:
        self.config, self.folder = config, folder
        self._started = 0.0

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = time.perf_counter()

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # log_dir is broadcast: every process must ask for it
        folder = self.folder or trainer.log_dir or trainer.default_root_dir
        if not isinstance(pl_module, NetworkModule) or not trainer.is_global_zero:
            return
        results = collect(trainer, pl_module, time.perf_counter() - self._started, self.config)
        write(results, Path(folder) / FILE_NAME)


def collect(
    trainer: Trainer,
    module: NetworkModule,
    test_seconds: float,
    config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return all that is known of a test: metrics as fractions, and what they were measured on.

    Args:
        trainer: A trainer that has tested ``module``.
        module: The module.
        test_seconds: How long the test took.
        config: The configuration of the run.
    """
    metrics = {
        name.removeprefix("test/"): float(value)
        for name, value in trainer.callback_metrics.items()
        if name.startswith("test/")
    }
    if "bitwise_equal" in metrics:
        metrics["all_bitwise_equal"] = metrics["bitwise_equal"] == 1
    return {
        "format_version": FORMAT_VERSION,
        "row": describe(module, trainer),
        "metrics": metrics,
        "parameters": module.num_parameters(),
        "time": {
            "train_seconds": module.train_seconds,
            "train_cpu_seconds": module.train_cpu_seconds,
            "test_seconds": test_seconds,
            "inference": module.times.summary(),
        },
        "seed": module.seed,
        "checkpoint": None if trainer.ckpt_path is None else str(trainer.ckpt_path),
        "versions": {
            "trueshift": __version__,
            "torch": torch.__version__,
            "lightning": lightning.__version__,
            "torchmetrics": torchmetrics.__version__,
            "python": platform.python_version(),
        },
        "config": config,
    }


def describe(module: NetworkModule, trainer: Trainer) -> dict[str, Any]:
    """Return what tells one row of a table from another: data, network and sampling."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    return {
        "task": type(module).__name__.lower(),
        "data": None if data is None else type(data).__name__.lower(),
        "setting": getattr(data, "setting", None),
        "network": module.hparams["network"],
        "network_options": module.hparams["network_options"] or {},
        "convert": module.hparams["convert"],
        "num_classes": module.hparams["num_classes"],
        "spec": dataclasses.asdict(module.spec) | _rules(module),
        "num_pairs": module.hparams["num_pairs"],
        "max_shift": module.hparams["max_shift"],
    }


def _rules(module: NetworkModule) -> dict[str, str]:
    """Return the rules of learned selectors, which may change during training."""
    learned = selectors(module.network)[:1]
    return {name: getattr(one, name) for one in learned for name in ("train_rule", "test_rule")}


def write(results: Mapping[str, Any], path: Path) -> None:
    """Write results to a file at once, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as partial:
        partial.write_text(json.dumps(results, indent=2, default=str) + "\n")
