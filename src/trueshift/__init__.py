"""trueshift: networks that are truly invariant and equivariant to shifts."""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from trueshift import _cpu, functional, models, shifts  # noqa: F401 (registers the kernels)
from trueshift._dispatch import plain
from trueshift.anchor import anchor
from trueshift.audit import audit
from trueshift.convert import ConversionError, convert, plan
from trueshift.layers.filters import AdaptiveBlur, Blur
from trueshift.layers.pooling import GlobalAvgPool
from trueshift.layers.resample import APS, LPD, LPU, PolyphaseDown, PolyphaseUp
from trueshift.layers.selectors import ConvSelector, FixedSelector, NormSelector, set_tau
from trueshift.layers.spec import Sampling
from trueshift.models.saving import load, save
from trueshift.models.summary import summary
from trueshift.optimize import optimize

__version__ = "0.2.0"

if TYPE_CHECKING:
    from trueshift import data, metrics

__all__ = [
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


def __getattr__(name: str) -> ModuleType:
    """Import what needs more than torch when it is first asked for."""
    if name in ("data", "metrics"):
        return importlib.import_module(f"trueshift.{name}")
    raise AttributeError(f"module 'trueshift' has no attribute {name!r}")
