import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("ddp.py")


def start(folder, num_processes):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_PORT", "PL_GLOBAL_SEED"):
        environment.pop(name, None)
    command = [sys.executable, str(SCRIPT), str(folder), str(num_processes)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((folder / f"{num_processes}.json").read_text())
    return metrics, torch.load(folder / f"{num_processes}.pt", weights_only=True)


def test_two_processes_do_what_one_does_on_the_same_global_batch(tmp_path):
    one, weights_one = start(tmp_path, 1)
    two, weights_two = start(tmp_path, 2)
    assert (one.pop("world_size"), two.pop("world_size")) == (1, 2)
    assert one.keys() == two.keys()
    assert one["test/circular_consistency"] < 1  # plain striding: something to reduce
    for name, value in one.items():
        if name == "test/bitwise_equal":  # of a net that is not: a matter of rounding
            continue
        assert two[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    for name, value in weights_one.items():
        torch.testing.assert_close(weights_two[name], value, rtol=1e-4, atol=1e-5)
