"""A Lightning module that only remembers the batches it was given."""

import torch

from trueshift._torchvision import import_torchvision

import_torchvision()
from lightning.pytorch import LightningModule, Trainer  # noqa: E402


class Recorder(LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen = []

    def training_step(self, batch):
        self.seen.append(tuple(part.clone() for part in batch))
        return self.weight * batch[0].mean()

    def validation_step(self, batch):
        raise AssertionError

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def quiet_trainer(folder, **options):
    return Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        **options,
    )
