"""trueshift: networks that are truly invariant and equivariant to shifts."""

from trueshift import functional, models, shifts
from trueshift.layers.antialias import AdaptiveBlur, Blur
from trueshift.layers.pooling import GlobalAvgPool
from trueshift.layers.resample import APS, LPD, LPU, PolyphaseDown, PolyphaseUp
from trueshift.layers.selectors import ConvSelector, FixedSelector, NormSelector, set_tau
from trueshift.layers.spec import Sampling
from trueshift.models.saving import load, save
from trueshift.models.summary import summary

__version__ = "0.1.0.dev0"

__all__ = [
    "APS",
    "LPD",
    "LPU",
    "AdaptiveBlur",
    "Blur",
    "ConvSelector",
    "FixedSelector",
    "GlobalAvgPool",
    "NormSelector",
    "PolyphaseDown",
    "PolyphaseUp",
    "Sampling",
    "functional",
    "load",
    "models",
    "save",
    "set_tau",
    "shifts",
    "summary",
]
