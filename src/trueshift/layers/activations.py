"""Activations that give each pixel the same bits wherever it stands.

They are torch's own, under the same names and with the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from trueshift.layers.steady import steadily


class _Steady(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return super().forward(x)
        return steadily(super().forward, x, inplace=getattr(self, "inplace", False))


class CELU(_Steady, nn.CELU):
    """``torch.nn.CELU`` with the same bits everywhere."""


class ELU(_Steady, nn.ELU):
    """``torch.nn.ELU`` with the same bits everywhere."""


class GELU(_Steady, nn.GELU):
    """``torch.nn.GELU`` with the same bits everywhere."""


class LogSigmoid(_Steady, nn.LogSigmoid):
    """``torch.nn.LogSigmoid`` with the same bits everywhere."""


class Mish(_Steady, nn.Mish):
    """``torch.nn.Mish`` with the same bits everywhere."""


class SELU(_Steady, nn.SELU):
    """``torch.nn.SELU`` with the same bits everywhere."""


class Sigmoid(_Steady, nn.Sigmoid):
    """``torch.nn.Sigmoid`` with the same bits everywhere."""


class SiLU(_Steady, nn.SiLU):
    """``torch.nn.SiLU`` with the same bits everywhere."""


class Softplus(_Steady, nn.Softplus):
    """``torch.nn.Softplus`` with the same bits everywhere."""


class Tanhshrink(_Steady, nn.Tanhshrink):
    """``torch.nn.Tanhshrink`` with the same bits everywhere."""


STEADY: dict[type[nn.Module], type[nn.Module]] = {
    steady.__mro__[2]: steady
    for steady in (
        CELU,
        ELU,
        GELU,
        LogSigmoid,
        Mish,
        SELU,
        Sigmoid,
        SiLU,
        Softplus,
        Tanhshrink,
    )
}


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


class Elementwise(_Steady, _Function):
    """An elementwise function of torch with further arguments, as a module.

    Args:
        function: The function; its first argument is the map.
        args: Further positional arguments.
        kwargs: Further arguments by name.
        inplace: Whether it overwrites the map.
    """


def make_steady(model: nn.Module) -> None:
    """Replace the activations of a model by steady ones; names and settings stay."""
    for module in model.modules():
        steady = STEADY.get(type(module))
        if steady is not None:
            module.__class__ = steady
