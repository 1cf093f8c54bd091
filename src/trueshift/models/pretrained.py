"""Weights from elsewhere: torchvision's, and the checkpoints of the paper's authors."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from trueshift._torchvision import import_torchvision
from trueshift.layers.filters import Blur
from trueshift.layers.selectors import ConvSelector
from trueshift.models.saving import Origin

Weights = str | os.PathLike[str] | Mapping[str, Tensor] | None
Model = TypeVar("Model", bound=nn.Module)

# What the sampling layers add to a network that has torchvision's names.
_OURS = re.compile(r"(^|\.)(down|follow|conv1_down|maxpool_down)\.")


def load_weights(model: Model, weights: Weights, name: str) -> Model:
    """Load weights with torchvision's names into a ResNet; selectors and filters stay as they are.

    Args:
        model: The network, changed in place.
        weights: ``"torchvision"``, a state dict, the path of one, or ``None`` to do nothing.
        name: torchvision's name of the network.

    Returns:
        The same network.
    """
    if weights is None:
        return model
    state = _download(name) if weights == "torchvision" else read_state(weights)
    own = model.state_dict()
    kept = {key: value for key, value in own.items() if _OURS.search(key)}
    if "fc.weight" in state and state["fc.weight"].shape != own["fc.weight"].shape:
        kept |= {key: own[key] for key in ("fc.weight", "fc.bias")}
    _load(model, {**state, **kept}, f"{name}: the weights")
    return model


def read_state(source: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Tensor]:
    """Return a state dict, read from a file if need be; files are never unpickled."""
    if not isinstance(source, Mapping | str | os.PathLike):
        raise TypeError(f"weights must be a state dict or a path, got {type(source).__name__}.")
    found = source if isinstance(source, Mapping) else _read(Path(source))
    for key in ("state_dict", "model_state", "model"):
        if isinstance(found.get(key), Mapping):
            found = found[key]
    return {key: value for key, value in found.items() if isinstance(value, Tensor)}


def _read(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"no weights at {path}. Pass a file that torch.save wrote.")
    found = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(found, Mapping):
        raise TypeError(f"{path} holds a {type(found).__name__}, not a state dict.")
    return found


def load_authors_checkpoint(
    model: Model,
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    selector_padding: str = "circular",
) -> Model:
    """Load a checkpoint of the code that the paper's authors published.

    One habit of that code is followed, because its numbers depend on it: selectors pad circularly
    even in networks that pad with zeros.

    Args:
        model: A ResNet or DeepLabV3+ of the same kind, changed in place.
        source: State dict, or the path of a checkpoint.
        selector_padding: Border of the selectors' convolutions in the authors' run.

    Returns:
        The same network.

    Examples:
        >>> import trueshift as ts
        >>> model = ts.models.resnet18(ts.Sampling("stride"), num_classes=10, stem="cifar")
        >>> ts.models.load_authors_checkpoint(model, {})
        Traceback (most recent call last):
        ...
        ValueError: load_authors_checkpoint: the checkpoint does not fit ResNet: ...
    """
    state = _our_names(read_state(source))
    for name, module in model.named_modules():
        if isinstance(module, Blur):
            _check_filter(name, state.pop(f"{name}.filt", None), module.size)
    own = model.state_dict()
    # The authors keep a temperature in layers that only follow, too.
    for key in [key for key in state if key.endswith(".selector.tau") and key not in own]:
        del state[key]
    _load(model, state, "load_authors_checkpoint: the checkpoint")
    for module in model.modules():
        if isinstance(module, ConvSelector):
            module.padding_mode = selector_padding
    _note(model, selector_padding)
    return model


_RENAMES = [
    (r"^(core|model|module)\.", ""),
    (r"(^|\.)maxpool\.0\.", r"\1conv1_down."),
    (r"(^|\.)maxpool\.3\.", r"\1maxpool_down."),
    (r"\.conv[23]\.0\.", ".down."),
    (r"\.(conv[23])\.1\.", r".\1."),
    (r"\.component_selection\.gumbel_tau$", ".selector.tau"),
    (r"\.component_selection\.get_logits\.", ".selector."),
    (r"\._antialias_layer\.", ".antialias."),
    (r"(^|\.)unpool\.", r"\1unpool.ups."),
]
_SHORTCUT = {"0": "follow", "1": "downsample.0", "2": "downsample.1"}


def _our_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    named = {}
    for key, value in state.items():
        block, _, rest = key.partition(".downsample.")
        if f"{block}.downsample.2.weight" in state and rest:  # a shortcut that samples first
            part, _, leaf = rest.partition(".")
            key = f"{block}.{_SHORTCUT[part]}.{leaf}"
        for pattern, new in _RENAMES:
            key = re.sub(pattern, new, key)
        named[key] = value
    return named


def _note(model: nn.Module, selector_padding: str) -> None:
    """Keep the model's own description true, so that it can be saved."""
    origin = getattr(model, "origin", None)
    if isinstance(origin, Origin):
        spec = origin.arguments["spec"].replace(selector_padding=selector_padding)
        arguments = origin.arguments | {"spec": spec}
        model.origin = Origin(origin.builder, arguments)  # type: ignore[assignment]


def _check_filter(name: str, theirs: Tensor | None, size: int) -> None:
    if theirs is None or theirs.shape[-1] != size:
        found = "none" if theirs is None else theirs.shape[-1]
        raise ValueError(
            f"load_authors_checkpoint: {name} has {size} taps, the checkpoint {found}."
            " Build the model with the filter of the checkpoint."
        )


def _load(model: nn.Module, state: Mapping[str, Tensor], what: str) -> None:
    own = model.state_dict()
    problems = [f"lacks {key}" for key in own if key not in state]
    problems += [f"has {key}, which the network lacks" for key in state if key not in own]
    problems += [
        f"has {key} of shape {tuple(state[key].shape)} instead of {tuple(value.shape)}"
        for key, value in own.items()
        if key in state and state[key].shape != value.shape
    ]
    if problems:
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise ValueError(
            f"{what} does not fit {type(model).__name__}: it {'; it '.join(problems[:5])}{more}."
            " Build the network with the sampling, stem and number of classes of the weights."
        )
    model.load_state_dict(dict(state))


def _download(name: str) -> dict[str, Tensor]:
    weights = import_torchvision().models.get_model_weights(name)
    return dict(weights["IMAGENET1K_V1"].get_state_dict(progress=True, check_hash=True))
