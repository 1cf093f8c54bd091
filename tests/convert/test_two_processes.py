"""A converted network trains in two processes like any other."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from networks import trained
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from user_nets import Residual, image

from trueshift.convert import convert


def train_on_one_rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    new = convert(trained(Residual()), "lps", image(2, 3, 16, 16), verify=False).train()
    parallel = DistributedDataParallel(new)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    torch.manual_seed(rank)  # other images and other samples on each
    x, labels = torch.randn(4, 3, 16, 16), torch.randint(5, (4,))
    losses = []
    for _ in range(2):
        loss = nn.functional.cross_entropy(parallel(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.save({"losses": losses, "state": new.state_dict()}, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_keep_the_same_weights(tmp_path):
    mp.spawn(train_on_one_rank, args=(str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2))
    assert first["losses"] != second["losses"]
    torch.manual_seed(0)
    before = convert(trained(Residual()), "lps", image(2, 3, 16, 16), verify=False).state_dict()
    moved = [k for k, v in first["state"].items() if not torch.equal(v, before[k])]
    assert any(key.startswith("sampling.") for key in moved)
    assert any(not key.startswith("sampling.") for key in moved)
    for key, value in first["state"].items():
        if not key.endswith(("running_mean", "running_var")):  # of each process's own images
            assert torch.equal(value, second["state"][key]), key
