"""Activations whose rounding does not depend on the position of a value.

They are torch's own, under the same names and with the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from trueshift.exact import elementwise
from trueshift.layers.norms import NORMS


class _Exact(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return super().forward(x)
        return elementwise(super().forward, x, inplace=getattr(self, "inplace", False))


def _exact(kind: type[nn.Module]) -> type[nn.Module]:
    doc = f"``torch.nn.{kind.__name__}`` whose rounding does not depend on the position."
    return type(kind.__name__, (_Exact, kind), {"__module__": __name__, "__doc__": doc})


CELU, ELU, GELU, LogSigmoid, Mish, SELU, Sigmoid, SiLU, Softplus, Tanhshrink = _KINDS = [
    _exact(kind)
    for kind in (
        nn.CELU,
        nn.ELU,
        nn.GELU,
        nn.LogSigmoid,
        nn.Mish,
        nn.SELU,
        nn.Sigmoid,
        nn.SiLU,
        nn.Softplus,
        nn.Tanhshrink,
    )
]
EXACT: dict[type[nn.Module], type[nn.Module]] = {exact.__mro__[2]: exact for exact in _KINDS}


class _Function(nn.Module):
    def __init__(
        self,
        function: Callable[..., Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inplace: bool,
    ) -> None:
        super().__init__()
        self.function, self.args, self.kwargs, self.inplace = function, args, kwargs, inplace

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.args, **self.kwargs)

    def extra_repr(self) -> str:
        """Show the function."""
        return self.function.__name__


class Elementwise(_Exact, _Function):
    """An elementwise function of torch with further arguments, as a module.

    Args:
        function: The function; its first argument is the map.
        args: Further positional arguments.
        kwargs: Further arguments by name.
        inplace: Whether it overwrites the map.
    """


def make_exact(model: nn.Module) -> None:
    """Replace activations and norms over space by versions whose rounding ignores the position."""
    for module in model.modules():
        exact = EXACT.get(type(module)) or NORMS.get(type(module))
        if exact is not None:
            module.__class__ = exact
