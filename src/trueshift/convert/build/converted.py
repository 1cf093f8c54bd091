"""The converted network: the original's parts, new parts under ``sampling``, generated code."""

from __future__ import annotations

import copy
import dataclasses
import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, fx, nn

from trueshift.convert.errors import check_multiple
from trueshift.convert.plan import Plan
from trueshift.convert.trace.trees import map_leaves
from trueshift.exact import fixed_layout, follow_layout

PREFIX = "sampling"


class Converted(nn.Module):
    """A network that :func:`convert` made; it has the names and weights of the original.

    Its code is the traced one, for eval mode: outputs that the original returns while training only
    (auxiliary heads) are not computed, though their weights are kept.

    Args:
        root: A copy of the original with the new parts under ``sampling``.
        graph: The operations.
        plan: What was done; it is kept without the original.
    """

    def __init__(self, root: nn.Module, graph: fx.Graph, plan: Plan) -> None:
        super().__init__()
        self._modules.update(root._modules)
        self._parameters.update(root._parameters)
        self._buffers.update(root._buffers)
        self._non_persistent_buffers_set.update(root._non_persistent_buffers_set)
        self.plan = dataclasses.replace(plan, traced=None)
        code = graph.python_code("self")
        self.code = code.src
        self._names = code.globals
        self._compile()
        self.train(root.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(self.plan.inputs, args, strict=False)) | kwargs
        self._check_sizes(given)
        if self.training:
            return self._run(self, *args, **kwargs)
        # The layout determines how convolutions round, and shifting may change that of an input.
        fixed = {name: self._in_fixed_layout(name, x) for name, x in given.items()}
        named = [fixed[name] for name, _ in zip(self.plan.inputs, args, strict=False)]
        by_name = {name: fixed[name] for name in kwargs}
        outputs = self._run(self, *named, *args[len(named) :], **by_name)
        first = next((x for name, x in given.items() if self._is_map(name, x)), None)
        return outputs if first is None else _following(first, outputs)

    def _in_fixed_layout(self, name: str, x: Any) -> Any:
        return fixed_layout(self, x) if self._is_map(name, x) else x

    def _is_map(self, name: str, x: Any) -> bool:
        return self.plan.inputs.get(name) is not None and isinstance(x, Tensor)

    @property
    def required_multiple(self) -> int | tuple[int, ...]:
        """Of what number the sizes of inputs must be multiples (one per axis if they differ)."""
        return self.plan.required_multiple

    def _check_sizes(self, arguments: dict[str, Any]) -> None:
        for name, x in arguments.items():
            if not self._is_map(name, x):
                continue
            sizes = tuple(x.shape[2:])
            if self.plan.fixed_sizes:
                wanted = self.plan.sizes[name]
                if sizes != wanted:
                    raise ValueError(
                        f"{self.plan.network}: converted for inputs of size {wanted} only, because"
                        f" the model computes with sizes, got {name} of shape {tuple(x.shape)}."
                        f" Resize to {wanted}, or convert again with an example of this size."
                    )
                continue
            check_multiple(self.plan.network, name, x, self.plan.multiples)

    def _compile(self) -> None:
        namespace = dict(self._names)
        exec(compile(self.code, f"<converted {self.plan.network}>", "exec"), namespace)
        self._run = namespace["forward"]

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_run"]
        names = state["_names"].items()
        state["_names"] = {
            key: _Import(value.__name__) if isinstance(value, ModuleType) else value
            for key, value in names
        }
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        names = state["_names"].items()
        state["_names"] = {
            key: importlib.import_module(value.name) if isinstance(value, _Import) else value
            for key, value in names
        }
        super().__setstate__(state)
        self._compile()

    def extra_repr(self) -> str:
        """Show the network and the multiple."""
        return f"{self.plan.network}, required_multiple={self.required_multiple}"


def _following(x: Tensor, outputs: Any) -> Any:
    """Return outputs channels-last if an input is; containers of unusual classes keep theirs."""
    if isinstance(outputs, dict) and type(outputs) is not dict:
        same = copy.copy(outputs)
        for key, output in outputs.items():
            same[key] = _following(x, output)
        return same
    if isinstance(outputs, Tensor):
        return follow_layout(x, outputs)
    usual = isinstance(outputs, dict | list | tuple)
    return map_leaves(lambda part: _following(x, part), outputs) if usual else outputs


class _Import:
    """Stands for an imported module in a pickle."""

    def __init__(self, name: str) -> None:
        self.name = name


def own_constants(root: nn.Module, graph: fx.Graph) -> None:
    """Turn tensors that are plain attributes into buffers, so that they move with the network."""
    for node in graph.nodes:
        if node.op != "get_attr":
            continue
        path, _, name = str(node.target).rpartition(".")
        owner = root.get_submodule(path)
        if isinstance(owner.__dict__.get(name), torch.Tensor):
            tensor = owner.__dict__.pop(name)
            owner.register_buffer(name, tensor, persistent=False)
