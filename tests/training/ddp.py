"""Train on the CPU with one or two processes: ``python ddp.py FOLDER NUM_PROCESSES``.

Both see the same global batches. The network has group norm: batch norm sees only the images of
its own process, and its synchronised form does not run on CPUs. The phase is a plain softmax while
training, so no noise is drawn.
"""

import json
import sys
from pathlib import Path

import tiny
import torch
from torch import nn

import trueshift as ts
from trueshift.data import Shapes
from trueshift.training import Classifier, MultiStep


def without_batch_norm(module):
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.GroupNorm(1, child.num_features))
        else:
            without_batch_norm(child)


def run(folder, num_processes):
    torch.set_num_threads(1)
    tiny.L.seed_everything(2, verbose=False)
    model = Classifier(
        network="resnet",
        spec=ts.Sampling("lps", hidden=4, train_rule="softmax"),
        num_classes=10,
        network_options=tiny.SMALL,
        schedule=MultiStep((1,)),
        num_pairs="all",
        max_shift=3,
    )
    without_batch_norm(model.network)
    data = Shapes(size=16, batch_size=16 // num_processes, num_train=64, num_val=32, num_test=32)
    trainer = tiny.L.Trainer(
        max_epochs=2,
        devices=num_processes,
        strategy="auto" if num_processes == 1 else "ddp",
        logger=False,
        enable_checkpointing=False,
        **tiny.QUIET,
    )
    trainer.fit(model, datamodule=data)
    metrics = {k: float(v) for k, v in trainer.callback_metrics.items() if k != "train/loss"}
    # Plain striding under labels that hang by a thread: a consistency that is not simply 1.
    for layer in model.network.modules():
        if isinstance(layer, ts.PolyphaseDown) and layer.selector is not None:
            layer.selector = ts.FixedSelector(0)
    head = model.network.fc
    features = head.weight.shape[1]
    with torch.no_grad():
        noise = torch.randn(10, features, generator=torch.Generator().manual_seed(0))
        head.weight.copy_(noise - noise.mean(1, keepdim=True))
        head.bias.zero_()
    trainer.test(model, datamodule=data, verbose=False)
    metrics |= {k: float(v) for k, v in trainer.callback_metrics.items() if "test" in k}
    metrics["world_size"] = trainer.world_size
    if trainer.is_global_zero:
        (Path(folder) / f"{num_processes}.json").write_text(json.dumps(metrics))
        torch.save(model.network.state_dict(), Path(folder) / f"{num_processes}.pt")


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
