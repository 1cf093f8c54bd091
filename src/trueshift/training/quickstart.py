"""Six rows of the paper's first table on built-in data, in minutes on a CPU."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import multiprocessing
import os
import queue
import statistics
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from trueshift.data import Shapes
from trueshift.layers.spec import Sampling
from trueshift.models import load, save
from trueshift.training.classifier import Classifier
from trueshift.training.results import FILE_NAME, WriteResults

BUDGET_FILE = "budget.json"
ROWS = {
    "baseline": Sampling("stride"),
    "lpf_tri3": Sampling("stride", "tri3"),
    "aps": Sampling("aps"),
    "ddac_adapt3": Sampling("stride", "adapt3", groups=2),  # of the few channels there are
    "lps": Sampling("lps", hidden="eighth"),
    "lps_tri3": Sampling("lps", "tri3", hidden="eighth"),
}

# What a row tells while it works: its name, the share done, and a word about it.
Tell = Callable[[str, float, str], None]


@dataclass(frozen=True)
class Budget:
    """What every row gets alike.

    Attributes:
        epochs: Passes over the training images.
        num_train: Training images.
        num_test: Test images.
        batch_size: Images per step.
        lr: Highest learning rate.
        widths: Channels of the stages of the network.
        num_pairs: Pairs of shifts per test image.
        seed: Seed of data, weights and sampling.
    """

    epochs: int = 16
    num_train: int = 1_500
    num_test: int = 1_000
    batch_size: int = 50
    lr: float = 0.1
    widths: tuple[int, ...] = (8, 16, 32, 64)
    num_pairs: int = 2
    seed: int = 0


def quickstart(folder: Path, budget: Budget, tell: Tell) -> dict[str, dict[str, Any]]:
    """Train and test every row, and keep all of it below one folder.

    On a CPU several rows run side by side, each in a process with its share of the cores: networks
    this small gain little from more threads. A row that has its results already is not trained
    again, so an interrupted run goes on.

    Args:
        folder: Where to write.
        budget: What every row gets.
        tell: Called now and then while it works.

    Returns:
        The results of each row, as in its ``results.json``, with ``ms_per_image`` measured for all
        rows in turn.
    """
    _check_budget(folder, budget)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    side_by_side = 1 if torch.accelerator.is_available() else min(len(ROWS), cores or 1)
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        told = manager.Queue()
        with ProcessPoolExecutor(side_by_side, context, _share_cores, (side_by_side,)) as pool:
            # The last rows cost most; begun first, they leave no core idle at the end.
            jobs = [
                pool.submit(_run_row, name, folder / name, budget, told) for name in reversed(ROWS)
            ]
            while not all(job.done() for job in jobs):
                _pass_on(told, tell)
            _pass_on(told, tell)
            for job in jobs:
                job.result()
    results = {name: json.loads((folder / name / FILE_NAME).read_text()) for name in ROWS}
    for name, milliseconds in _time_networks(folder, budget.batch_size).items():
        results[name]["ms_per_image"] = milliseconds
    return results


def read_budget(folder: Path) -> Budget:
    """Return the budget of a run that was begun in ``folder``."""
    path = folder / BUDGET_FILE
    if not path.is_file():
        raise FileNotFoundError(f"quickstart: no run to go on with in {folder} (no {path.name}).")
    found = json.loads(path.read_text())
    return Budget(**{**found, "widths": tuple(found["widths"])})


def _share_cores(side_by_side: int) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore")  # Lightning's advice on every run; the parent shows errors
    torch.set_num_threads(max(1, torch.get_num_threads() // side_by_side))
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End a worker whose parent was killed; nobody would wait for it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _pass_on(told: Any, tell: Tell) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            tell(*told.get(timeout=0.2))


def _check_budget(folder: Path, budget: Budget) -> None:
    """Write down the budget, or see that the rows that are there were trained with the same."""
    path, wanted = folder / BUDGET_FILE, json.dumps(dataclasses.asdict(budget), indent=2)
    folder.mkdir(parents=True, exist_ok=True)
    if path.is_file() and path.read_text() != wanted:
        raise ValueError(
            f"quickstart: {folder} holds a run with another budget (see {path}). Leave out the"
            " options to go on with it, or begin a new run without --resume."
        )
    path.write_text(wanted)


def _run_row(name: str, folder: Path, budget: Budget, told: Any) -> None:
    if (folder / FILE_NAME).is_file():
        told.put((name, 1.0, "done before"))
        return
    told.put((name, 0.0, "drawing pictures"))
    seed_everything(budget.seed, verbose=False)
    config, data = _config(ROWS[name], budget), Shapes(**_data_config(budget))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    module = Classifier(**config["model"]["init_args"])
    trainer = Trainer(
        max_epochs=budget.epochs,
        logger=CSVLogger(folder.parent, name="", version=folder.name),
        callbacks=[
            _Tell(name, told),
            WriteResults(config, folder),
            ModelCheckpoint(folder / "checkpoints", "last", enable_version_counter=False),
        ],
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=10,
    )
    trainer.fit(module, data)
    save(module.network, folder / "network.safetensors", overwrite=True)
    trainer.test(module, data, verbose=False)
    told.put((name, 1.0, "done"))


def _config(spec: Sampling, budget: Budget) -> dict[str, Any]:
    """Return the row as a recipe for ``trueshift fit``."""
    changed = dataclasses.asdict(spec)
    network = {
        "network": "resnet",
        "spec": {key: changed[key] for key in ("method", "antialias", "hidden", "groups")},
        "num_classes": 10,
        "network_options": {
            "depths": [1] * len(budget.widths),
            "widths": list(budget.widths),
            "stem": "cifar",
        },
    }
    training = {
        "lr": budget.lr,
        "weight_decay": 5e-4,
        "schedule": _rule("OneCycle", peak=0.3),
        "tau": _rule("MultiRateLinear", points=_tau_points(budget.epochs)),
        "num_pairs": budget.num_pairs,
    }
    module = {"class_path": "trueshift.training.Classifier", "init_args": {**network, **training}}
    data = {"class_path": "trueshift.data.Shapes", "init_args": _data_config(budget)}
    return {
        "seed_everything": budget.seed,
        "model": module,
        "data": data,
        "trainer": {"max_epochs": budget.epochs},
    }


def _rule(name: str, **arguments: Any) -> dict[str, Any]:
    return {"class_path": f"trueshift.training.{name}", "init_args": arguments}


def _tau_points(epochs: int) -> list[list[float]]:
    """Let tau fall early: in a short run most of the time must go into nearly hard choices."""
    return [[1, 0.2], [3, 0.05], [max(4, epochs), 0.02]]


def _data_config(budget: Budget) -> dict[str, Any]:
    return {
        "num_train": budget.num_train,
        "num_val": 500,
        "num_test": budget.num_test,
        "batch_size": budget.batch_size,
        "seed": budget.seed,
    }


def _time_networks(folder: Path, batch_size: int, repeats: int = 7) -> dict[str, float]:
    """Measure milliseconds per image of all networks in turn; the median of several rounds."""
    networks = {name: load(folder / name / "network.safetensors") for name in ROWS}
    x = torch.randn(batch_size, 3, 32, 32)
    times: dict[str, list[float]] = {name: [] for name in networks}
    with torch.inference_mode():
        for _ in range(repeats):
            for name, network in networks.items():
                start = time.perf_counter()
                network(x)
                times[name].append(1e3 * (time.perf_counter() - start) / batch_size)
    return {name: statistics.median(found[1:]) for name, found in times.items()}


class _Tell(Callback):
    """Tell how far a row is."""

    def __init__(self, name: str, told: Any) -> None:
        self.name, self.told = name, told

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        total = trainer.estimated_stepping_batches
        word = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        if "val/accuracy" in trainer.callback_metrics:
            word += f", accuracy so far {trainer.callback_metrics['val/accuracy']:.1%}"
        self.told.put((self.name, 0.9 * trainer.global_step / total, word))

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.told.put((self.name, 0.9, "testing under shifts"))
