import inspect
import subprocess
import sys
from importlib import resources

import pytest

import trueshift as ts

# Removing or renaming one of these is a decision, and a line in the changelog.
PUBLIC = [
    "APS",
    "LPD",
    "LPU",
    "AdaptiveBlur",
    "Blur",
    "ConvSelector",
    "ConversionError",
    "FixedSelector",
    "GlobalAvgPool",
    "NormSelector",
    "PolyphaseDown",
    "PolyphaseUp",
    "Sampling",
    "anchor",
    "audit",
    "convert",
    "data",
    "functional",
    "load",
    "metrics",
    "models",
    "optimize",
    "plain",
    "plan",
    "save",
    "set_tau",
    "shifts",
    "summary",
]
FUNCTIONAL = [
    "order_free_mean",
    "polyphase_down",
    "polyphase_merge",
    "polyphase_split",
    "polyphase_up",
]


def test_the_public_names_are_frozen():
    assert ts.__all__ == PUBLIC
    assert ts.functional.__all__ == FUNCTIONAL


@pytest.mark.parametrize("name", [*PUBLIC, *(f"functional.{name}" for name in FUNCTIONAL)])
def test_every_public_name_is_documented(name):
    thing = ts
    for part in name.split("."):
        thing = getattr(thing, part)
    assert len(inspect.getdoc(thing)) > 40


@pytest.mark.parametrize("name", ["APS", "LPD", "LPU"])
def test_the_names_of_the_paper_are_classes(name):
    assert isinstance(getattr(ts, name)(4), getattr(ts, name))
    assert isinstance(getattr(ts, name)(4), ts.PolyphaseUp if name == "LPU" else ts.PolyphaseDown)


def test_the_package_is_typed():
    assert (resources.files("trueshift") / "py.typed").is_file()


def test_importing_needs_torch_only():
    heavy = [
        "jinja2",
        "lightning",
        "matplotlib",
        "onnx",
        "onnxruntime",
        "safetensors",
        "sympy",
        "timm",
        "torchmetrics",
        "torchvision",
    ]
    code = f"import trueshift, sys; print([m for m in {heavy!r} if m in sys.modules])"
    before = f"import torch, sys; print([m for m in {heavy!r} if m in sys.modules])"
    loaded, loaded_by_torch = (
        subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, check=True
        ).stdout
        for source in (code, before)
    )
    assert loaded == loaded_by_torch
