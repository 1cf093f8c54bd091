"""Import torchvision where its compiled part was built for another torch.

The usual package of torchvision is built for CUDA. Next to a CPU-only torch its operators for
detection do not load, and importing it fails on their names, although nothing here needs them.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

_MISSING = "operator torchvision::"
_OPERATORS = ("nms", "qnms")
_libraries: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """Return torchvision; call this before anything that imports it (timm does)."""
    try:
        return importlib.import_module("torchvision")
    except ImportError as error:
        raise ImportError('this needs torchvision: pip install "trueshift[convert]".') from error
    except RuntimeError as error:
        if _MISSING not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in _OPERATORS:  # names only: calling one still fails, and says so
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)
    return importlib.import_module("torchvision")
