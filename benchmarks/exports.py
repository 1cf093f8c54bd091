"""Measure how long exporting to ONNX takes, and how large the graphs are.

``python -m benchmarks.exports`` writes each network with batch and size dynamic, compares it with
torch as ``trueshift export`` does, and prints CPU seconds and numbers of nodes. CPU seconds hardly
depend on what else runs on the machine; use ``OMP_NUM_THREADS=1``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import trueshift as ts
from trueshift._torchvision import import_torchvision
from trueshift.export import check, export


def resnet18_lps(example: Tensor) -> nn.Module:
    """Build ResNet-18 with LPS."""
    return ts.models.resnet18(ts.Sampling("lps")).eval()


def converted_resnet18(example: Tensor) -> nn.Module:
    """Convert torchvision's ResNet-18 to APS, selected from the inputs of strided layers."""
    import_torchvision()
    from torchvision import models

    model = models.resnet18(weights=None).eval()
    return ts.convert(model, "aps", example, select_from="input", verify=False)


NETWORKS: dict[str, Callable[[Tensor], nn.Module]] = {
    "resnet18-lps": resnet18_lps,
    "converted-resnet18": converted_resnet18,
}


def main() -> None:
    """Export the networks that were asked for and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--size", type=int, default=64, help="pixels of the example (64)")
    args = parser.parse_args()
    for name in args.networks or NETWORKS:
        print(f"{name}: {measure(NETWORKS[name], args.size)}", flush=True)


def measure(build: Callable[[Tensor], nn.Module], size: int) -> str:
    """Export one network; say what it took."""
    import onnx

    torch.manual_seed(0)
    example = torch.randn(2, 3, size, size)
    model = build(example)
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        exported = export(model, example, Path(folder) / "net.onnx")
        written = time.process_time()
        result = check(model, exported, example, repeats=1)
        checked = time.process_time()
        nodes = onnx.load(exported.path, load_external_data=False).graph.node
    exact = result.exactness
    most = ", ".join(f"{n} {op}" for op, n in Counter(n.op_type for n in nodes).most_common(8))
    return (
        f"export {written - start:.0f} s, check {checked - written:.0f} s of CPU time;"
        f" {len(nodes)} nodes ({most}); difference {max(result.differences.values()):.1e};"
        f" shifts {exact and f'{exact.equal} of {exact.total}'}; torch {result.torch_ms:.0f} ms,"
        f" onnxruntime {result.ms:.0f} ms"
    )


if __name__ == "__main__":
    main()
