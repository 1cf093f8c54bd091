"""Convolutions that do the work of the batch norms after them, at test time."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, fx, nn

from trueshift.convert.windows import Convolution
from trueshift.layers.norm import BatchNorm, fold, normalize


def convolve_and_normalize(
    conv: Convolution,
    norm: nn.Module,
    x: Tensor,
    phase: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """Return ``norm(conv(x, phase, weight, bias))``; for batches at test time in one operation."""
    folded = fold(norm, weight, bias, x, conv)
    if folded is None:
        return normalize(norm, conv(x, phase, weight, bias), conv)
    normalized: Tensor = conv(x, phase, *folded)
    return normalized


def join_norms(graph: fx.Graph, module_of: Callable[[fx.Node], nn.Module | None]) -> None:
    """Make one call of a convolution whose map nobody but a batch norm reads, and that norm."""
    for node in list(graph.nodes):
        if not isinstance(module_of(node), BatchNorm):
            continue
        source = node.all_input_nodes[0]
        if not isinstance(module_of(source), Convolution) or len(source.users) > 1:
            continue
        with graph.inserting_before(source):  # later its input may be overwritten
            norm, conv = (graph.get_attr(str(n.target)) for n in (node, source))
            new = graph.call_function(convolve_and_normalize, (conv, norm, *source.args))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        graph.erase_node(source)
