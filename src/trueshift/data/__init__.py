"""Data modules for Lightning, and the built-in pictures; imported when first asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trueshift.data.cifar10 import CIFAR10
    from trueshift.data.drawing import SHAPE_NAMES, make_shapes
    from trueshift.data.flows import Flows
    from trueshift.data.folders import ImageFolder, ImageNet
    from trueshift.data.shapes import Shapes
    from trueshift.data.voc import VOCSegmentation

__all__ = [
    "CIFAR10",
    "SHAPE_NAMES",
    "Flows",
    "ImageFolder",
    "ImageNet",
    "Shapes",
    "VOCSegmentation",
    "make_shapes",
]

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_HOMES = {
    "CIFAR10": "cifar10",
    "SHAPE_NAMES": "drawing",
    "Flows": "flows",
    "ImageFolder": "folders",
    "ImageNet": "folders",
    "Shapes": "shapes",
    "VOCSegmentation": "voc",
    "make_shapes": "drawing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trueshift.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"trueshift.data.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
