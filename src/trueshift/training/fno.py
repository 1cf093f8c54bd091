"""A Fourier neural operator from another package, to compare our emulators with."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor, nn

from trueshift.layers.spec import Sampling


def fno(
    spec: Sampling,
    num_classes: int = 1,
    in_channels: int = 1,
    modes: int = 16,
    hidden_channels: int = 32,
    num_layers: int = 4,
) -> nn.Module:
    """Build the FNO of the package ``neuraloperator`` (Li et al. 2021), for a torus.

    It samples nowhere, so it has no grid to imprint, and it is equivariant up to rounding: Fourier
    transforms round differently at different positions.

    Args:
        spec: Says the number of axes; must be plain striding with circular padding.
        num_classes: Channels of the output.
        in_channels: Channels of the input.
        modes: Modes that are kept along each axis.
        hidden_channels: Width.
        num_layers: Fourier layers.
    """
    if not spec.is_plain or spec.padding_mode != "circular":
        raise ValueError(
            "fno: it does not sample, and all its axes are periodic; spec must be"
            f" method='stride', antialias=None, padding_mode='circular', got {spec}."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of optional parts that are not used here
            from neuralop.models import FNO
    except ImportError as error:
        raise ImportError(
            "fno: it needs the package neuraloperator. Install it with:"
            " pip install 'trueshift[flows]'."
        ) from error
    network = FNO(
        n_modes=(modes,) * spec.dim,
        in_channels=in_channels,
        out_channels=num_classes,
        hidden_channels=hidden_channels,
        n_layers=num_layers,
        positional_embedding=None,  # coordinates would break the equivariance
    )
    return _Saved(network)


class _Saved(nn.Module):
    """Leaves out of checkpoints what the package adds to the weights: functions, to be unpickled.

    Args:
        network: A model of the package.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.operator = network
        self.register_state_dict_post_hook(_drop_metadata)

    def forward(self, x: Tensor) -> Tensor:
        return self.operator(x)


def _drop_metadata(module: nn.Module, state: dict[str, Any], *_: Any) -> None:
    state.pop("_metadata", None)
