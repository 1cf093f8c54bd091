"""The trajectories of an equation as a Lightning data module."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from trueshift._validate import check_choice, check_positive
from trueshift.data.flows.equations import EQUATIONS
from trueshift.data.flows.trajectories import trajectories
from trueshift.data.loading import ImageDataModule, Key, sample_seed, whole_batch

SPLITS = ("train", "val", "test")
_VERSION = 2  # of the solver and its equations: higher numbers solve again


class Windows(Dataset[Any]):
    """Windows of trajectories: a state ``(C, *shape)`` and the states after it.

    Args:
        states: ``(N, T, C, *shape)``.
        num_next: States after the first one of a window; every window that fits is one sample.
    """

    def __init__(self, states: Tensor, num_next: int) -> None:
        self.states, self.num_next = states, num_next
        self.per_trajectory = states.shape[1] - num_next

    def __len__(self) -> int:
        return len(self.states) * self.per_trajectory

    def __getitem__(self, key: Key) -> tuple[Tensor, Tensor]:
        first, following = self.__getitems__([key])
        return first[0], following[0]

    def __getitems__(self, keys: Sequence[Key]) -> tuple[Tensor, Tensor]:
        """Return a whole batch: ``(B, C, *shape)`` and ``(B, num_next, C, *shape)``."""
        index = torch.tensor([key if isinstance(key, int) else key[1] for key in keys])
        row, start = index // self.per_trajectory, index % self.per_trajectory
        times = start[:, None] + torch.arange(self.num_next + 1)  # (B, num_next + 1)
        windows = self.states[row[:, None], times]
        return windows[:, 0], windows[:, 1:]


class Flows(ImageDataModule):
    """Trajectories of an equation on a periodic domain, solved from a seed and kept in a file.

    Batches are a state ``(B, 1, *shape)`` and the states that follow, ``(B, T, 1, *shape)``:
    ``unroll`` of them in training, from every state; the whole rest of the trajectory in validation
    and test, from its first state. All are float32, less the mean and divided by the standard
    deviation of the training states. Trajectories of one split are in no other.

    The same seed gives the same bits on one machine. Another one rounds differently, and in a
    chaotic flow rounding grows.

    Args:
        equation: ``"kuramoto_sivashinsky"`` and ``"burgers"`` (1-D, 128 points),
            ``"decaying_navier_stokes"`` and ``"forced_navier_stokes"`` (2-D, 64 x 64),
            ``"channel"`` (32 x 64: walls bound the first axis, the second is periodic).
        num_train: Trajectories to train on.
        num_val: Trajectories to validate on.
        num_test: Trajectories to test on.
        num_states: States of a training trajectory.
        num_val_states: States of a trajectory to validate on.
        num_test_states: States of a trajectory to test on.
        interval: Solver steps between two states; ``None`` takes the equation's own.
        unroll: States that follow the first one in a training sample.
        batch_size: Samples per batch and process.
        root: Folder of the files.
        num_workers: Processes that make batches; with data in memory none is quickest.
        seed: Seed of the trajectories and of the order.
    """

    collate = staticmethod(whole_batch)
    num_classes = 1  # channels of a state

    def __init__(
        self,
        equation: str = "kuramoto_sivashinsky",
        num_train: int = 24,
        num_val: int = 4,
        num_test: int = 16,
        num_states: int = 100,
        num_val_states: int = 41,
        num_test_states: int = 101,
        interval: int | None = None,
        unroll: int = 1,
        batch_size: int = 32,
        root: str = "data/flows",
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size, num_workers, seed)
        check_choice("Flows", "equation", equation, EQUATIONS)
        check_positive("Flows", num_train=num_train, num_val=num_val, num_test=num_test)
        self.num_states = {"train": num_states, "val": num_val_states, "test": num_test_states}
        check_positive("Flows", unroll=unroll, interval=1 if interval is None else interval)
        if unroll >= num_states or min(num_val_states, num_test_states) < 2:
            raise ValueError(
                "Flows: a training trajectory must be longer than unroll, other trajectories have"
                f" at least two states, got num_states={num_states}, unroll={unroll},"
                f" num_val_states={num_val_states}, num_test_states={num_test_states}."
            )
        self.equation = EQUATIONS[equation]
        self.setting = equation
        self.periodic = self.equation.periodic
        self.interval = self.equation.interval if interval is None else interval
        self.unroll, self.root = unroll, Path(root)
        self.num = {"train": num_train, "val": num_val, "test": num_test}

    def prepare_data(self) -> None:
        for split in SPLITS:
            if not self.path(split).is_file():
                self._store(self._solve(split), self.path(split))

    def setup(self, stage: str | None = None) -> None:
        if self.datasets:
            return
        self.prepare_data()  # on machines that do not share the folder
        raw = {split: self._read(self.path(split)) for split in SPLITS}
        train = raw["train"].double()
        self.mean, self.std = (float(train.mean()),), (float(train.std()),)
        for split, states in raw.items():
            scaled = ((states.double() - self.mean[0]) / self.std[0]).float()[:, :, None]
            num_next = self.unroll if split == "train" else scaled.shape[1] - 1
            self.datasets[split] = Windows(scaled, num_next)

    def path(self, split: str) -> Path:
        """Return the file of a split, whose name follows from all that its states depend on."""
        key = (split, self.num[split], self.num_states[split], self.interval, self.seed, _VERSION)
        name = hashlib.blake2b(repr(key).encode(), digest_size=6).hexdigest()
        return self.root / f"{self.setting}-{split}-{name}.safetensors"

    def _solve(self, split: str) -> Tensor:
        number = SPLITS.index(split)
        seeds = [sample_seed(self.seed, number, index) for index in range(self.num[split])]
        return trajectories(self.equation, seeds, self.num_states[split], self.interval).float()

    def _store(self, states: Tensor, path: Path) -> None:
        from safetensors.torch import save_file

        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")  # runs may start together
        try:
            save_file({"states": states.contiguous()}, part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def _read(self, path: Path) -> Tensor:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)["states"]
        except (SafetensorError, KeyError) as error:
            raise ValueError(
                f"Flows: {path} cannot be read ({error}). Remove it, and it is solved again."
            ) from error
