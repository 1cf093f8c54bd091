"""Train and test every row, several at once on a CPU."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import multiprocessing
import os
import queue
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import yaml

from trueshift.bench.meters import medians
from trueshift.data import Shapes
from trueshift.models import load, save
from trueshift.quickstart.rows import ROWS, Budget, recipe
from trueshift.training import Classifier, WriteResults
from trueshift.training.results import FILE_NAME

from lightning.pytorch import LightningModule, Trainer, seed_everything  # isort: skip
from lightning.pytorch.callbacks import Callback, ModelCheckpoint  # isort: skip
from lightning.pytorch.loggers import CSVLogger  # isort: skip

BUDGET_FILE, NETWORK_FILE = "budget.json", "network.safetensors"

# Called with the name of a row, the share of its work that is done, and what it does now.
Tell = Callable[[str, float, str], None]


def quickstart(folder: Path, budget: Budget, tell: Tell) -> dict[str, dict[str, Any]]:
    """Train and test every row, and keep all of it below one folder.

    On a CPU several rows run at once, each in a process with its share of the cores: networks this
    small gain little from more threads. A row that has its results already is not trained again,
    so an interrupted run goes on.

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
    at_once = 1 if torch.accelerator.is_available() else min(len(ROWS), cores or 1)
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        messages = manager.Queue()
        with ProcessPoolExecutor(at_once, context, _share_cores, (at_once,)) as pool:
            # The last rows cost most; started first, they leave no core idle at the end.
            jobs = [
                pool.submit(_run_row, name, folder / name, budget, messages)
                for name in reversed(ROWS)
            ]
            while not all(job.done() for job in jobs):
                _pass_on(messages, tell)
            _pass_on(messages, tell)
            for job in jobs:
                job.result()
    results = {name: json.loads((folder / name / FILE_NAME).read_text()) for name in ROWS}
    for name, milliseconds in _time_networks(folder, budget.batch_size).items():
        results[name]["ms_per_image"] = milliseconds / budget.batch_size
    return results


def read_budget(folder: Path) -> Budget:
    """Return the budget of a run that was begun in ``folder``."""
    path = folder / BUDGET_FILE
    if not path.is_file():
        raise FileNotFoundError(f"quickstart: no run to go on with in {folder} (no {path.name}).")
    saved = json.loads(path.read_text())
    return Budget(**{**saved, "widths": tuple(saved["widths"])})


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


def _share_cores(at_once: int) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore")  # Lightning's advice on every run; the parent shows errors
    torch.set_num_threads(max(1, torch.get_num_threads() // at_once))
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End a worker whose parent was killed; nobody would wait for it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _pass_on(messages: Any, tell: Tell) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            tell(*messages.get(timeout=0.2))


def _run_row(name: str, folder: Path, budget: Budget, messages: Any) -> None:
    if (folder / FILE_NAME).is_file():
        messages.put((name, 1.0, "done before"))
        return
    messages.put((name, 0.0, "drawing pictures"))
    seed_everything(budget.seed, verbose=False)
    config = recipe(name, budget)
    data = Shapes(**config["data"]["init_args"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    module = Classifier(**config["model"]["init_args"])
    trainer = Trainer(
        max_epochs=budget.epochs,
        logger=CSVLogger(folder.parent, name="", version=folder.name),
        callbacks=[
            _Tell(name, messages),
            WriteResults(config, folder),
            ModelCheckpoint(folder / "checkpoints", "last", enable_version_counter=False),
        ],
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=10,
    )
    trainer.fit(module, data)
    save(module.network, folder / NETWORK_FILE, overwrite=True)
    trainer.test(module, data, verbose=False)
    messages.put((name, 1.0, "done"))


def _time_networks(folder: Path, batch_size: int) -> dict[str, float]:
    """Measure milliseconds per batch of all networks in turn."""
    x = torch.randn(batch_size, 3, 32, 32)
    networks = {name: load(folder / name / NETWORK_FILE) for name in ROWS}
    with torch.inference_mode():
        return medians({n: functools.partial(net, x) for n, net in networks.items()}, repeats=6)


class _Tell(Callback):
    """Tell how far a row is."""

    def __init__(self, name: str, messages: Any) -> None:
        self.name, self.messages = name, messages

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        total = trainer.estimated_stepping_batches
        text = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        if "val/accuracy" in trainer.callback_metrics:
            text += f", accuracy so far {trainer.callback_metrics['val/accuracy']:.1%}"
        self.messages.put((self.name, 0.9 * trainer.global_step / total, text))

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.messages.put((self.name, 0.9, "testing under shifts"))
