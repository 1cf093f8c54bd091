"""What the selecting layers of a network see and choose, for the figures of components."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trueshift.layers.resample import PolyphaseDown
from trueshift.layers.selectors import FixedSelector


class Seen(NamedTuple):
    """The map ``(B, C, H, W)`` whose components were scored, the phase ``(B,)``, the stride."""

    x: Tensor
    phase: Tensor
    stride: int | tuple[int, ...]


def selecting_layers(model: nn.Module) -> dict[str, PolyphaseDown]:
    """Return the layers of a network that choose a component, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, PolyphaseDown)
        and not isinstance(module.selector, FixedSelector | None)
    }


def watch_layer(model: nn.Module, name: str | None, images: Tensor) -> tuple[str, Seen]:
    """Run a network and note what one of its selecting layers saw and chose.

    Args:
        model: The network, in eval mode.
        name: Name of the layer; ``None`` takes the last one.
        images: Normalised images ``(B, C, H, W)``.

    Returns:
        The layer's name and what was noted.
    """
    layers = selecting_layers(model)
    if name is None and layers:
        name = list(layers)[-1]
    if name is None or name not in layers:
        known = ", ".join(layers) or "none, it is not a network of method lps or aps"
        raise ValueError(f"no layer {name!r} that selects a component. There are: {known}.")
    found: list[Seen] = []

    def note(module: PolyphaseDown, args: Any, kwargs: Any, output: Any) -> None:
        x = module.fit(args[0])
        if module.antialias is not None and module.select_on == "filtered":
            x = module.antialias(x)
        phase = output[1] if isinstance(output, tuple) else kwargs["phase"]
        found.append(Seen(x.detach(), phase, module.stride))

    handle = layers[name].register_forward_hook(note, with_kwargs=True)
    try:
        with torch.no_grad():
            model(images)
    finally:
        handle.remove()
    if not found:
        raise ValueError(f"layer {name!r} was not run by itself on these images. Name another one.")
    return name, found[0]
