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
    """See torch."""


class ELU(_Steady, nn.ELU):
    """See torch."""


class GELU(_Steady, nn.GELU):
    """See torch."""


class LogSigmoid(_Steady, nn.LogSigmoid):
    """See torch."""


class Mish(_Steady, nn.Mish):
    """See torch."""


class SELU(_Steady, nn.SELU):
    """See torch."""


class Sigmoid(_Steady, nn.Sigmoid):
    """See torch."""


class SiLU(_Steady, nn.SiLU):
    """See torch."""


class Softplus(_Steady, nn.Softplus):
    """See torch."""


class Tanhshrink(_Steady, nn.Tanhshrink):
    """See torch."""


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


class Elementwise(nn.Module):
    """An elementwise function of torch with further arguments, as a module.

    Args:
        function: The function; its first argument is the map.
        args: Further positional arguments.
        kwargs: Further arguments by name.
        inplace: Whether it overwrites the map.
    """

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
        if self.training:
            return self._apply_to(x)
        return steadily(self._apply_to, x, inplace=self.inplace)

    def _apply_to(self, x: Tensor) -> Tensor:
        return self.function(x, *self.args, **self.kwargs)

    def extra_repr(self) -> str:
        """Show the function."""
        return self.function.__name__


def make_steady(model: nn.Module) -> None:
    """Replace the activations of a model by steady ones; names and settings stay."""
    for module in model.modules():
        steady = STEADY.get(type(module))
        if steady is not None:
            module.__class__ = steady
