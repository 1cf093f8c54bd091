"""Randomness that does not depend on where a run was interrupted."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer


def step_seed(*numbers: int) -> int:
    """Mix numbers, for instance seed, rank, epoch and batch, into one seed.

    Examples:
        >>> step_seed(0, 1) == step_seed(0, 1), step_seed(0, 1) == step_seed(1, 0)
        (True, False)
    """
    text = ",".join(str(number) for number in numbers).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest())


class StepSeeds(Callback):
    """Seed every training step by (seed, rank, epoch, batch).

    So random phases and dropout of a step never depend on what ran before it, and a run that was
    killed and resumed ends with the same weights as one that was not; no state of generators needs
    to be in checkpoints. When a run resumes in the middle of an epoch, the batches that it has seen
    are read again and skipped: data loaders whose order depends only on the epoch go on exactly.

    Args:
        seed: ``None`` takes the one of ``seed_everything``. It is in the checkpoint, and a resumed
            run goes on with that one.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self._resumed = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.seed is None:
            seed = int(os.environ.get("PL_GLOBAL_SEED", torch.initial_seed()))
            self.seed = trainer.strategy.broadcast(seed)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
        within = 0 < progress.processed < trainer.num_training_batches
        if self._resumed and trainer.fit_loop.restarted_mid_epoch and within:
            self._seed(trainer, 0)
            _restart_loader(trainer, progress.processed)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._seed(trainer, 0)
        loop = trainer.fit_loop
        if trainer.current_epoch == 0 or loop.is_resuming or loop.epoch_loop.restarting:
            # Lightning made this iterator before the seed, and before samplers knew the epoch.
            _restart_loader(trainer, 0)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._seed(trainer, batch_idx + 1)

    def _seed(self, trainer: Trainer, number: int) -> None:
        seed = step_seed(self.seed or 0, trainer.global_rank, trainer.current_epoch, number)
        torch.manual_seed(seed)
        random.seed(seed)

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self.seed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seed, self._resumed = state_dict["seed"], True


def _restart_loader(trainer: Trainer, num_seen: int) -> None:
    """Start the epoch's data again and leave out the first batches."""
    fetcher = trainer.fit_loop._data_fetcher
    if fetcher is None:
        return
    for loader in fetcher.combined_loader.flattened:
        for sampler in _samplers(loader):
            sampler.set_epoch(trainer.current_epoch)
    iter(fetcher)
    for _ in range(num_seen):
        next(fetcher)
    fetcher.fetched = 0  # Lightning adds the batches of the checkpoint itself


def _samplers(loader: Any) -> Iterable[Any]:
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = [loader, getattr(loader, "sampler", None), batch_sampler]
    samplers.append(getattr(batch_sampler, "sampler", None))
    unique = {id(sampler): sampler for sampler in samplers if hasattr(sampler, "set_epoch")}
    return unique.values()
