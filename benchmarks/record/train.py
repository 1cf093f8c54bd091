r"""Train a body on CIFAR-10 on a few CPU cores; resumable after any stop, also kill -9.

The record run, started or resumed by the same command, from the project's root::

    OMP_NUM_THREADS=1 python -m benchmarks.record.train name=record_lps_tri3 \
        images=50000 epochs=50 widths=64,256,320 residual=1,1,1 stem=32 batch=500 micro=125 \
        workers=2 lr=0.12 momentum=0.6 warmup=0.1 adam=0.003 smoothing=0.2 cutout=8 \
        flip=alternate rule=sample hidden=8 calibrate=1 tau=1,0.1 aux_every=4 \
        selector_lr=0.003 modes=own,random,aps,zero,shifted,flips

``data=DIR`` is a folder that :func:`trueshift.data.cifar10.load_cifar10` can read, ``folder=DIR``
takes the checkpoint ``NAME.pt``; a finished run appends a line to ``RUNS.jsonl`` next to it.

Every step's micro-batches go to worker threads of one core each; gradients are added in a fixed
order. Selectors update their running spread in the order in which threads arrive: with selectors,
only runs with ``workers=1`` repeat bit by bit.
"""

from __future__ import annotations

import sys

import torch

from benchmarks.record.learn import LEARNED, RULES
from benchmarks.record.run import Run

# fmt: off
DEFAULTS = dict(
    name="run", folder="runs/record", data="data/cifar10", seed=0, images=50000, epochs=12,
    widths="32,96,128", residual="0,1,1", stem=32, batch=500, micro=125, workers=2,
    lr=0.1, momentum=0.6, warmup=0.1, final=0.0, adam=3e-3, smoothing=0.2,
    cutout=0, flip="alternate", ema=0.0, bias_epochs=3,
    rule="zero", hidden=0, calibrate=1, tau="1,1", selector_lr=3e-3, aux_every=4, aux_scale=2.0,
    eval_images=10000, modes="own,random,aps,zero,shifted", stop=0.0, save_every=120.0,
)
# fmt: on


def parse(arguments: list[str]) -> dict:
    """Return the options, given as ``key=value``."""
    config = dict(DEFAULTS)
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in DEFAULTS:
            raise SystemExit(f"train: unknown option {key!r}. Choose from: {', '.join(DEFAULTS)}.")
        config[key] = type(DEFAULTS[key])(value)
    if config["rule"] not in RULES:
        raise SystemExit(
            f"train: unknown rule {config['rule']!r}. Choose from: {', '.join(RULES)}."
        )
    if config["rule"] in LEARNED and not config["hidden"]:
        raise SystemExit(f"train: rule {config['rule']!r} needs selectors. Pass hidden=8.")
    return config


def main() -> None:
    """Train until the last epoch or the CPU limit, then evaluate."""
    torch.set_num_threads(1)
    config = parse(sys.argv[1:])
    run = Run(config)
    while run.epoch < config["epochs"]:
        run.one_epoch()
        if config["stop"] and run.spent > config["stop"]:
            print("stopped", flush=True)
            return
    run.finish()


if __name__ == "__main__":
    main()
