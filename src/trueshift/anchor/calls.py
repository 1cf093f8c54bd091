"""Networks of any kind, called on windows: modules, functions and sessions of onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree


class _Function(nn.Module):
    """A callable that is no module."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, windows: Tensor) -> Any:
        return self.function(windows)


class _Session(nn.Module):
    """A session of onnxruntime with one input."""

    def __init__(self, session: Any) -> None:
        super().__init__()
        inputs = session.get_inputs()
        if len(inputs) != 1:
            names = ", ".join(one.name for one in inputs)
            raise ValueError(
                f"anchor: the session must have one input, got {len(inputs)}: {names}. Pass a"
                " function of one tensor that calls it."
            )
        self.session, self.input = session, inputs[0]
        self.outputs = [one.name for one in session.get_outputs()]

    def forward(self, windows: Tensor) -> Tensor | dict[str, Tensor]:
        pixels = windows.detach().cpu().contiguous().numpy()
        values = self.session.run(None, {self.input.name: pixels})
        tensors = [torch.from_numpy(value) for value in values]
        if len(tensors) == 1:
            return tensors[0]
        return dict(zip(self.outputs, tensors, strict=True))


def as_module(what: str, network: Any) -> nn.Module:
    """Return a module that calls ``network``."""
    if isinstance(network, nn.Module):
        return network
    if hasattr(network, "get_inputs") and hasattr(network, "run"):
        return _Session(network)
    if callable(network):
        return _Function(network)
    raise TypeError(
        f"anchor: {what} must be a module, a function of one tensor or a session of onnxruntime,"
        f" got {type(network).__name__}."
    )


def known_window(network: nn.Module) -> tuple[int, ...] | None:
    """Return the input size that a network states: timm, vision transformers, ONNX sessions."""
    if isinstance(network, _Session):
        size = network.input.shape[2:]
    else:
        stated = getattr(network, "pretrained_cfg", None) or {}
        config = getattr(network, "config", None)
        size = getattr(network, "image_size", getattr(config, "image_size", None))
        size = tuple(stated["input_size"][1:]) if "input_size" in stated else size
    sizes = (size, size) if isinstance(size, int) else size
    if isinstance(sizes, list | tuple) and sizes and all(isinstance(n, int) for n in sizes):
        return tuple(sizes)
    return None


def known_batch(network: nn.Module) -> int | None:
    """Return the batch size that a session was exported for, if it is fixed."""
    first = network.input.shape[0] if isinstance(network, _Session) else None
    return first if isinstance(first, int) else None


def call(network: nn.Module, windows: Tensor, batch: int | None) -> Any:
    """Run ``network`` on windows ``(N, C, *window)``, ``batch`` of them at a time.

    Every call has the same shape, so that rounding does not depend on how many frames there are:
    the last one is filled up with copies of its first window.
    """
    if batch is None or len(windows) == 0:
        return _checked(network(windows), len(windows))
    results = []
    for part in windows.split(batch):
        count = len(part)
        copies = part[:1].expand(batch - count, *part.shape[1:])
        output = _checked(network(torch.cat([part, copies]) if count < batch else part), batch)
        results.append([leaf[:count] for leaf in pytree.tree_leaves(output)])
    whole = [torch.cat(leaves) for leaves in zip(*results, strict=True)]
    return pytree.tree_unflatten(whole, pytree.tree_structure(output))


def _checked(output: Any, num_windows: int) -> Any:
    """Return ``output``, if it consists of tensors with one row for each window."""
    for leaf in pytree.tree_leaves(output):
        if not isinstance(leaf, Tensor):
            raise TypeError(
                f"anchor: the network must return tensors, got {type(leaf).__name__}. Pass a"
                " function that returns the tensors of its result."
            )
        if leaf.ndim == 0 or leaf.shape[0] != num_windows:
            raise ValueError(
                f"anchor: the network must return one row for each of {num_windows} windows, got"
                f" shape {tuple(leaf.shape)}."
            )
    return output
