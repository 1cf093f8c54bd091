"""Compare rules of one window at every place of the frame.

``python -m benchmarks.frame_rules PHOTOS --network mobilenet_v2 --weights FILE --cache DIR``

A frame may start at 33 x 33 places of a photo. Frames with the same anchor share a few windows, so
that the labels of all of them, and of all their moves, take about ten runs of the network: the
numbers of anchored windows are means over every frame, not a sample. The central window differs
from frame to frame; its numbers are means over ``--draws`` random groups of frames for each photo.
Options and cache are those of ``benchmarks.frames``; ``--pool`` averages over the networks that
have been measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.frames import (
    MOVES,
    NETWORKS,
    RESULTS,
    ROOM,
    Scene,
    bootstrap,
    draw_frames,
    measure,
    rules,
    session,
)
from trueshift.anchor import DifferenceOfGaussians
from trueshift.anchor.places import lines, residues
from trueshift.anchor.score import inner, is_peak

Score = Callable[[Tensor], Tensor]
Windows = np.ndarray  # (33, 33, 2): where in the scene the window of each frame lies
KEYS = ("top1", "move1", "move4", "move16", "neighbours", "crops")


def smooth(x: Tensor, distances: tuple[int, ...]) -> Tensor:
    """Add pixels ``distance`` apart along every axis of ``(B, *spatial)``, for each distance."""
    for axis, distance in itertools.product(range(1, x.ndim), distances):
        length = x.shape[axis] - distance
        x = x.narrow(axis, 0, length) + x.narrow(axis, distance, length)
    return x


def coarse(frames: Tensor) -> Tensor:
    """Score blobs of twice the size: Gaussians of 3.2 and 5.1 pixels."""
    narrow = smooth(frames.sum(1), (2, 2, 4, 4))
    return (smooth(narrow, (8,)) / 4 - narrow[:, 4:-4, 4:-4]).abs()


def fine(frames: Tensor) -> Tensor:
    """Score blobs of less than half the size: Gaussians of 0.7 and 1.2 pixels."""
    narrow = smooth(frames.sum(1), (1, 1))
    return (smooth(narrow, (2,)) / 4 - narrow[:, 1:-1, 1:-1]).abs()


def colour(frames: Tensor) -> Tensor:
    """Score every channel by itself, and add: a blob may differ in colour only."""
    dog = DifferenceOfGaussians()
    return torch.stack([dog(frames[:, [c]]) for c in range(frames.shape[1])]).sum(0)


def local(score: Score) -> Score:
    """Let local maxima count only."""

    def maxima(frames: Tensor) -> Tensor:
        scores = score(frames)
        return inner(scores).masked_fill(~is_peak(scores), 0.0)

    return maxima


SCORES: dict[str, Score] = {
    "default": local(DifferenceOfGaussians()),
    "slopes": DifferenceOfGaussians(),  # also points at the border on the slope of a stronger one
    "fine": local(fine),
    "coarse": local(coarse),
    "colour": local(colour),
}


def anchors(pixels: Tensor, frame: int, score: Score) -> tuple[Tensor, Tensor]:
    """Return the strongest point of the frame at every place, relative to it, and its score."""
    scores = score(pixels[None])
    n = frame - (pixels.shape[-1] - scores.shape[-1])  # scored points along an axis of a frame
    rows, column = F.max_pool2d(scores, (1, n), 1, return_indices=True)  # first of equal ones
    value, row = F.max_pool2d(rows, (n, 1), 1, return_indices=True)
    point = column.flatten()[row.flatten()]
    width = scores.shape[-1]
    where = torch.stack([point // width, point % width], -1).view(ROOM + 1, ROOM + 1, 2)
    return where - starts(), value[0]


def starts() -> Tensor:
    """Return every place of a frame, ``(33, 33, 2)``."""
    every = torch.arange(ROOM + 1)
    return torch.stack(torch.meshgrid(every, every, indexing="ij"), -1)


def chosen(position: Tensor, value: Tensor, window: int, modulus: int) -> Windows:
    """Return the windows that the points fix, as ``ts.anchor`` does."""
    axes = lines((window + ROOM,) * 2, (window,) * 2, (modulus,) * 2)
    residue = residues(axes, position.flatten(0, -2).tolist(), value.flatten().tolist())
    corner = torch.tensor(residue).view_as(position) + axes[0].start
    return (starts() + corner).numpy()


def everywhere(scene: Scene, label: int, windows: Windows) -> dict[str, float]:
    """Return the numbers of one photo, means over all frames and all moves within the range."""
    distinct, index = np.unique(windows.reshape(-1, 2), axis=0, return_inverse=True)
    places = [(int(y), int(x)) for y, x in distinct]
    scene.run(places)
    labels = np.array([int(scene.outputs[place].argmax()) for place in places])
    ids = index.reshape(ROOM + 1, ROOM + 1)
    seen = labels[ids]
    row = {"top1": float((seen == label).mean()), "windows": len(places)}
    for d in MOVES:
        for name, values in (("", seen), ("-bits", ids)):
            same = (values[d:, d:] == values[:-d, :-d], values[d:, :-d] == values[:-d, d:])
            row[f"move{d}{name}"] = float(np.mean(same))
    middle, moved = seen[1:-1, 1:-1], np.lib.stride_tricks.sliding_window_view(seen, (3, 3))
    row["neighbours"] = float((moved == middle[..., None, None]).all((2, 3)).mean())
    row["crops"] = float(sum((seen == one).mean() ** 2 for one in set(labels.tolist())))
    return row


def sampled(scene: Scene, label: int, photo: int, draws: int) -> dict[str, float]:
    """Return the numbers of the central window."""
    centre = {"centre": rules(scene.window)["centre"]}
    rows = [
        measure(scene, label, draw_frames(np.random.default_rng([draw, photo])), centre)["centre"]
        for draw in range(draws)
    ]
    return {key: float(np.mean([row[key] for row in rows])) for key in KEYS}


def summary(rows: dict[str, dict[str, np.ndarray]]) -> dict[str, dict[str, list[float]]]:
    """Return every number with its interval, and the differences from the central window."""
    report = {}
    for rule, values in rows.items():
        report[rule] = {key: bootstrap(v) for key, v in values.items() if key != "windows"}
        if "centre" in rows and rule != "centre":
            for key in KEYS:
                report[rule][f"{key}-centre"] = bootstrap(values[key] - rows["centre"][key])
        if "default-32" in rows and rule not in ("centre", "default-32"):
            for key in KEYS:
                report[rule][f"{key}-default"] = bootstrap(values[key] - rows["default-32"][key])
    return report


def pool(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Average over networks, photo by photo."""
    networks = [dict(np.load(path)) for path in sorted(folder.glob("rules-*.npz"))]
    shared = set.intersection(*(set(one) for one in networks))
    count = min(len(v) for one in networks for v in one.values())
    rows: dict[str, dict[str, np.ndarray]] = {}
    for name in sorted(shared):
        rule, key = name.split("/")
        rows.setdefault(rule, {})[key] = np.mean([one[name][:count] for one in networks], 0)
    return summary(rows)


def main() -> None:
    """Measure and write JSON, every fifty photos."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--network", choices=NETWORKS)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("frames"), help="folder for outputs")
    parser.add_argument("--count", type=int, default=800, help="number of photos")
    parser.add_argument("--moduli", type=int, nargs="+", default=[32])
    parser.add_argument("--scores", choices=SCORES, nargs="*", default=[], help="at modulus 32")
    parser.add_argument("--draws", type=int, default=3, help="for the central window; 0: without")
    parser.add_argument("--pool", action="store_true", help="average what has been measured")
    args = parser.parse_args()
    if args.pool:
        text = json.dumps(pool(args.cache), indent=1)
        (RESULTS / "frame-rules-pooled.json").write_text(text + "\n")
        return
    network, name = NETWORKS[args.network], f"{args.network}-plain"
    cache = args.cache / name
    cache.mkdir(parents=True, exist_ok=True)
    run = session(network, "plain", args.weights, args.cache / f"{name}.onnx")
    files = sorted(path for path in args.photos.glob("*/*") if path.is_file())
    order = np.random.default_rng(0).permutation(len(files))[: args.count]
    wanted = [("default", m) for m in args.moduli] + [(score, 32) for score in args.scores]
    rows: dict[str, dict[str, list[float]]] = {}
    for number, i in enumerate(order, start=1):
        scene, label = Scene(network, run, files[i], cache), int(files[i].parent.name)
        by_rule, found = {}, {}
        for score, m in wanted:
            if score not in found:
                found[score] = anchors(scene.pixels, network.window + ROOM, SCORES[score])
            windows = chosen(*found[score], network.window, m)
            by_rule[f"{score}-{m}"] = everywhere(scene, label, windows)
        if args.draws:
            by_rule["centre"] = sampled(scene, label, int(i), args.draws)
        for rule, row in by_rule.items():
            for key, value in row.items():
                rows.setdefault(rule, {}).setdefault(key, []).append(value)
        if number % 50 == 0 or number == len(order):
            print(f"{name}: {number} of {len(order)}", flush=True)
            arrays = {r: {k: np.array(v) for k, v in row.items()} for r, row in rows.items()}
            flat = {f"{r}/{k}": v for r, row in arrays.items() for k, v in row.items()}
            np.savez(args.cache / f"rules-{args.network}.npz", **flat)
            report = {"network": args.network, "photos": number, **summary(arrays)}
            text = json.dumps(report, indent=1)
            (RESULTS / f"frame-rules-{args.network}.json").write_text(text + "\n")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
