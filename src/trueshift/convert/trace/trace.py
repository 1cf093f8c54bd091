"""A model to a graph: symbolic tracing in which every symbol knows its value on the example.

Sizes stay symbolic, so the graph serves every batch and image size, but questions about them (``if
h % 32``) are answered by the example.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import operator
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from trueshift.convert.errors import ConversionError, Refusal
from trueshift.convert.trace.symbols import DependsOnValues, TracedProxy, is_symbol, values_of
from trueshift.convert.trace.trees import leaves

_CREATORS = ("arange", "empty", "full", "linspace", "ones", "rand", "randn", "tensor", "zeros")
_READS_VALUES = ("item", "tolist", "nonzero")
_BY_CLASS = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


class Tracer(fx.Tracer):
    """Trace a module on an example.

    Args:
        arguments: Value of every argument of ``forward`` that the example gives.
        leaf_classes: Module classes that are not traced into.
    """

    def __init__(self, arguments: dict[str, Any], leaf_classes: tuple[type, ...] = ()) -> None:
        super().__init__()
        self.proxy_buffer_attributes = True
        self.arguments, self.leaf_classes = arguments, leaf_classes
        self.constants: dict[str, Tensor] = {}
        self.fixed_sizes = False
        self.place = ""
        self._evaluating = False

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, (*self.leaf_classes, *_BY_CLASS)):
            return True
        if type(m).__module__.startswith("torch.nn.") and not isinstance(m, nn.Sequential):
            return True
        return not any(True for _ in m.children()) and _is_own(m) and _depends_on_mode(m)

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if self._evaluating:
            return forward(*args, **kwargs)
        outer, self.place = self.place, self.path_of_module(m)
        result = super().call_module(m, forward, args, kwargs)
        self.place = outer
        return result

    def create_arg(self, a: Any) -> Any:
        if is_symbol(a):
            return a.node
        if type(a) is torch.Size:
            return tuple(a)
        if isinstance(a, torch.dtype | torch.device | torch.memory_format | torch.layout):
            return a
        if isinstance(a, Tensor) and not isinstance(a, nn.Parameter) and not self._owns(a):
            names = (f"_tensor_constant{i}" for i in itertools.count())
            taken = {*dir(self.root), *self.constants}
            name = next(name for name in names if name not in taken)
            self.constants[name], self.tensor_attrs[a] = a, name  # the model stays as it is
        return super().create_arg(a)

    def _owns(self, a: Tensor) -> bool:
        return a in self.tensor_attrs or any(a is buffer for buffer in self.root.buffers())

    def create_proxy(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *_: Any,
        **__: Any,
    ) -> TracedProxy:
        node = self.create_node(kind, target, self.create_arg(args), self.create_arg(kwargs))
        node.meta["place"] = self.place
        node.meta["line"] = _line_of_model()
        value = self._evaluate(kind, target, values_of(args), values_of(kwargs))
        read = kind == "call_method" and target in _READS_VALUES
        inputs = node.all_input_nodes
        if not isinstance(value, Tensor) and (read or any(n.meta.get("read") for n in inputs)):
            node.meta["read"] = True
        node.meta["holds_tensors"] = any(isinstance(leaf, Tensor) for leaf in leaves(value))
        if isinstance(value, Tensor):
            node.meta["shape"] = tuple(value.shape)
        return TracedProxy(node, self, value)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if self._evaluating:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def _evaluate(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        """Run one operation on values, unseen by the tracing of modules and attributes."""
        self._evaluating = True
        try:
            return self._run(kind, target, args, kwargs)
        finally:
            self._evaluating = False

    def _run(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        if kind == "placeholder":
            return self.arguments[target]
        if kind == "get_attr":
            return attribute_of(self.root, self.constants, target)
        if kind == "call_module":
            return self.root.get_submodule(target).forward(*args, **kwargs)
        if kind == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)

    def _proxy_placeholder(self, name: str, _: Any, sig: inspect.Signature, __: Any) -> Any:
        if name in self.arguments:
            return self.create_proxy("placeholder", name, (), {})
        if name.startswith("*"):
            return () if not name.startswith("**") else {}
        return sig.parameters[name].default


@dataclass(frozen=True)
class Traced:
    """A network as a graph.

    Args:
        root: The module whose parts the graph names.
        graph: The operations.
        arguments: The example, by argument of ``forward``.
        constants: Tensors that the code creates from numbers, by name.
        fixed_sizes: Whether the model turned a size into a Python number, so that the graph holds
            for the example's size only.
    """

    root: nn.Module
    graph: fx.Graph
    arguments: dict[str, Any]
    constants: dict[str, Tensor]
    fixed_sizes: bool

    def attribute(self, name: str) -> Any:
        """Return a parameter, buffer or constant."""
        return attribute_of(self.root, self.constants, name)

    def module(self, node: fx.Node) -> nn.Module | None:
        """Return the module that a node calls, if it does."""
        return self.root.get_submodule(str(node.target)) if node.op == "call_module" else None

    @property
    def output(self) -> fx.Node:
        """The node that returns the network's result."""
        return next(node for node in self.graph.nodes if node.op == "output")


def attribute_of(root: nn.Module, constants: dict[str, Tensor], name: str) -> Any:
    """Return a constant, or an attribute of a part of ``root``."""
    return constants[name] if name in constants else operator.attrgetter(name)(root)


def trace(model: nn.Module, example: Any, opaque: Iterable[Any] = ()) -> Traced:
    """Trace a model that is in eval mode on an example.

    Args:
        model: The network.
        example: A tensor, a tuple of arguments of ``forward`` or a dict of them.
        opaque: Module classes and functions that are not traced into.
    """
    classes = tuple(op for op in opaque if isinstance(op, type) and issubclass(op, nn.Module))
    tracer = Tracer(copied(bind(model, example)), classes)
    try:
        with torch.no_grad(), _symbolic_creation(tracer), _nothing_wrapped(opaque):
            graph = tracer.trace(model)
    except Exception as error:
        reason = f"the model cannot be traced: {type(error).__name__}: {str(error).rstrip('.')}."
        advice = (
            "Check that model(example_input) runs; describe unusual modules with register_rule."
        )
        if isinstance(error, DependsOnValues):
            reason = "Python control flow depends on the values of a tensor."
            advice = "Use torch.where, or convert its parts."
        refusal = Refusal(*_where(error, tracer), reason, advice)
        raise ConversionError(type(model).__name__, [refusal]) from error
    traced = Traced(model, graph, bind(model, example), tracer.constants, tracer.fixed_sizes)
    if not traced.output.all_input_nodes:
        reason = "nothing that the model returns could be followed from its input."
        advice = "Return tensors that forward computes, not what hooks keep elsewhere."
        raise ConversionError(type(model).__name__, [Refusal("output", "trace", reason, advice)])
    return traced


@contextlib.contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode; afterwards undo that and whatever its code changed in itself."""
    live = [vars(module) for module in model.modules()]
    live += [part for state in live for part in state.values() if isinstance(part, dict)]
    before = [state.copy() for state in live]
    values = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        model.train().eval()  # train() drops what was computed from weights for eval mode
        yield
    finally:
        for state, saved in zip(live, before, strict=True):
            state.clear()
            state.update(saved)
        for buffer, value in values:
            if not torch.equal(buffer, value):
                buffer.copy_(value)


def run(model: nn.Module, inputs: dict[str, Any]) -> list[Tensor]:
    """List the tensors that a network returns for copies of its inputs; it may change them."""
    return [leaf for leaf in leaves(model(**copied(inputs))) if isinstance(leaf, Tensor)]


def copied(inputs: dict[str, Any]) -> dict[str, Any]:
    """Copy the tensors of a network's inputs."""
    return {name: x.detach().clone() if isinstance(x, Tensor) else x for name, x in inputs.items()}


def bind(model: nn.Module, example: Any) -> dict[str, Any]:
    """Return the example by argument of ``forward``."""
    if not any(isinstance(leaf, Tensor) for leaf in leaves(example)):
        raise TypeError(
            "convert: example_input must be a tensor, or a tuple or dict of the arguments of"
            f" forward, got {type(example).__name__} without any tensor."
        )
    signature = inspect.signature(model.forward)
    if isinstance(example, dict):
        return dict(signature.bind(**example).arguments)
    args = tuple(example) if isinstance(example, list | tuple) else (example,)
    return dict(signature.bind(*args).arguments)


def _is_own(module: nn.Module) -> bool:
    """Tell whether a module is no variant of one of torch's, which it would be taken for."""
    kinds = type(module).__mro__
    return next(kind for kind in kinds if kind.__module__.startswith("torch.nn.")) is nn.Module


def _depends_on_mode(module: nn.Module) -> bool:
    """Tell whether a module's code asks if it is training, as drop-path layers do."""
    try:
        return "training" in inspect.getsource(type(module).forward)
    except (OSError, TypeError):
        return False


@contextlib.contextmanager
def _symbolic_creation(tracer: Tracer) -> Iterator[None]:
    """Record functions that make tensors from sizes; torch does not dispatch them."""
    originals = {name: getattr(torch, name) for name in _CREATORS}

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if any(is_symbol(leaf) for leaf in leaves((args, kwargs))):
                return tracer.create_proxy("call_function", function, args, kwargs)
            return function(*args, **kwargs)

        return call

    try:
        for name, function in originals.items():
            setattr(torch, name, recorded(function))
        yield
    finally:
        for name, function in originals.items():
            setattr(torch, name, function)


@contextlib.contextmanager
def _nothing_wrapped(opaque: Iterable[Any]) -> Iterator[None]:
    """Trace into functions that ``torch.fx.wrap`` hides, except those that are opaque."""
    wrapped = fx._symbolic_trace._wrapped_fns_to_patch
    hidden = {key: scope for key, scope in wrapped.items() if scope.get(key[1]) not in opaque}
    for key in hidden:
        del wrapped[key]
    try:
        yield
    finally:
        wrapped.update(hidden)


_SKIP = ("/torch/", "trueshift/convert/", "/contextlib.py", "/inspect.py")


def _line_of_model() -> str:
    """Return the line of the model's own code that is running."""
    frame = inspect.currentframe()
    while frame is not None:
        path = frame.f_code.co_filename.replace("\\", "/")
        if not any(part in path for part in _SKIP) and "self" in frame.f_locals:
            return f"{path.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _where(error: BaseException, tracer: Tracer) -> tuple[str, str]:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not any(part in f.filename.replace("\\", "/") for part in _SKIP)]
    line = own[-1] if own else frames[-1]
    return (
        tracer.place or "forward",
        f"{line.filename.rsplit('/', 1)[-1]}:{line.lineno}: {line.line}",
    )
