"""The rows of the quickstart and their budget, each row as a recipe."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from trueshift._validate import check_positive
from trueshift.layers.spec import Sampling

ROWS = {
    "baseline": Sampling("stride"),
    "lpf_tri3": Sampling("stride", "tri3"),
    "aps": Sampling("aps"),
    "ddac_adapt3": Sampling("stride", "adapt3", groups=2),  # of the few channels there are
    "lps": Sampling("lps", hidden="eighth"),
    "lps_tri3": Sampling("lps", "tri3", hidden="eighth"),
}
TITLES = {
    "baseline": "Baseline (stride)",
    "lpf_tri3": "LPF Tri-3",
    "aps": "APS",
    "ddac_adapt3": "DDAC Adapt-3",
    "lps": "LPS",
    "lps_tri3": "LPS Tri-3",
}


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

    def __post_init__(self) -> None:
        check_positive(
            "quickstart",
            epochs=self.epochs,
            num_train=self.num_train,
            num_test=self.num_test,
            batch_size=self.batch_size,
            num_pairs=self.num_pairs,
        )


def recipe(name: str, budget: Budget) -> dict[str, Any]:
    """Return a row as a recipe for ``trueshift fit``."""
    spec = dataclasses.asdict(ROWS[name])
    network = {
        "network": "resnet",
        "spec": {key: spec[key] for key in ("method", "antialias", "hidden", "groups")},
        "num_classes": 10,
        "network_options": {
            "depths": [1] * len(budget.widths),
            "widths": list(budget.widths),
            "stem": "cifar",
        },
    }
    # tau falls early: in a short run most of the time must go into nearly hard choices.
    points = [[1, 0.2], [3, 0.05], [max(4, budget.epochs), 0.02]]
    training = {
        "lr": budget.lr,
        "weight_decay": 5e-4,
        "schedule": _named("training.OneCycle", peak=0.3),
        "tau": _named("training.MultiRateLinear", points=points),
        "num_pairs": budget.num_pairs,
    }
    data = {
        "num_train": budget.num_train,
        "num_val": 500,
        "num_test": budget.num_test,
        "batch_size": budget.batch_size,
        "seed": budget.seed,
    }
    return {
        "seed_everything": budget.seed,
        "model": _named("training.Classifier", **network, **training),
        "data": _named("data.Shapes", **data),
        "trainer": {"max_epochs": budget.epochs},
    }


def _named(name: str, **arguments: Any) -> dict[str, Any]:
    return {"class_path": f"trueshift.{name}", "init_args": arguments}
