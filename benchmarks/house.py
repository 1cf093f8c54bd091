"""How large the code is and how far a call travels: files, lines, condition checks, Python calls.

Run with ``python -m benchmarks.house``. Checks are lines that ask about device, memory format, grad
mode, threads or tracing outside the files that may: ``_cpu/``, ``_dispatch.py`` and ``exact.py``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import trueshift as ts

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "trueshift"
ASKS = re.compile(
    r"device\.type|is_compiling|_is_tracing|is_contiguous|is_grad_enabled|get_num_threads|traced\(\)"
)
MAY_ASK = ("_cpu/", "_dispatch.py", "exact.py")


def size(folder: Path) -> tuple[int, int]:
    """Return the number of Python files below a folder, and of their lines."""
    files = sorted(folder.rglob("*.py"))
    return len(files), sum(len(path.read_text().splitlines()) for path in files)


def checks() -> list[str]:
    """Return the lines that ask what only kernels should."""
    lines = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if not name.startswith(MAY_ASK):
            text = path.read_text().splitlines()
            lines += [
                f"{name}:{n}: {line.strip()}" for n, line in enumerate(text, 1) if ASKS.search(line)
            ]
    return lines


def calls(layer: torch.nn.Module, x: torch.Tensor) -> tuple[int, int]:
    """Return how many of our functions one call runs, and in how many files."""
    files: list[str] = []

    def count(frame: FrameType, event: str, _: Any) -> None:
        ours = frame.f_code.co_filename.startswith(str(SOURCE))
        if event == "call" and ours and not frame.f_code.co_name.startswith("<"):
            files.append(frame.f_code.co_filename)

    with torch.no_grad():
        layer(x)
        sys.setprofile(count)
        try:
            layer(x)
        finally:
            sys.setprofile(None)
    return len(files), len(set(files))


def main() -> None:
    """Print the numbers."""
    for name, folder in {"src": SOURCE, "tests": ROOT / "tests"}.items():
        files, lines = size(folder)
        print(f"{name}: {files} files, {lines:,} lines")
    asked = checks()
    print(
        f"condition checks elsewhere: {len(asked)} in {len({a.split(':')[0] for a in asked})} files"
    )
    print("\n".join(f"  {line}" for line in asked))
    for name, layer in {
        "LPD": ts.LPD(64),
        "LPD tri3": ts.LPD(64, antialias="tri3"),
        "APS": ts.APS(64),
        "resnet50": ts.models.resnet50(ts.Sampling("lps", select_from="input")),
    }.items():
        shape = (8, 3, 64, 64) if name == "resnet50" else (8, 64, 56, 56)
        number, files = calls(layer.eval(), torch.randn(shape))
        print(f"{name} in eval: {number} Python calls in {files} files")


if __name__ == "__main__":
    main()
