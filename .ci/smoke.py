"""Run every command once on tiny inputs, as installed: ``python smoke.py`` in an empty folder."""

import importlib.metadata
import importlib.resources
import os
import subprocess
import sys
from pathlib import Path

import torch

import trueshift as ts

COMMAND = str(Path(sys.executable).with_name("trueshift"))
SMALL = (
    "--seeds 1 --epochs 1 --num-train 100 --num-test 50 --num-pairs 1 --flow-epochs 1 --num-flows 1"
)
LPS = "runs/quickstart/0/pictures/lps_seed0"


def run(line: str) -> str:
    """Run a command and return what it prints."""
    print(f"trueshift {line}", flush=True)
    done = subprocess.run([COMMAND, *line.split()], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def check_library() -> None:
    """See that the layers keep their promise and that all files came along."""
    x = torch.randn(2, 4, 12, 8)
    down, up = ts.LPD(4, antialias="tri3").eval(), ts.LPU(4, antialias="tri3")
    moved = ts.shifts.circular_shift
    there_and_back = up(*down(x, return_phase=True))
    assert torch.equal(moved(there_and_back, 1, 3), up(*down(moved(x, 1, 3), return_phase=True)))
    files = importlib.resources.files("trueshift")
    for name in ("py.typed", "recipes/cifar10/resnet18_lps.yaml", "report/quickstart.html.j2"):
        assert (files / name).is_file(), name


def check_commands() -> None:
    """Run every command."""
    assert "torch" in run("--version")
    run(f"quickstart {SMALL}")
    fit = "--data.num_train 50 --data.num_val 50 --data.num_test 50 --trainer.accelerator cpu"
    run(f"fit --config {LPS}/config.yaml {fit}")
    last = "runs/config/0/checkpoints/last.ckpt"
    for verb in ("validate", "test", "predict"):
        run(f"{verb} --ckpt {last}")
    run(f"sweep {LPS}/config.yaml --runs swept")
    network = f"{LPS}/network.safetensors"
    run(f"audit {network} --num-images 4 --shifts 8 --html audit.html --json audit.json")
    run("audit torchvision:mobilenet_v2 --num-images 2 --shifts 2 --size 64 --no-layers")
    run("audit timm:resnet10t --num-images 2 --shifts 2 --size 64 --no-layers")
    run(f"figure filters {network}")
    run(f"norms {last} --limit 1 --draws 1")
    run("table cifar10 runs")
    run("bench params")
    run(f"export {network} --out net.onnx --size 32 --repeats 1 --dynamic batch")
    assert "resnet18_lps" in run("recipes cifar10/")
    assert "complete" in run("completion bash")
    assert "cifar10" in run("data --help")
    check_demo()


def check_demo() -> None:
    """Start the demo and stop it."""
    command = [COMMAND, "demo", "--no-browser", "--port", "0"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert demo.stdout is not None
        assert "http://127.0.0.1:" in demo.stdout.readline()
    finally:
        demo.terminate()
        demo.wait()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    check_library()
    if "--library" not in sys.argv:
        check_commands()
    print(
        "trueshift", importlib.metadata.version("trueshift"), "works with torch", torch.__version__
    )
