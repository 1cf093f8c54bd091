"""Pictures of emulators in docs/simulations.md: roll-outs, the imprint of the grid, shifted twins.

``--share`` prints instead how much of the plain networks' error depends on the grid.

Train and test the recipes first, then draw what their last checkpoints do::

    trueshift sweep recipes/flows/*.yaml --seeds 0 1 2 --runs runs/flows --results results/flows
    python -m benchmarks.flows runs/flows
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import torch
from PIL import Image
from torch import Tensor

from trueshift.cli.runs import data_of
from trueshift.data import Flows
from trueshift.data.flows.equations import EQUATIONS
from trueshift.metrics import rollout
from trueshift.shifts import circular_shift
from trueshift.training import Emulator

mpl.use("Agg")
from matplotlib import pyplot as plt

ROWS = {"stride": "stride", "LPS tri3": "lps_tri3"}
SHIFT = 5  # points


def load(runs: Path, recipe: str, seed: int) -> tuple[Emulator, Flows]:
    """Return the newest emulator of a recipe, in eval mode, and its data."""
    files = (runs / f"seed{seed}").rglob(f"{recipe}/*/checkpoints/last.ckpt")
    newest = max(files, key=lambda path: path.stat().st_mtime)
    build, options = data_of(newest)
    data = build(**options)
    data.setup()
    return Emulator.load_from_checkpoint(newest, weights_only=True).eval(), data


@torch.no_grad()
def twins(model: Emulator, state: Tensor, num_steps: int) -> tuple[Tensor, Tensor]:
    """Roll out a state and its shifted copy; return both on the grid of the first, ``(T, *shape)``.

    For an equivariant model they are the same.
    """
    shift = (0,) * (state.ndim - 3) + (SHIFT,)
    moved = rollout(model, circular_shift(state, *shift), num_steps)
    back = circular_shift(moved, *(-s for s in shift))
    return rollout(model, state, num_steps)[0, :, 0], back[0, :, 0]


def draw_space_time(runs: Path, seed: int, path: Path, num_steps: int = 100) -> None:
    """Draw the truth, roll-outs, and how far those of shifted twins are from them."""
    figure, axes = plt.subplots(1, 5, figsize=(13, 3.6), sharey=True, layout="constrained")
    for number, (name, row) in enumerate(ROWS.items()):
        model, data = load(runs, f"kuramoto_sivashinsky_{row}", seed)
        first, following = data.datasets["test"][0]
        states, twin = twins(model, first[None], num_steps)
        panels = {f"{name}": states, f"{name}: shifted twin minus it": twin - states}
        for place, (title, picture) in enumerate(panels.items(), start=1 + 2 * number):
            show(axes[place], picture, title)
        show(axes[0], following[:num_steps, 0], "Kuramoto-Sivashinsky")
    axes[0].set_ylabel("step")
    figure.savefig(path, dpi=80)
    plt.close(figure)


def show(axis: plt.Axes, picture: Tensor, title: str) -> None:
    """Draw a field, or its history, in colours from -3 to 3 standard deviations."""
    axis.imshow(picture, cmap="RdBu_r", vmin=-3, vmax=3, aspect="auto", interpolation="nearest")
    axis.set_title(title, fontsize=9)
    axis.set_xticks([])


@torch.no_grad()
def draw_imprint(runs: Path, seed: int, path: Path) -> None:
    """Draw the power of the mean one-step error by wave number, with the waves of the grid."""
    figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
    for name, row in ROWS.items():
        model, data = load(runs, f"kuramoto_sivashinsky_{row}", seed)
        states = data.datasets["test"].states  # (N, T, 1, points)
        now, after = states[:, :-1].flatten(0, 1), states[:, 1:].flatten(0, 1)
        mean = (model(now) - after).double().mean(0)[0]
        power = torch.fft.rfft(mean, norm="forward").abs().square()
        axis.semilogy(range(1, len(power)), power[1:], label=name)
        for wave in range(len(mean) // 8, len(power), len(mean) // 8):
            axis.axvline(wave, color="0.85", zorder=0)
    axis.set(xlabel="wave number (grey: the grid of 8 points)", ylabel="power of the mean error")
    axis.legend()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def draw_film(runs: Path, seed: int, path: Path, num_steps: int = 60, zoom: int = 2) -> None:
    """Write a GIF: roll-outs of both emulators above, what their shifted twins differ by below."""
    columns = []
    for row in ROWS.values():
        model, data = load(runs, f"forced_navier_stokes_{row}", seed)
        first, _ = data.datasets["test"][0]
        states, twin = twins(model, first[None], num_steps)
        columns.append(torch.cat([states, 3 * (twin - states)], 1))  # (T, 2 H, W)
    values = torch.cat(columns, 2) / 6 + 0.5
    grey = (values.clamp(0, 1) * 31).round() * 8  # few levels make a small file
    large = grey.byte().repeat_interleave(zoom, 1).repeat_interleave(zoom, 2)
    frames = [Image.fromarray(frame.numpy()) for frame in large]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=120, loop=0)


@torch.no_grad()
def grid_share(model: Emulator, data: Flows) -> float:
    """Return the share of the squared one-step error that the mean over 8 shifts removes.

    An exact network makes the same error at every shift, so its share is zero.
    """
    states = data.datasets["test"].states  # (N, T, 1, *shape)
    now, after = states[:, :-1:4].flatten(0, 1), states[:, 1::4].flatten(0, 1)
    errors = []
    for by in range(8):
        shift = [by if wraps else 0 for wraps in data.periodic]
        step = model(circular_shift(now, *shift))
        errors.append((circular_shift(step, *(-n for n in shift)) - after).double())
    mean = torch.stack(errors).mean(0)
    return 1 - float(mean.square().mean() / torch.stack(errors).square().mean())


def main() -> None:
    """Draw all pictures, or print shares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="?", default=Path("runs/flows"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--share", action="store_true", help="print shares, draw nothing")
    args = parser.parse_args()
    if args.share:
        for equation in EQUATIONS:
            share = grid_share(*load(args.runs, f"{equation}_stride", args.seed))
            print(f"{equation}: {100 * share:.1f} %")
        return
    draw_space_time(args.runs, args.seed, args.out / "flows.png")
    draw_imprint(args.runs, args.seed, args.out / "imprint.png")
    draw_film(args.runs, args.seed, args.out / "flows.gif")


if __name__ == "__main__":
    main()
