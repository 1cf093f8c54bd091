"""Measure how labels of photos change when the camera moves, with and without anchored windows.

``python -m benchmarks.frames PHOTOS --network mobilenet_v2 --weights FILE --cache DIR``

``PHOTOS`` holds one folder per class, named by its index, with photos of 320 pixels. A frame has 32
pixels more than the windows that the network sees, and starts at random in a range of 32 pixels
around the centre of the photo. Windows of a photo with the same pixels have the same output, so
each is run once, by onnxruntime; outputs are kept in ``DIR``, and a run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import trueshift as ts
from trueshift._torchvision import import_torchvision
from trueshift.export import export
from trueshift.functional import order_free_mean

ROOM = 32  # frames start at 0..ROOM along each axis, and so may windows in a frame
MOVES = (1, 4, 16, 32)
CROPS = 4  # random frames whose labels are compared in pairs
BATCH = 8
RESULTS = Path(__file__).parent / "results"
Place = tuple[int, int]
Rule = Callable[[Tensor], list[Place]]  # a frame (1, C, H, W) to the corners of its windows


class Network(NamedTuple):
    """How to build a network, and what it takes."""

    build: Callable[[Path], Any]
    window: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def mobilenet_v2(weights: Path) -> nn.Module:
    """Build torchvision's network from its own file."""
    from torchvision.models import mobilenet_v2 as build

    model: nn.Module = build()
    model.load_state_dict(torch.load(weights, weights_only=True))
    return model


def efficientnet_lite(number: int, window: int) -> Network:
    """Build timm's network from a file with the same tensors under other names."""

    def build(weights: Path) -> nn.Module:
        import timm

        model: nn.Module = timm.create_model(f"tf_efficientnet_lite{number}")
        stored = torch.load(weights, weights_only=True)
        names, values = (
            [item for item in state.items() if not item[0].endswith("num_batches_tracked")]
            for state in (model.state_dict(), stored)
        )
        pairs = zip(names, values, strict=True)
        model.load_state_dict({name: value for (name, _), (_, value) in pairs}, strict=False)
        return model

    return Network(build, window, (127 / 255,) * 3, (128 / 255,) * 3)


NETWORKS = {
    "mobilenet_v2": Network(mobilenet_v2, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "efficientnet_lite0": efficientnet_lite(0, 224),
    "efficientnet_lite1": efficientnet_lite(1, 240),
    "efficientnet_lite2": efficientnet_lite(2, 256),  # trained at 260; photos have 320
    # An ONNX file of two classes, for BGR of 0..255, channels last: stability only.
    "opennsfw": Network(Path, 224, (123 / 255, 117 / 255, 104 / 255), (1 / 255,) * 3),
}
CONVERSIONS = {
    "plain": None,
    "blur": ts.Sampling("stride", antialias="tri3", padding_mode="zeros"),
    "aps": ts.Sampling("aps", padding_mode="zeros"),
    "aps-margin1": ts.Sampling("aps", padding_mode="zeros", margin=1),
    "aps-margin2": ts.Sampling("aps", padding_mode="zeros", margin=2),
}


def session(network: Network, conversion: str, weights: Path, path: Path) -> Any:
    """Return a session of onnxruntime; the file is written once."""
    import onnxruntime

    if weights.suffix == ".onnx":
        path = weights
    elif not path.exists():
        import_torchvision()
        model = network.build(weights).eval()
        example = torch.randn(2, 3, network.window, network.window)
        spec = CONVERSIONS[conversion]
        if spec is not None:
            model = ts.convert(model, spec, example, padding="keep").eval()
        export(model, example, path, dynamic=("batch",))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def rules(window: int) -> dict[str, Rule]:
    """Return how windows are chosen in a frame, by name."""

    def fixed(*starts: int) -> Rule:
        return lambda frame: list(itertools.product(starts, repeat=2))

    def anchored(**options: Any) -> Rule:
        module = ts.anchor(nn.Identity(), window, **options)
        return lambda frame: [(y, x) for y, x in module.corners(frame)[0].tolist()]

    return {
        "centre": fixed(ROOM // 2),
        "fixed4": fixed(ROOM // 2 - 8, ROOM // 2 + 8),
        "anchored1": anchored(),
        "anchored4": anchored(anchors=4),
    }


def load_scene(path: Path, network: Network) -> Tensor:
    """Read a photo, normalise it and keep the centre: ``(C, scene, scene)``."""
    pixels = torch.from_numpy(np.array(Image.open(path).convert("RGB"))).movedim(-1, 0) / 255
    mean, std = (torch.tensor(v)[:, None, None] for v in (network.mean, network.std))
    return ts.shifts.standard_shift((pixels - mean) / std, network.window + 2 * ROOM, 0, 0)


def draw_frames(rng: np.random.Generator) -> dict[str, list[Place]]:
    """Draw the places of frames; the frames of a group are compared with each other."""
    start = rng.integers(1, ROOM, 2)
    groups = {
        "neighbours": [start + np.array(by) for by in itertools.product((0, 1, -1), repeat=2)]
    }
    for d in MOVES[:-1]:
        signs = [rng.choice([s for s in (-1, 1) if 0 <= at + s * d <= ROOM]) for at in start]
        groups[f"move{d}"] = [start, start + d * np.array(signs)]
    corner = ROOM * rng.integers(0, 2, 2)
    groups[f"move{ROOM}"] = [corner, ROOM - corner]
    groups["crops"] = [start, *(rng.integers(0, ROOM + 1, 2) for _ in range(CROPS - 1))]
    return {name: [(int(y), int(x)) for y, x in places] for name, places in groups.items()}


class Scene:
    """One photo and the outputs of its windows, which are kept in a file."""

    def __init__(self, network: Network, session: Any, photo: Path, cache: Path) -> None:
        self.window, self.session = network.window, session
        self.pixels = load_scene(photo, network)
        self.file = cache / f"{photo.parent.name}-{photo.stem}.npz"
        self.outputs: dict[Place, Tensor] = {}
        if self.file.exists():
            stored = np.load(self.file)
            places = [(int(y), int(x)) for y, x in stored["places"]]
            self.outputs = dict(zip(places, torch.from_numpy(stored["outputs"]), strict=True))

    def windows(self, rule: Rule, place: Place) -> tuple[Place, ...]:
        """Return where in the scene the windows of the frame at a place lie."""
        frame = self.window + ROOM
        pixels = self.pixels[None, :, place[0] : place[0] + frame, place[1] : place[1] + frame]
        return tuple((place[0] + y, place[1] + x) for y, x in rule(pixels))

    def run(self, places: Iterable[Place]) -> None:
        """Run the network on windows that it has not seen."""
        missing = sorted(set(places) - set(self.outputs))
        for first in range(0, len(missing), BATCH):
            part = missing[first : first + BATCH]
            pixels = [self.pixels[:, y : y + self.window, x : x + self.window] for y, x in part]
            taken, windows = self.session.get_inputs()[0], torch.stack(pixels)
            if taken.shape[-1] == 3:
                windows = windows.flip(1).permute(0, 2, 3, 1)
            outputs = self.session.run(None, {taken.name: windows.contiguous().numpy()})[0]
            self.outputs.update(zip(part, torch.from_numpy(outputs), strict=True))
        if missing:
            places, outputs = zip(*self.outputs.items(), strict=True)
            np.savez(self.file, places=np.array(places), outputs=torch.stack(outputs).numpy())

    def output(self, windows: Iterable[Place]) -> Tensor:
        """Return the mean output of some windows."""
        return order_free_mean(torch.stack([self.outputs[w] for w in windows]), 0)


def measure(
    scene: Scene, label: int, groups: dict[str, list[Place]], chosen: dict[str, Rule]
) -> dict[str, dict[str, float]]:
    """Return the numbers of one photo, by rule."""
    frames = set(itertools.chain(*groups.values()))
    seen = {name: {p: scene.windows(rule, p) for p in frames} for name, rule in chosen.items()}
    scene.run(w for by_place in seen.values() for windows in by_place.values() for w in windows)
    results = {}
    for name, windows in seen.items():
        outputs = {place: scene.output(places) for place, places in windows.items()}
        labels = {place: int(output.argmax()) for place, output in outputs.items()}
        counted = [
            labels[p] for group, places in groups.items() if group != "neighbours" for p in places
        ]
        row = {"top1": float(np.mean([one == label for one in counted]))}
        for group, places in groups.items():
            if group == "neighbours":
                row[group] = float(len({labels[p] for p in places}) == 1)
                continue
            pairs = list(itertools.combinations(places, 2))
            row[group] = float(np.mean([labels[a] == labels[b] for a, b in pairs]))
            row[f"{group}-bits"] = float(np.mean([windows[a] == windows[b] for a, b in pairs]))
            changes = [float((outputs[a] - outputs[b]).abs().max()) for a, b in pairs]
            row[f"{group}-change"] = float(np.mean(changes))
        results[name] = row
    return results


def bootstrap(values: np.ndarray) -> list[float]:
    """Return the mean and its 95 % interval over photos, in percent."""
    draws = np.random.default_rng(0).choice(values, (2000, len(values))).mean(1)
    return [round(100 * float(v), 2) for v in (values.mean(), *np.quantile(draws, (0.025, 0.975)))]


def summary(rows: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Return every number with its interval and, where measured, its gain over the centre."""
    report: dict[str, Any] = {"photos": len(rows)}
    for rule in rows[0]:
        values = {key: np.array([row[rule][key] for row in rows]) for key in rows[0][rule]}
        report[rule] = {"percent": {key: bootstrap(v) for key, v in values.items()}}
        if "centre" in rows[0]:
            plain = {key: np.array([row["centre"][key] for row in rows]) for key in values}
            gains = {key: bootstrap(v - plain[key]) for key, v in values.items()}
            report[rule]["minus_centre"] = gains
    return report


def cost(network: Network, weights: Path, rounds: int = 45) -> dict[str, float]:
    """Return the time of an anchored network as a multiple of that of the network alone."""
    import_torchvision()
    window, ratios = network.window, {}
    model = network.build(weights).eval()
    models = {"as it is": model, "optimized": ts.optimize(model, torch.randn(1, 3, window, window))}
    for (name, model), batch, anchors in itertools.product(models.items(), (1, 8), (1, 4)):
        frames = torch.randn(batch, 3, window + ROOM, window + ROOM)
        alone = functools.partial(model, frames[..., :window, :window].contiguous())
        anchored = functools.partial(ts.anchor(model, window, anchors=anchors), frames)
        each = [timed(anchored) / timed(alone) for _ in range(rounds)]
        ratios[f"{name}, batch {batch}, anchors {anchors}"] = round(float(np.median(each)), 3)
    return ratios


def timed(call: Callable[[], Any]) -> float:
    """Return the seconds of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    """Measure and write JSON, every fifty photos."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--network", choices=NETWORKS, required=True)
    parser.add_argument("--convert", choices=CONVERSIONS, default="plain")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("frames"), help="folder for outputs")
    parser.add_argument("--count", type=int, default=800, help="number of photos")
    parser.add_argument("--rules", nargs="+", help="only these, others stay in the JSON file")
    parser.add_argument("--output", type=Path, help="JSON file")
    parser.add_argument("--cost", action="store_true", help="only measure time, without photos")
    args = parser.parse_args()
    network, name = NETWORKS[args.network], f"{args.network}-{args.convert}"
    if args.cost:
        print(json.dumps(cost(network, args.weights)))
        return
    cache = args.cache / name
    cache.mkdir(parents=True, exist_ok=True)
    run = session(network, args.convert, args.weights, args.cache / f"{name}.onnx")
    chosen = rules(network.window)
    chosen = {key: chosen[key] for key in args.rules or chosen}
    files = sorted(path for path in args.photos.glob("*/*") if path.is_file())
    order = np.random.default_rng(0).permutation(len(files))[: args.count]
    output = args.output or RESULTS / f"frames-{name}.json"
    before = json.loads(output.read_text()) if output.exists() else {}
    rows = []
    for number, i in enumerate(order, start=1):
        scene = Scene(network, run, files[i], cache)
        groups = draw_frames(np.random.default_rng([0, i]))
        rows.append(measure(scene, int(files[i].parent.name), groups, chosen))
        if number % 50 == 0 or number == len(order):
            print(f"{name}: {number} of {len(order)}", flush=True)
            report = {"network": args.network, "convert": args.convert, **summary(rows)}
            if args.rules and before.get("photos") == report["photos"]:
                report = {**before, **report}
            output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
