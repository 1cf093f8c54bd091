"""A file that is a whole model: weights as safetensors, and in its header how to build it again."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from torch import nn

from trueshift._files import written_whole
from trueshift.layers.spec import Sampling

FORMAT, FORMAT_VERSION = "trueshift", 1

P = ParamSpec("P")
Model = TypeVar("Model", bound=nn.Module)


@dataclasses.dataclass(frozen=True)
class Origin:
    """How a model was built: the name of its builder in ``trueshift.models``, and the arguments."""

    builder: str
    arguments: dict[str, Any]


def saveable(builder: Callable[P, Model]) -> Callable[P, Model]:
    """Note on the model how it was built, so that :func:`save` can write it down."""
    signature = inspect.signature(builder)

    @functools.wraps(builder)
    def build(*args: P.args, **kwargs: P.kwargs) -> Model:
        arguments = dict(signature.bind(*args, **kwargs).arguments)
        arguments |= arguments.pop("options", {})
        arguments.pop("weights", None)  # the file has its own
        _check_spec(builder.__name__, arguments.get("spec"))
        model = builder(*args, **kwargs)
        model.origin = Origin(builder.__name__, arguments)  # type: ignore[assignment]
        return model

    return build


def save(model: nn.Module, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a model of :mod:`trueshift.models` to one file.

    Args:
        model: A model made by a function of :mod:`trueshift.models`.
        path: File to write, by custom with the suffix ``.safetensors``.
        overwrite: Replace a file that exists.
    """
    write = _safetensors("save", "safetensors.torch").save_file
    origin = getattr(model, "origin", None)
    if not isinstance(origin, Origin):
        raise TypeError(
            f"save: {type(model).__name__} was not built by a function of trueshift.models, so its"
            " file could not be loaded again. Use torch.save(model.state_dict(), path)."
        )
    path = Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"save: {path} exists. Pass overwrite=True to replace it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"save: no folder {path.parent}. Make it first.")
    from trueshift import __version__

    header = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "trueshift": __version__,
        "builder": origin.builder,
        "arguments": json.dumps({k: _to_json(v) for k, v in origin.arguments.items()}),
    }
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    with written_whole(path) as partial:
        write(state, partial, header)


def load(path: str | os.PathLike[str]) -> nn.Module:
    """Read a model that :func:`save` wrote, in eval mode.

    Args:
        path: The file.

    Returns:
        The model on the CPU.
    """
    safe_open = _safetensors("load", "safetensors").safe_open
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"load: no file {path}.")
    try:
        with safe_open(path, framework="pt") as opened:
            header = opened.metadata() or {}
            state = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except Exception as error:  # safetensors has no public error class to name
        raise ValueError(f"load: {path} is damaged, or not a safetensors file: {error}.") from error
    _check_header(path, header)
    model = _rebuild(path, header)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(
            f"load: the weights in {path} do not fit its {header['builder']}. Was it written by"
            f" another version of trueshift ({header.get('trueshift')})? {error}"
        ) from error
    return model.eval()


def resample(model: Model, sampling: Sampling | str) -> Model:
    """Rebuild a network of :mod:`trueshift.models` with another sampling and the same weights.

    A network that was trained with a plain stride, filtered or not, becomes exactly invariant by
    ``resample(model, "aps")``. Filters without weights may change too; learned selectors that
    ``model`` does not have start untrained, which is exact as well.

    Args:
        model: Left as it is.
        sampling: A :class:`Sampling`, or a method that replaces that of the model.

    Returns:
        The new network, in the mode of the old one.

    Examples:
        >>> import torch, trueshift as ts
        >>> model = ts.models.resnet9(ts.Sampling("stride", "tri3")).eval()
        >>> exact, x = ts.models.resample(model, "aps"), torch.randn(1, 3, 32, 32)
        >>> torch.equal(exact(x), exact(x.roll((3, 5), (2, 3))))
        True
    """
    from trueshift import models

    origin = getattr(model, "origin", None)
    if not isinstance(origin, Origin):
        raise TypeError(
            f"resample: {type(model).__name__} was not built by a function of trueshift.models."
            " Use trueshift.convert."
        )
    old: Sampling = origin.arguments["spec"]
    spec = _with_method(old, sampling) if isinstance(sampling, str) else sampling
    new: Model = getattr(models, origin.builder)(**{**origin.arguments, "spec": spec})
    before, after = (dict(network.named_parameters()) for network in (model, new))
    changed = [n for n in sorted(before.keys() ^ after.keys()) if ".selector." not in n]
    if changed:
        raise ValueError(
            f"resample: {spec} and {old} do not have the same weights: {', '.join(changed)} would"
            " be new or lost. Keep the filter of the model if it has weights."
        )
    state = new.state_dict()
    new.load_state_dict(state | {n: v for n, v in model.state_dict().items() if n in state})
    return new.to(next(model.parameters())).train(model.training)


def _with_method(spec: Sampling, method: str) -> Sampling:
    if spec.train_rule == "random" and method != spec.method:  # others have no such rule
        return spec.replace(method=method, train_rule="gumbel")
    return spec.replace(method=method)


def _check_header(path: Path, header: dict[str, str]) -> None:
    if header.get("format") != FORMAT:
        raise ValueError(
            f"load: {path} is a safetensors file, but not one that trueshift.save wrote. Build the"
            " model yourself and load the tensors with safetensors.torch.load_file."
        )
    if int(header["format_version"]) > FORMAT_VERSION:
        raise ValueError(
            f"load: {path} has format version {header['format_version']}, this trueshift reads up"
            f" to {FORMAT_VERSION}. Update it: pip install --upgrade trueshift."
        )


def _rebuild(path: Path, header: dict[str, str]) -> nn.Module:
    from trueshift import models

    if header["builder"] not in models.BUILDERS:
        raise ValueError(f"load: {path} names an unknown builder {header['builder']!r}.")
    try:
        arguments = json.loads(header["arguments"])
        arguments["spec"] = Sampling(**arguments["spec"])
        model: nn.Module = getattr(models, header["builder"])(**arguments)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"load: {path} cannot be built by this version of trueshift (the file is from"
            f" {header.get('trueshift')}): {error}"
        ) from error
    return model


def _to_json(value: Any) -> Any:
    return dataclasses.asdict(value) if isinstance(value, Sampling) else value


def _check_spec(who: str, spec: object) -> None:
    if not isinstance(spec, Sampling):
        raise TypeError(
            f"{who}: spec must be a Sampling, got {spec!r}. For example Sampling('lps', 'tri3')."
        )


def _safetensors(who: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{who} needs safetensors: pip install safetensors.") from error
