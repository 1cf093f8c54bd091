"""What the quickstart writes: a table for each scene, and a page with things to drag."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trueshift import models
from trueshift.data import SHAPE_NAMES, Flows, Shapes, make_shapes
from trueshift.metrics.rollout import relative_errors, rollout, valid_times
from trueshift.quickstart.run import NETWORK_FILE, Results
from trueshift.quickstart.scenes import FLOW, PICTURES, SCENES, Budget, Run, recipe
from trueshift.report.html import template
from trueshift.report.images import data_uri, signed_picture
from trueshift.report.tables import markdown_table
from trueshift.shifts import circular_shift

_UNSEEN = 1_000  # seed of pictures that were not trained on
_SHOWN, _SIZE = 3, 32  # pictures of the page, and their size
_FLOW_SHIFTS = range(9)  # the coarsest grid of the emulators has every 8th point
_THRESHOLD = 0.2  # of the valid time

Column = tuple[str, str, Callable[[float], str]]
COLUMNS: Mapping[str, Sequence[Column]] = {
    "pictures": (
        ("accuracy", "Accuracy", lambda v: f"{100 * v:.1f}"),
        ("shifted_accuracy", "Accuracy after a shift", lambda v: f"{100 * v:.1f}"),
        ("circular_consistency", "Same answer after a shift", lambda v: f"{100 * v:.1f}"),
        ("bitwise_equal", "Same bits after a shift", lambda v: f"{100 * v:.1f}"),
    ),
    "flow": (
        ("valid_time", "Valid time, steps", lambda v: f"{v:.1f}"),
        ("error_10", "Error after 10 steps", lambda v: f"{100 * v:.1f}"),
        ("bitwise_equal", "Shifted roll-outs with the same bits", lambda v: f"{100 * v:.1f}"),
    ),
}


def table(scene: str, results: Results) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows: the mean over seeds and, if there are several, the spread.

    Args:
        scene: ``"pictures"`` or ``"flow"``.
        results: What the quickstart returned.
    """
    heads = ["Sampling", *(head for _, head, _ in COLUMNS[scene]), "Seconds to train"]
    rows = []
    for name, runs in results[scene].items():
        cells = [_spread([run["metrics"][key] for run in runs], f) for key, _, f in COLUMNS[scene]]
        seconds = statistics.mean(run["time"]["train_seconds"] for run in runs)
        rows.append([SCENES[scene][name].title, *cells, f"{seconds:.0f}"])
    return heads, rows


def _spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    text = form(statistics.mean(values))
    return text if len(values) < 2 else f"{text} ± {form(statistics.stdev(values))}"


def write_all(results: Results, folder: Path, budget: Budget) -> Path:
    """Write ``tables.md``, ``results.json`` and the page, whose path is returned."""
    tables = {scene: table(scene, results) for scene in COLUMNS}
    text = "\n\n".join(f"## {scene}\n\n{markdown_table(*tables[scene])}" for scene in tables)
    (folder / "tables.md").write_text(text + "\n")
    kept = {
        scene: {row: [run["metrics"] for run in runs] for row, runs in rows.items()}
        for scene, rows in results.items()
    }
    (folder / "results.json").write_text(json.dumps(kept, indent=2) + "\n")
    page = folder / "quickstart.html"
    data = {"pictures": pictures(folder), "flow": flow(folder, budget)}
    page.write_text(
        template("quickstart.html.j2").render(tables=tables, data=data, seeds=budget.seeds),
        encoding="utf-8",
    )
    return page


def pictures(folder: Path) -> dict[str, Any]:
    """Return a few pictures and what the networks of the first seed say at every shift.

    The pictures are those that all of them get right unmoved, as far as there are any, and on which
    plain striding changes its mind most often.
    """
    networks = {name: _load(folder, Run("pictures", name, 0)) for name in PICTURES}
    images, labels, _ = make_shapes(64, _SIZE, _UNSEEN)
    diagonal = [(step, step) for step in range(0, _SIZE, 3)]
    changes = [_answers(networks["stride"], x, diagonal)[0].unique().numel() for x in images]
    unmoved = [_answers(net, x, [(0, 0)])[0] for net in networks.values() for x in images]
    right = (torch.cat(unmoved).view(-1, len(images)) == labels).all(0)
    kept = (torch.tensor(changes) + _SIZE * right).argsort(descending=True, stable=True)[:_SHOWN]
    every = [(dy, dx) for dy in range(_SIZE) for dx in range(_SIZE)]
    shown = []
    for index in kept.tolist():
        answers = [_answers(network, images[index], every) for network in networks.values()]
        shown.append(
            {
                "picture": data_uri(images[index]),
                "label": int(labels[index]),
                "labels": [labels_.tolist() for labels_, _ in answers],
                "sure": [sure.tolist() for _, sure in answers],
            }
        )
    titles = [row.title for row in PICTURES.values()]
    return {"size": _SIZE, "classes": SHAPE_NAMES, "networks": titles, "shown": shown}


def _answers(
    network: nn.Module, image: Tensor, shifts: Sequence[tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    """Return labels and confidences in percent of a picture at every shift, int64 each."""
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (Shapes.mean, Shapes.std))
    moved = torch.stack([circular_shift((image / 255 - mean) / std, *shift) for shift in shifts])
    with torch.inference_mode():
        scores = torch.cat([network(batch) for batch in moved.split(128)]).softmax(1)
    sure, labels = scores.max(1)
    return labels, (100 * sure).round().long()


def flow(folder: Path, budget: Budget) -> dict[str, Any]:
    """Return the true flow and the roll-outs of both emulators from its first state, shifted.

    Roll-outs are moved back, so that they show the same flow if shifts change nothing.
    """
    run = Run("flow", "lps", 0)
    data = Flows(**recipe(run, budget, folder)["data"]["init_args"])
    data.setup("test")
    start, following = data.datasets["test"][0]  # (1, X), (T, 1, X)
    networks = []
    for name, row in FLOW.items():
        network = _load(folder, Run("flow", name, 0))
        moved = torch.stack([circular_shift(start, shift) for shift in _FLOW_SHIFTS])
        with torch.inference_mode():
            states = rollout(_Emulator(network), moved, len(following), check=False)
        back = [
            circular_shift(one, -shift) for one, shift in zip(states, _FLOW_SHIFTS, strict=True)
        ]
        errors = relative_errors(torch.stack(back), following.expand(len(back), *following.shape))
        networks.append(
            {
                "title": row.title,
                "rollouts": [_space_time(one) for one in back],
                "changes": [_space_time(one - back[0]) for one in back],
                "largest": [float((one - back[0]).abs().max()) for one in back],
                "valid": valid_times(errors, _THRESHOLD).tolist(),
            }
        )
    return {
        "truth": _space_time(following),
        "steps": len(following),
        "points": following.shape[-1],
        "networks": networks,
    }


class _Emulator(nn.Module):
    """The next state, as :class:`trueshift.training.Emulator` computes it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, state: Tensor) -> Tensor:
        return state + self.network(state)


def _space_time(states: Tensor) -> str:
    """Draw states ``(T, 1, X)``, time downwards: red above 0, white, blue below."""
    values = (states[:, 0] / 3).nan_to_num(0.0).clamp(-1, 1)  # in standard deviations
    return data_uri(signed_picture((128 + 127 * values).round().to(torch.uint8)))


def _load(folder: Path, run: Run) -> nn.Module:
    return models.load(run.folder(folder) / NETWORK_FILE).eval()
