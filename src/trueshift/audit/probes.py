"""Observe a network while it runs: the maps of its modules, the choices of its selectors.

Probes change nothing that they observe, and leave the network as it was.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trueshift._validate import Stride, stride_per_axis
from trueshift.convert.parts.partition import Partition
from trueshift.layers.selectors import FixedSelector

Layers = Mapping[str, nn.Module]


class Seen(NamedTuple):
    """One choice of a selector.

    Attributes:
        x: The map ``(B, C, *spatial)`` whose components were scored.
        stride: Its sampling factor.
        phase: The choice: int64 ``(B,)``, or ``(B, P)`` if soft.
        sampled: The map that is then sampled, where that is another one; else ``x``.
    """

    x: Tensor
    stride: Stride
    phase: Tensor
    sampled: Tensor


def selecting_layers(model: nn.Module) -> dict[str, Any]:
    """Return the layers of a network whose selector chooses by image, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(getattr(module, "selector", None), "choose")
        and not isinstance(module.selector, FixedSelector)
    }


def learned_layers(model: nn.Module) -> dict[str, Any]:
    """Return the layers of a network whose selector is learned, by name."""
    layers = selecting_layers(model)
    return {name: layer for name, layer in layers.items() if layer.selector.learns}


def logits_of(selector: Any, x: Tensor, stride: Stride) -> Tensor:
    """Return the logits ``(B, P)`` that a selector compares at test time, without gradients."""
    with torch.no_grad():
        strides = stride_per_axis("audit", stride, x.ndim - 2)
        logits: Tensor = selector.logits(selector.interior(x, strides), strides)
        return logits.double().cpu()


@contextlib.contextmanager
def observe_choices(layers: Layers, callback: Callable[[str, Seen], None]) -> Iterator[None]:
    """Call ``callback(name, seen)`` whenever the selector of one of these layers has chosen.

    A batch may come in several parts, in order.
    """
    with contextlib.ExitStack() as stack:
        for name, layer in layers.items():
            stack.callback(_on_choice(layer.selector, functools.partial(callback, name)))
        yield


@contextlib.contextmanager
def observe_maps(
    model: nn.Module, callback: Callable[[str, nn.Module, Any, Any], None]
) -> Iterator[None]:
    """Call ``callback(name, module, inputs, output)`` after every call of a module.

    Modules are leaves, and layers with a selector; not their parts, nor parts of scripted ones, nor
    those whose output begins where windows do: that is no map of the image.
    The callback returns nothing: a hook's result would replace the output.
    """
    with contextlib.ExitStack() as stack:
        for name, module in _units(model):
            hook = module.register_forward_hook(functools.partial(callback, name))
            stack.callback(hook.remove)
        yield


def watch_layer(model: nn.Module, name: str | None, images: Tensor) -> tuple[str, Seen]:
    """Run a network and return what one of its selecting layers saw and chose.

    Args:
        model: The network, in eval mode.
        name: Name of the layer; ``None`` takes the last one.
        images: Normalised images ``(B, C, H, W)``.

    Returns:
        The layer's name and its choice.
    """
    layers = selecting_layers(model)
    name = list(layers)[-1] if name is None and layers else name
    if name is None or name not in layers:
        known = ", ".join(layers) or "none, it is not a network of method lps or aps"
        raise ValueError(f"no layer {name!r} that selects a component. There are: {known}.")
    parts: list[Seen] = []

    def keep(_: str, seen: Seen) -> None:  # copies: what follows may overwrite maps
        parts.append(seen._replace(x=seen.x.clone(), sampled=seen.sampled.clone()))

    with observe_choices({name: layers[name]}, keep), torch.no_grad():
        model(images)
    if not parts:
        raise ValueError(f"layer {name!r} chose nothing for these images. Name another one.")
    x, _, phase, sampled = zip(*parts, strict=True)
    return name, Seen(torch.cat(x), parts[0].stride, torch.cat(phase), torch.cat(sampled))


def _on_choice(selector: Any, report: Callable[[Seen], None]) -> Callable[[], None]:
    """Report every choice of a selector; return what ends that."""

    def hook(_: nn.Module, args: tuple[Any, ...], phase: Tensor) -> None:
        _, x, tie_breaker, stride = args
        report(Seen(x, stride, phase, tie_breaker if isinstance(tie_breaker, Tensor) else x))

    return selector.chosen.register_forward_hook(hook).remove


def _units(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    if isinstance(model, torch.jit.ScriptModule):  # compiled: its calls cannot be observed
        return
    for name, child in model.named_children():
        full = f"{prefix}{name}"
        leaf = hasattr(child, "selector") or next(child.children(), None) is None
        if leaf and not isinstance(child, torch.jit.ScriptModule | Partition):
            yield full, child
        else:
            yield from _units(child, f"{full}.")
