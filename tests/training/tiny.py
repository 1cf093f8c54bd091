"""A tiny training run, also as a script: ``python tiny.py FOLDER [OPTION=VALUE ...]``.

Options: ``epochs``, ``kill`` (die at this step by SIGKILL), ``resume`` (go on from the last
checkpoint), ``every`` (save every so many steps instead of every epoch), ``ema``, ``workers``,
``when``, ``seed``, ``interrupt`` (press Ctrl-C in this step), ``optimizer``.
"""

import os
import signal
import sys
from pathlib import Path

from trueshift.training import Classifier, MultiStep, SaveOnInterrupt, StepDecay  # isort: skip
import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

import trueshift as ts

SMALL = {"depths": [1, 1], "widths": [8, 16], "stem": "cifar"}
WARNINGS = [
    pytest.mark.filterwarnings(f"ignore:.*{text}.*")
    for text in (
        "LeafSpec",
        "does not have many workers",
        "your dataloader is not resumable",
        "exists and is not empty",
    )
]
QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


def classifier(method="lps", **options):
    spec = ts.Sampling(method, "tri3", hidden=4)
    options = {"network_options": SMALL, "lr": 0.1, "tau": StepDecay(every=1), **options}
    return Classifier(network="resnet", spec=spec, num_classes=4, **options)


def images(num=32, size=8):
    generator = torch.Generator().manual_seed(7)
    labels = torch.arange(num) % 4
    noise = torch.randn(num, 3, size, size, generator=generator)
    return TensorDataset(noise + labels.view(-1, 1, 1, 1), labels)


def loader(shuffle=False, workers=0, batch_size=8):
    return DataLoader(images(), batch_size=batch_size, shuffle=shuffle, num_workers=workers)


class Kill(Callback):
    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class Ask(Callback):
    """Press Ctrl-C during a step."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


def run(
    folder,
    epochs="4",
    kill=None,
    resume=None,
    every=None,
    when="on_train_epoch_end",
    ema=None,
    workers="0",
    seed="5",
    interrupt=None,
    optimizer="sgd",
):
    torch.set_num_threads(1)
    L.seed_everything(int(seed), verbose=False)
    average = None if ema is None else float(ema)
    model = classifier(ema=average, schedule=MultiStep((2, 3)), optimizer=optimizer)
    at_end = {"save_on_train_epoch_end": when == "on_train_epoch_end"}
    often = at_end if every is None else {"every_n_train_steps": int(every)}
    saving = ModelCheckpoint(folder, "last", enable_version_counter=False, **often)
    callbacks = [saving] if kill is None else [saving, Kill(int(kill))]
    if interrupt is not None:
        callbacks += [SaveOnInterrupt(folder), Ask(int(interrupt))]
    trainer = L.Trainer(
        max_epochs=int(epochs),
        callbacks=callbacks,
        logger=False,
        num_sanity_val_steps=0,
        **QUIET,
    )
    train = loader(shuffle=True, workers=int(workers))
    last = Path(folder) / "last.ckpt" if resume else None
    trainer.fit(model, train, loader(), ckpt_path=last)
    torch.save(model.network.state_dict(), Path(folder) / "final.pt")


if __name__ == "__main__":
    run(sys.argv[1], **dict(word.split("=") for word in sys.argv[2:]))
