"""The two scenes of the quickstart, pictures and a periodic flow: each run is a recipe."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trueshift._validate import check_positive
from trueshift.layers.spec import Sampling


class Row(NamedTuple):
    """A network to compare: what it is called and how it samples."""

    title: str
    spec: Sampling


# A filter in all but the plain one: what differs is only which samples are kept.
PICTURES = {
    "stride": Row("Plain stride", Sampling("stride")),
    "lpf": Row("LPF (blur, then stride)", Sampling("stride", "tri3")),
    "aps": Row("APS (blur, largest norm)", Sampling("aps", "tri3")),
    "lps": Row("LPS (blur, learned)", Sampling("lps", "tri3", hidden="eighth")),
}
FLOW = {
    "stride": Row("Plain stride", Sampling("stride", dim=1)),
    "lps": Row("LPS (blur, learned)", Sampling("lps", "tri3", hidden="eighth", dim=1)),
}
SCENES: dict[str, dict[str, Row]] = {"pictures": PICTURES, "flow": FLOW}


@dataclass(frozen=True)
class Budget:
    """What every network of a scene gets alike.

    Attributes:
        seeds: How often each network is trained, from other weights, in another order.
        epochs: Passes over the training pictures.
        num_train: Training pictures.
        num_test: Test pictures.
        num_pairs: Pairs of shifts per test picture.
        flow_epochs: Passes over the training trajectories of the flow.
        num_flows: These trajectories.
    """

    seeds: int = 3
    epochs: int = 12
    num_train: int = 1_500
    num_test: int = 1_000
    num_pairs: int = 2
    flow_epochs: int = 12
    num_flows: int = 24

    def __post_init__(self) -> None:
        check_positive("quickstart", **dataclasses.asdict(self))


class Run(NamedTuple):
    """One network of a scene with one seed."""

    scene: str
    row: str
    seed: int

    @property
    def title(self) -> str:
        """What it is called while it is trained."""
        return f"{self.scene}: {SCENES[self.scene][self.row].title}, seed {self.seed}"

    def folder(self, root: Path) -> Path:
        """Return where it is kept."""
        return root / self.scene / f"{self.row}_seed{self.seed}"


def runs(budget: Budget) -> list[Run]:
    """Return all runs, the longest first, so that no core is idle at the end."""
    return [
        Run(scene, row, seed)
        for scene in reversed(SCENES)
        for row in reversed(SCENES[scene])
        for seed in range(budget.seeds)
    ]


def recipe(run: Run, budget: Budget, root: Path) -> dict[str, Any]:
    """Return a run as a recipe for ``trueshift fit``; ``root`` is the folder of the quickstart."""
    spec = dataclasses.asdict(SCENES[run.scene][run.row].spec)
    spec = {key: spec[key] for key in ("method", "antialias", "hidden", "dim")}
    if run.scene == "flow":
        model, data, epochs = _emulator(spec, budget), _flows(budget, root), budget.flow_epochs
    else:
        model, data, epochs = _classifier(spec, budget), _shapes(budget), budget.epochs
    return {
        "seed_everything": run.seed,
        "model": model,
        "data": data,
        "trainer": {"max_epochs": epochs},
    }


def _classifier(spec: dict[str, Any], budget: Budget) -> dict[str, Any]:
    return _named(
        "training.Classifier",
        network="resnet",
        spec=spec,
        num_classes=10,
        network_options={"depths": [1] * 4, "widths": [8, 16, 32, 64], "stem": "cifar"},
        lr=0.1,
        weight_decay=5e-4,
        schedule=_named("training.OneCycle", peak=0.3),
        tau=_tau(budget.epochs),
        num_pairs=budget.num_pairs,
    )


def _emulator(spec: dict[str, Any], budget: Budget) -> dict[str, Any]:
    return _named(
        "training.Emulator",
        network="unet",
        spec=spec,
        num_classes=1,
        network_options={"in_channels": 1, "widths": [16, 32, 64, 64]},
        lr=8e-3,
        schedule=_named("training.OneCycle", peak=0.2, shape="cosine"),
        tau=_tau(budget.flow_epochs),
        exact_steps=100,
        num_pairs=5,
    )


def _shapes(budget: Budget) -> dict[str, Any]:
    sizes = {"num_train": budget.num_train, "num_val": 100, "num_test": budget.num_test}
    return _named("data.Shapes", **sizes, batch_size=50)


def _flows(budget: Budget, root: Path) -> dict[str, Any]:
    sizes = {"num_train": budget.num_flows, "num_val": 1, "num_test": 32}
    return _named(
        "data.Flows", equation="kuramoto_sivashinsky", **sizes, root=str(root / "flow" / "data")
    )


def _tau(epochs: int) -> dict[str, Any]:
    # tau falls early: in a short run most of the time must go into nearly hard choices.
    points = [[1, 0.2], [3, 0.05], [max(4, epochs), 0.02]]
    return _named("training.MultiRateLinear", points=points)


def _named(name: str, **arguments: Any) -> dict[str, Any]:
    return {"class_path": f"trueshift.{name}", "init_args": arguments}
