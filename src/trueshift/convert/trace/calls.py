"""One name and one set of parameters for an operation, however a model calls it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

SIGNATURES = {
    "conv": "input weight bias stride padding dilation groups",
    "conv_transpose": "input weight bias stride padding output_padding groups dilation",
    "max_pool": "input kernel_size stride padding dilation ceil_mode return_indices",
    "avg_pool": "input kernel_size stride padding ceil_mode count_include_pad divisor_override",
    "lp_pool": "input norm_type kernel_size stride ceil_mode",
    "adaptive_avg_pool": "input output_size",
    "adaptive_max_pool": "input output_size return_indices",
    "interpolate": "input size scale_factor mode align_corners recompute_scale_factor antialias",
    "upsample": "input size scale_factor mode align_corners",
    "upsample_nearest": "input size scale_factor",
    "upsample_bilinear": "input size scale_factor",
    "pad": "input pad mode value",
    "pixel_shuffle": "input factor",
    "pixel_unshuffle": "input factor",
    "layer_norm": "input normalized_shape weight bias eps",
    "linear": "input weight bias",
    "softmax": "input dim",
    "log_softmax": "input dim",
    "normalize": "input p dim",
    "glu": "input dim",
    "flatten": "input start_dim end_dim",
    "scaled_dot_product_attention": "query key value attn_mask",
    "permute": "input dims",
    "transpose": "input dim0 dim1",
    "unsqueeze": "input dim",
    "squeeze": "input dim",
    "cat": "tensors dim",
    "stack": "tensors dim",
    "chunk": "input chunks dim",
    "split": "input split_size_or_sections dim",
    "tensor_split": "input sections dim",
    "unbind": "input dim",
    "mean": "input dim keepdim",
    "sum": "input dim keepdim",
    "amax": "input dim keepdim",
    "amin": "input dim keepdim",
    "var": "input dim correction keepdim",
    "std": "input dim correction keepdim",
    "logsumexp": "input dim keepdim",
    "norm": "input p dim keepdim",
    "vector_norm": "input ord dim keepdim",
    "max": "input dim keepdim",
    "min": "input dim keepdim",
    "argmax": "input dim keepdim",
    "argmin": "input dim keepdim",
    "roll": "input shifts dims",
    "dropout": "input p training inplace",
    "getitem": "input index",
}
RENAMED = {"x": "input", "dims": "dim", "axis": "dim", "keepdims": "keepdim", "other": "other"}
ALIASES = {
    "concat": "cat",
    "concatenate": "cat",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "reshape": "view",
    "view_as": "reshape_as",
    "linalg_vector_norm": "vector_norm",
    "alpha_dropout": "dropout",
    "feature_alpha_dropout": "dropout",
    "feature_dropout": "dropout",
    "__getitem__": "getitem",
    "_max_pool": "max_pool",
    "special_softmax": "softmax",
}
_PLAIN_MODULES: tuple[tuple[type, str], ...] = (
    (nn.modules.batchnorm._BatchNorm, "pointwise"),
    (nn.modules.dropout._DropoutNd, "pointwise"),
    (nn.Identity, "pointwise"),
    (nn.ChannelShuffle, "pointwise"),
    (nn.LocalResponseNorm, "pointwise"),
    (nn.CrossMapLRN2d, "pointwise"),
    (nn.GroupNorm, "over_space"),
    (nn.modules.instancenorm._InstanceNorm, "over_space"),
    (nn.MultiheadAttention, "multi_head_attention"),
    (nn.TransformerEncoder, "encoder"),
    (nn.TransformerEncoderLayer, "encoder"),
)


@dataclass(frozen=True)
class Call:
    """A node of the graph, read.

    Args:
        node: The node.
        name: Name of the operation, without the number of axes.
        params: Its parameters, values of the analysis in place of tensors.
        raw: The same with nodes (or names of attributes) in place of values.
        args: Positional arguments, as values.
    """

    node: fx.Node
    name: str
    params: dict[str, Any]
    raw: dict[str, Any]
    args: tuple[Any, ...]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a parameter, or a default."""
        return self.params.get(name, default)


def read_call(
    node: fx.Node,
    module: nn.Module | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    attribute: Callable[[str], Any],
) -> Call:
    """Describe a node; ``attribute`` gives the value of a parameter of its module."""
    if module is None:
        name = _name_of(node)
        return Call(
            node,
            name,
            _bind(name, args, kwargs),
            _bind(name, node.args, dict(node.kwargs)),
            args,
        )
    name, extra, tensors = _read_module(module)
    params: dict[str, Any] = {"input": args[0] if args else None, **extra}
    raw: dict[str, Any] = {"input": node.args[0] if node.args else None, **extra}
    for tensor in tensors:
        present = getattr(module, tensor, None) is not None
        params[tensor] = attribute(f"{node.target}.{tensor}") if present else None
        raw[tensor] = f"{node.target}.{tensor}" if present else None
    return Call(node, name, params, raw, args)


def _name_of(node: fx.Node) -> str:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if not name:
        name = str(node.target).rsplit(".", 1)[-1]
    name = name if name.startswith("__") else name.rstrip("_")
    name = re.sub(r"[123]d$", "", name)
    return ALIASES.get(name, name)


def _bind(name: str, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    names = SIGNATURES.get(name, "input").split()
    bound = dict(zip(names, args, strict=False))
    return bound | {RENAMED.get(key, key): value for key, value in kwargs.items()}


def _read_module(module: nn.Module) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """Return name, parameters and tensor attributes of a module as those of its function."""
    kind = type(module).__name__
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        names = SIGNATURES["conv_transpose"].split()[3:]
        return "conv_transpose", _attributes(module, names), ("weight", "bias")
    if isinstance(module, nn.modules.conv._ConvNd):
        names = [*SIGNATURES["conv"].split()[3:], "padding_mode"]
        return "conv", _attributes(module, names), ("weight", "bias")
    for plain, name in _PLAIN_MODULES:
        if isinstance(module, plain):
            return name, {}, ()
    for name in ("max_pool", "avg_pool", "lp_pool", "adaptive_avg_pool", "adaptive_max_pool"):
        if re.fullmatch(name.replace("_", "") + "[123]d", kind.lower()):
            return name, _attributes(module, SIGNATURES[name].split()[1:]), ()
    if isinstance(module, nn.Upsample):
        names = ["size", "scale_factor", "mode", "align_corners"]
        return "interpolate", _attributes(module, names), ()
    if isinstance(module, nn.PixelShuffle):
        return "pixel_shuffle", {"factor": module.upscale_factor}, ()
    if isinstance(module, nn.PixelUnshuffle):
        return "pixel_unshuffle", {"factor": module.downscale_factor}, ()
    if re.fullmatch("(zero|constant|reflection|replication|circular)pad[123]d", kind.lower()):
        modes = {"zero": "constant", "reflection": "reflect", "replication": "replicate"}
        mode = kind[:-5].lower()
        how = {"mode": modes.get(mode, mode), "value": getattr(module, "value", None)}
        return "pad", {"pad": module.padding, **how}, ()
    if isinstance(module, nn.LayerNorm):
        names = ["normalized_shape", "weight"]
        return "layer_norm", _attributes(module, names), ()
    if isinstance(module, nn.Linear):
        return "linear", {}, ("weight",)
    if isinstance(module, nn.Flatten):
        return "flatten", _attributes(module, ["start_dim", "end_dim"]), ()
    if isinstance(module, nn.Unflatten):
        return "view", {}, ()
    if isinstance(module, nn.Softmax | nn.LogSoftmax | nn.GLU):
        return ("glu" if isinstance(module, nn.GLU) else "softmax"), {"dim": module.dim}, ()
    if isinstance(module, nn.Softmax2d):
        return "softmax", {"dim": 1}, ()
    if isinstance(module, nn.MultiheadAttention) or type(module).__module__ != _ACTIVATIONS:
        return kind, {}, ()
    return "pointwise", {}, ()


_ACTIVATIONS = inspect.getmodule(nn.ReLU).__name__  # type: ignore[union-attr]


def _attributes(module: nn.Module, names: list[str]) -> dict[str, Any]:
    return {name: getattr(module, name) for name in names if hasattr(module, name)}
