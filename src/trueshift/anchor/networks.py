"""Networks of any kind, called on windows: modules, functions and sessions of onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

FEW = 8  # windows in one call, at least


class Function(nn.Module):
    """A callable that is no module."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class Session(nn.Module):
    """A session of onnxruntime with one input, on the CPU.

    Shape:
        Whatever the file takes. A file for a fixed batch is called as often as needed. One output
        is returned as a tensor, several as a dict by name.
    """

    def __init__(self, session: Any) -> None:
        super().__init__()
        inputs = session.get_inputs()
        if len(inputs) != 1:
            names = ", ".join(one.name for one in inputs)
            raise ValueError(
                f"anchor: the session must have one input, got {len(inputs)}: {names}. Pass a"
                " function of one tensor that calls it."
            )
        self.session, self.input_name = session, inputs[0].name
        self.input_shape = tuple(inputs[0].shape)
        self.output_names = [one.name for one in session.get_outputs()]

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        batch = self.input_shape[0] if isinstance(self.input_shape[0], int) else None
        outputs: dict[str, Tensor] = in_batches(self._run, x, batch)
        return outputs if len(outputs) > 1 else outputs[self.output_names[0]]

    def _run(self, x: Tensor) -> dict[str, Tensor]:
        pixels = x.detach().cpu().contiguous().numpy()
        try:
            values = self.session.run(None, {self.input_name: pixels})
        except Exception as error:  # onnxruntime's errors share no other class
            raise ValueError(
                f"onnx: the network takes {self.input_shape}, got {tuple(x.shape)}: {error}"
            ) from error
        return dict(zip(self.output_names, map(torch.from_numpy, values), strict=True))


def as_module(what: str, network: Any) -> nn.Module:
    """Return a module that calls ``network``."""
    if isinstance(network, nn.Module):
        return network
    if hasattr(network, "get_inputs") and hasattr(network, "run"):
        return Session(network)
    if callable(network):
        return Function(network)
    raise TypeError(
        f"anchor: {what} must be a module, a function of one tensor or a session of onnxruntime,"
        f" got {type(network).__name__}."
    )


def known_window(network: nn.Module) -> tuple[int, ...] | None:
    """Return the input size that a network states: timm, vision transformers, ONNX sessions."""
    if isinstance(network, Session):
        size: Any = network.input_shape[2:]
    else:
        stated = getattr(network, "pretrained_cfg", None) or {}
        config = getattr(network, "config", None)
        size = getattr(network, "image_size", getattr(config, "image_size", None))
        size = tuple(stated["input_size"][1:]) if "input_size" in stated else size
    sizes = (size, size) if isinstance(size, int) else size
    if isinstance(sizes, list | tuple) and sizes and all(isinstance(n, int) for n in sizes):
        return tuple(sizes)
    return None


def calls_of(windows: int, frames: int) -> int:
    """Return how many windows one call takes: about as many as there are frames, or a few.

    The maps of many windows at once outgrow the caches and the allocator. All calls are equally
    large, so that they round alike.
    """
    calls = max(1, -(-windows // max(frames, FEW)))
    return -(-windows // calls)


def in_batches(network: Callable[[Tensor], Any], x: Tensor, batch: int | None) -> Any:
    """Run ``network`` on ``(N, C, *spatial)``, ``batch`` at a time.

    Every call has the same shape, so that rounding does not depend on ``N``: the last one is filled
    up with copies of its first row.
    """
    if batch is None or len(x) in (0, batch):
        return _checked(network(x), len(x))
    results = []
    for part in x.split(batch):
        count = len(part)
        copies = part[:1].expand(batch - count, *part.shape[1:])
        output = _checked(network(torch.cat([part, copies]) if count < batch else part), batch)
        results.append([leaf[:count] for leaf in pytree.tree_leaves(output)])
    whole = [torch.cat(leaves) for leaves in zip(*results, strict=True)]
    return pytree.tree_unflatten(whole, pytree.tree_structure(output))


def _checked(output: Any, rows: int) -> Any:
    """Return ``output``, if it consists of tensors with one row for each window."""
    for leaf in pytree.tree_leaves(output):
        if not isinstance(leaf, Tensor):
            raise TypeError(
                f"anchor: the network must return tensors, got {type(leaf).__name__}. Pass a"
                " function that returns the tensors of its result."
            )
        if leaf.ndim == 0 or leaf.shape[0] != rows:
            raise ValueError(
                f"anchor: the network must return one row for each of {rows} windows, got shape"
                f" {tuple(leaf.shape)}."
            )
    return output
