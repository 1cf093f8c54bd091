"""Networks named on the command line."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from trueshift._validate import check_choice

NETWORK_HELP = (
    "torchvision:NAME, timm:NAME, module.path:factory (a function without arguments that returns"
    " the network), or a file: .safetensors of trueshift.save, .ckpt of a run, .onnx"
)


class Loaded(NamedTuple):
    """A network and what is known of its inputs; None where nothing is."""

    model: nn.Module
    name: str
    channels: int | None = None
    size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    class_names: tuple[str, ...] | None = None


def load_network(name: str, weights: Path | None = None) -> Loaded:
    """Build or load a network, in eval mode on the CPU.

    Args:
        name: What :data:`NETWORK_HELP` says.
        weights: State dict to load into it.

    Returns:
        The network.
    """
    source, _, rest = name.partition(":")
    if Path(name).suffix in _FILES:
        loaded = _from_file(Path(name))
    elif source == "torchvision" and rest:
        loaded = _torchvision(rest, name)
    elif source == "timm" and rest:
        loaded = _timm(rest, name)
    elif source and rest:
        loaded = _factory(source, rest, name)
    else:
        raise ValueError(f"no network {name!r}. Pass {NETWORK_HELP}.")
    if weights is not None:
        _load_weights(loaded.model, weights)
    elif source in ("torchvision", "timm"):
        print(
            f"{name}: no --weights given, so its weights are random. The numbers say nothing"
            " about a trained network.",
            file=sys.stderr,
        )
        loaded = loaded._replace(class_names=None)
    return loaded._replace(model=loaded.model.eval())


def _from_file(path: Path) -> Loaded:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}.")
    return _FILES[path.suffix](path)


def _safetensors(path: Path) -> Loaded:
    from trueshift import models

    model = models.load(path)
    return Loaded(model, path.name, getattr(model, "in_channels", None))


def _checkpoint(path: Path) -> Loaded:
    from trueshift.training import Classifier, Emulator, Segmenter

    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        given = saved["hyper_parameters"]
    except Exception as error:  # anything may stand in a file of another kind
        raise ValueError(f"{path} is not a checkpoint of `trueshift fit` ({error}).") from error
    kinds: dict[str, Any] = {"backbone": Segmenter, "unroll": Emulator}  # by an argument of theirs
    kind = next((kind for name, kind in kinds.items() if name in given), Classifier)
    module = kind.load_from_checkpoint(path, map_location="cpu", weights_only=True)
    return Loaded(module.network, path.name, getattr(module.network, "in_channels", None))


def _onnx(path: Path) -> Loaded:
    from trueshift.audit.onnx import load_onnx

    model = load_onnx(path)
    fixed = [n if isinstance(n, int) else None for n in model.input_shape]
    size = fixed[2] if len(fixed) == 4 else None
    return Loaded(model, path.name, fixed[1] if len(fixed) == 4 else None, size)


_FILES = {".safetensors": _safetensors, ".ckpt": _checkpoint, ".onnx": _onnx}


def _torchvision(builder: str, name: str) -> Loaded:
    from trueshift._torchvision import import_torchvision

    import_torchvision()
    from torchvision import models

    check_choice("audit", "torchvision network", builder, models.list_models())
    options: dict[str, Any] = {"weights": None}
    if "weights_backbone" in inspect.signature(models.get_model_builder(builder)).parameters:
        options["weights_backbone"] = None  # the default would download
    named = [weights.meta.get("categories") for weights in models.get_model_weights(builder)]
    names = next((tuple(categories) for categories in named if categories), None)
    return Loaded(models.get_model(builder, **options), name, 3, 224, class_names=names)


def _timm(builder: str, name: str) -> Loaded:
    from trueshift._torchvision import import_torchvision

    import_torchvision()
    try:
        import timm
    except ImportError as error:
        raise ImportError('timm networks need timm: pip install "trueshift[convert]".') from error
    check_choice("audit", "timm network", builder, timm.list_models())
    model = timm.create_model(builder, pretrained=False)
    config: Any = model.pretrained_cfg
    channels, size, _ = config.get("input_size", (3, 224, 224))
    names = None
    if config.get("num_classes") == 1000:  # the labels of ImageNet
        from timm.data.imagenet_info import ImageNetInfo

        labels = ImageNetInfo()
        names = tuple(labels.index_to_description(k, detailed=False) for k in range(1000))
    return Loaded(model, name, channels, size, config.get("mean"), config.get("std"), names)


def _factory(path: str, attribute: str, name: str) -> Loaded:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise ImportError(f"{name}: cannot import {path} ({error}).") from error
    if not hasattr(module, attribute):
        raise ValueError(f"{name}: {path} has no {attribute}.")
    given = getattr(module, attribute)
    needed = _required(given)
    if needed:
        raise ValueError(
            f"{name}: {attribute} needs arguments ({', '.join(needed)}). Name a function without"
            " any."
        )
    model = given() if callable(given) and not isinstance(given, nn.Module) else given
    if not isinstance(model, nn.Module):
        raise ValueError(f"{name} must return a torch.nn.Module, got {type(model).__name__}.")
    return Loaded(model, name, _channels(model))


def _required(factory: Any) -> list[str]:
    """Return the names of the arguments that a function cannot do without."""
    if isinstance(factory, nn.Module) or not callable(factory):
        return []
    try:
        known = inspect.signature(factory).parameters.values()
    except ValueError:  # some built-in ones do not say
        return []
    stars = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [p.name for p in known if p.default is p.empty and p.kind not in stars]


def _channels(model: nn.Module) -> int | None:
    """Return what the network says, or what its first convolution takes if an image may have it."""
    said = getattr(model, "in_channels", None)
    first = next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    return said or (first if first in (1, 3) else None)


def _load_weights(model: nn.Module, path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"--weights: no file {path}.")
    state: Any
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # anything may stand in a file of another kind
        raise ValueError(f"--weights: {path} cannot be read: {error}") from error
    for key in ("state_dict", "model"):  # where training scripts put it
        state = state[key] if isinstance(state.get(key), dict) else state
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"--weights: {path} does not fit the network. {error}") from error
