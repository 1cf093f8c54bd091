"""Measure how labels of photos change when the camera moves, with and without anchored windows.

``python -m benchmarks.frames PHOTOS --network mobilenet_v2 --weights FILE --output FILE``

``PHOTOS`` holds one folder per class, named by its index, with photos of at least 288 pixels. The
centre of 288 is the scene, of which frames of 256 are taken; a network sees windows of 224. Frames
start at random places and move by ``d`` pixels along both axes. Each distinct window of a scene is
run once: windows with the same pixels have the same output, which ``check`` confirms by running the
anchored network itself.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse

import trueshift as ts
from trueshift._torchvision import import_torchvision
from trueshift.functional import order_free_mean

SCENE, FRAME, WINDOW = 288, 256, 224
ROOM = SCENE - FRAME  # frames start at 0..ROOM along each axis
MOVES = (1, 2, 4, 8, 16, 32)
LEFT_OUT = ("fixed4", "neighbours")  # 36 windows a photo, which say little
CROPS = 4  # random frames whose labels are compared in pairs
Place = tuple[int, int]
NAMES = {
    "centre": "centre window",
    "fixed4": "four fixed windows",
    "anchored1": "anchored",
    "anchored1-32": "anchored, modulus 32",
    "anchored4": "anchored, four windows",
}


def mobilenet_v2(weights: Path) -> nn.Module:
    """Build torchvision's network from its own file."""
    from torchvision.models import mobilenet_v2 as build

    model: nn.Module = build()
    model.load_state_dict(torch.load(weights, weights_only=True))
    return fuse(model.eval())  # norms folded into convolutions: a third faster


def efficientnet_lite(weights: Path) -> nn.Module:
    """Build timm's EfficientNet-Lite0 from a file with the same tensors under other names."""
    import timm

    model: nn.Module = timm.create_model("tf_efficientnet_lite0")
    names = [name for name in model.state_dict() if not name.endswith("num_batches_tracked")]
    stored = torch.load(weights, weights_only=True)
    values = [value for name, value in stored.items() if not name.endswith("num_batches_tracked")]
    model.load_state_dict(dict(zip(names, values, strict=True)), strict=False)
    return model.eval()


NETWORKS: dict[str, tuple[Callable[[Path], nn.Module], list[float], list[float]]] = {
    "mobilenet_v2": (mobilenet_v2, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "efficientnet_lite0": (efficientnet_lite, [127 / 255] * 3, [128 / 255] * 3),
}


def load_scene(path: Path, mean: list[float], std: list[float]) -> Tensor:
    """Read a photo, normalise it and keep the centre: ``(C, SCENE, SCENE)``."""
    pixels = torch.from_numpy(np.array(Image.open(path).convert("RGB"))).movedim(-1, 0) / 255
    scene = (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    return ts.shifts.standard_shift(scene, SCENE, 0, 0)


def draw_frames(rng: np.random.Generator) -> dict[str, list[Place]]:
    """Draw the places of frames: the first of each list is compared with the others."""
    start = rng.integers(1, ROOM, 2)
    groups = {
        "neighbours": [start + np.array(by) for by in itertools.product((0, 1, -1), repeat=2)]
    }
    for d in MOVES[:-1]:
        signs = [rng.choice([s for s in (-1, 1) if 0 <= at + s * d <= ROOM]) for at in start]
        groups[f"move{d}"] = [start, start + d * np.array(signs)]
    corner = ROOM * rng.integers(0, 2, 2)
    groups[f"move{ROOM}"] = [corner, ROOM - corner]
    groups["crops"] = [rng.integers(0, ROOM + 1, 2) for _ in range(CROPS)]
    return {name: [(int(y), int(x)) for y, x in places] for name, places in groups.items()}


class Scene:
    """One photo: the windows that each method sees in its frames, and their outputs."""

    def __init__(self, network: nn.Module, pixels: Tensor) -> None:
        self.network, self.pixels = network, pixels
        self.outputs: dict[Place, Tensor] = {}
        self.anchored = {
            "anchored1": ts.anchor(network, WINDOW),
            "anchored1-32": ts.anchor(network, WINDOW, modulus=32),
            "anchored4": ts.anchor(network, WINDOW, anchors=4),
        }

    def frame(self, place: Place) -> Tensor:
        """Return the frame at a place of the scene."""
        y, x = place
        return self.pixels[None, :, y : y + FRAME, x : x + FRAME]

    def windows(self, method: str, place: Place) -> list[Place]:
        """Return where in the scene the windows of a frame lie."""
        middle = (FRAME - WINDOW) // 2
        if method == "centre":
            corners = [(middle, middle)]
        elif method == "fixed4":
            corners = list(itertools.product((middle - 8, middle + 8), repeat=2))
        else:
            corners = self.anchored[method].corners(self.frame(place))[0].tolist()
        return [(place[0] + y, place[1] + x) for y, x in corners]

    def run(self, places: Iterable[Place], batch: int = 4) -> None:
        """Run the network on windows that it has not seen."""
        missing = sorted(set(places) - set(self.outputs))
        for first in range(0, len(missing), batch):
            part = missing[first : first + batch]
            pixels = [self.pixels[:, y : y + WINDOW, x : x + WINDOW] for y, x in part]
            self.outputs.update(zip(part, self.network(torch.stack(pixels)), strict=True))

    def label(self, windows: list[Place]) -> int:
        """Return the label of the mean output."""
        return int(order_free_mean(torch.stack([self.outputs[w] for w in windows]), 0).argmax())


def measure(
    scene: Scene, label: int, groups: dict[str, list[Place]]
) -> dict[str, dict[str, float]]:
    """Return the numbers of one photo, by method."""
    seen = {
        method: {
            place: scene.windows(method, place)
            for name, group in groups.items()
            if (method, name) != LEFT_OUT
            for place in group
        }
        for method in NAMES
    }
    scene.run(w for by_place in seen.values() for windows in by_place.values() for w in windows)
    results = {}
    for method, windows in seen.items():
        labels = {place: scene.label(places) for place, places in windows.items()}
        row = {}
        right = [
            labels[p] == label for name in groups if name != "neighbours" for p in groups[name]
        ]
        row["top1"] = float(np.mean(right))
        if "neighbours" in groups and (method, "neighbours") != LEFT_OUT:
            row["neighbours"] = float(len({labels[p] for p in groups["neighbours"]}) == 1)
        for name, group in groups.items():
            if name == "neighbours":
                continue
            pairs = list(itertools.combinations(group, 2))
            row[name] = float(np.mean([labels[a] == labels[b] for a, b in pairs]))
            row[f"{name}-bits"] = float(np.mean([windows[a] == windows[b] for a, b in pairs]))
        results[method] = row
    return results


def bootstrap(values: np.ndarray, rng: np.random.Generator) -> list[float]:
    """Return the mean and its 95 % interval over photos, in percent."""
    draws = rng.choice(values, (2000, len(values))).mean(1)
    return [round(100 * float(v), 2) for v in (values.mean(), *np.quantile(draws, (0.025, 0.975)))]


def check(scene: Scene, groups: dict[str, list[Place]]) -> tuple[int, int]:
    """Run the anchored network itself: count pairs that agree, and those of other bits."""
    agreed = wrong = 0
    for method, (a, b) in itertools.product(
        scene.anchored, itertools.pairwise(groups["neighbours"])
    ):
        if scene.windows(method, a) == scene.windows(method, b):
            first, second = (scene.anchored[method](scene.frame(place)) for place in (a, b))
            agreed, wrong = agreed + 1, wrong + int(not torch.equal(first, second))
    return agreed, wrong


def summary(rows: list[dict[str, dict[str, float]]], rng: np.random.Generator) -> dict[str, object]:
    """Return every number with its interval, and its difference from the centre window."""
    methods: dict[str, object] = {}
    for method in NAMES:
        values = {key: np.array([row[method][key] for row in rows]) for key in rows[0][method]}
        plain = {key: np.array([row["centre"][key] for row in rows]) for key in values}
        methods[method] = {
            "percent": {key: bootstrap(v, rng) for key, v in values.items()},
            "minus_centre": {key: bootstrap(v - plain[key], rng) for key, v in values.items()},
        }
    return {"photos": len(rows), "methods": methods}


def main() -> None:
    """Measure and write JSON, every ten photos."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--network", choices=NETWORKS, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200, help="number of photos")
    parser.add_argument("--checked", type=int, default=3, help="photos for the check of bits")
    parser.add_argument("--groups", nargs="+", help="only these: crops, neighbours, move1, ...")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    import_torchvision()
    torch.set_grad_enabled(False)
    build, mean, std = NETWORKS[arguments.network]
    network = build(arguments.weights).to(memory_format=torch.channels_last)
    files = sorted(path for path in arguments.photos.glob("*/*") if path.is_file())
    rng = np.random.default_rng(arguments.seed)
    chosen = [files[i] for i in rng.permutation(len(files))[: arguments.count]]
    report: dict[str, object] = {"network": arguments.network, "seed": arguments.seed}
    rows, agreed, wrong, started = [], 0, 0, time.process_time()
    for number, path in enumerate(chosen, start=1):
        scene, groups = Scene(network, load_scene(path, mean, std)), draw_frames(rng)
        if arguments.groups:
            groups = {name: groups[name] for name in arguments.groups}
        rows.append(measure(scene, int(path.parent.name), groups))
        if number <= arguments.checked and "neighbours" in groups:
            more = check(scene, groups)
            agreed, wrong = agreed + more[0], wrong + more[1]
        if number % 10 == 0 or number == len(chosen):
            print(f"{number} of {len(chosen)}, {time.process_time() - started:.0f} s", flush=True)
            report |= summary(rows, np.random.default_rng(0))
            report["checked_pairs"], report["pairs_with_other_bits"] = agreed, wrong
            report["expected_agreement"] = {
                method: {d: round(100 * anchored.agreement(FRAME, d), 1) for d in MOVES}
                for method, anchored in scene.anchored.items()
            }
            arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
