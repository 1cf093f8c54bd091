"""Train and test every run, several at once on a CPU."""

from __future__ import annotations

import contextlib
import dataclasses
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

from trueshift import data, training
from trueshift.models import save
from trueshift.quickstart.scenes import SCENES, Budget, Run, recipe, runs
from trueshift.training.results import FILE_NAME

from lightning.pytorch import LightningModule, Trainer, seed_everything  # isort: skip
from lightning.pytorch.callbacks import Callback, ModelCheckpoint  # isort: skip

BUDGET_FILE, NETWORK_FILE = "budget.json", "network.safetensors"

# Called with a run, the share of its work that is done, and what it does now.
Tell = Callable[[Run, float, str], None]
Results = dict[str, dict[str, list[dict[str, Any]]]]


def quickstart(folder: Path, budget: Budget, tell: Tell) -> Results:
    """Train and test every run, and keep all of it below one folder.

    On a CPU several runs go on at once, each in a process with its share of the cores: networks
    this small gain little from more threads. A run that has its results already is not trained
    again, and one that was stopped goes on from its last epoch.

    Args:
        folder: Where to write.
        budget: What every network gets.
        tell: Called now and then while it works.

    Returns:
        Scene to row to results of each seed, as in their ``results.json``.
    """
    _check_budget(folder, budget)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    at_once = 1 if torch.accelerator.is_available() else min(len(runs(budget)), cores or 1)
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        messages = manager.Queue()
        with ProcessPoolExecutor(at_once, context, _share_cores, (at_once,)) as pool:
            jobs = [pool.submit(_do, run, folder, budget, messages) for run in runs(budget)]
            while not all(job.done() for job in jobs):
                _pass_on(messages, tell)
            _pass_on(messages, tell)
            for job in jobs:
                job.result()
    return {
        scene: {
            row: [_read(folder, Run(scene, row, k)) for k in range(budget.seeds)] for row in rows
        }
        for scene, rows in SCENES.items()
    }


def _read(folder: Path, run: Run) -> dict[str, Any]:
    return dict(json.loads((run.folder(folder) / FILE_NAME).read_text()))


def read_budget(folder: Path) -> Budget:
    """Return the budget of a run that was begun in ``folder``."""
    path = folder / BUDGET_FILE
    if not path.is_file():
        raise FileNotFoundError(f"quickstart: no run to continue in {folder} (no {path.name}).")
    return Budget(**json.loads(path.read_text()))


def _check_budget(folder: Path, budget: Budget) -> None:
    """Write down the budget, or see that the runs that are there were trained with the same."""
    path, wanted = folder / BUDGET_FILE, json.dumps(dataclasses.asdict(budget), indent=2)
    folder.mkdir(parents=True, exist_ok=True)
    if path.is_file() and path.read_text() != wanted:
        raise ValueError(
            f"quickstart: {folder} holds a run with another budget (see {path}). Leave out the"
            " options to continue it, or start a new run without --resume."
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


def _do(run: Run, root: Path, budget: Budget, messages: Any) -> None:
    folder, config = run.folder(root), recipe(run, budget, root)
    if (folder / FILE_NAME).is_file():
        messages.put((run, 1.0, "done before"))
        return
    messages.put((run, 0.0, "solving the equation" if run.scene == "flow" else "drawing pictures"))
    seed_everything(run.seed, verbose=False)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    module, samples = (_build(config[part]) for part in ("model", "data"))
    trainer = Trainer(
        **config["trainer"],
        accelerator="auto",
        logger=False,
        callbacks=[
            _Tell(run, messages),
            training.WriteResults(config, folder),
            ModelCheckpoint(folder / "checkpoints", "last", enable_version_counter=False),
        ],
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    last = folder / "checkpoints" / "last.ckpt"
    trainer.fit(module, samples, ckpt_path=last if last.is_file() else None, weights_only=True)
    save(module.network, folder / NETWORK_FILE, overwrite=True)
    trainer.test(module, samples, verbose=False)
    messages.put((run, 1.0, "done"))


def _build(part: dict[str, Any]) -> Any:
    """Build the class that a part of a recipe names."""
    _, package, name = part["class_path"].split(".")
    return getattr({"data": data, "training": training}[package], name)(**part["init_args"])


class _Tell(Callback):
    """Say how far a run is, through a queue between processes."""

    def __init__(self, run: Run, messages: Any) -> None:
        self.run, self.messages = run, messages

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        done, total = trainer.current_epoch, int(trainer.max_epochs or 1)
        share = 0.9 * done / total  # the rest is the test
        self.messages.put((self.run, share, f"training, epoch {done + 1} of {total}"))

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.messages.put((self.run, 0.9, "testing"))
