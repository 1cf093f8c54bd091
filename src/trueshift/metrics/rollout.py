"""Roll-outs of an emulator, and what is measured on them; needs torch only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trueshift._validate import check_positive

Model = Callable[[Tensor], Tensor]


def rollout(model: Model, state: Tensor, num_steps: int, check: bool = True) -> Tensor:
    """Apply a model to a state, then to what it returned, and so on.

    Args:
        model: Maps states ``(B, C, *shape)`` to the next ones.
        state: The first states, which are not returned.
        num_steps: Steps.
        check: Raise if a state is not finite; ``False`` goes on with what is left of it.

    Returns:
        States ``(B, num_steps, C, *shape)``.

    Examples:
        >>> rollout(lambda x: 2 * x, torch.ones(1, 1, 1), num_steps=3).flatten()
        tensor([2., 4., 8.])
    """
    check_positive("rollout", num_steps=num_steps)
    states = []
    for number in range(1, num_steps + 1):
        state = model(state)
        if check and not torch.isfinite(state).all():
            bad = int((~torch.isfinite(state.flatten(1))).any(1).sum())
            raise FloatingPointError(
                f"rollout: {bad} of {len(state)} trajectories blew up in step {number} of"
                f" {num_steps}: they hold NaN or infinity. Roll out fewer steps, or train with more"
                " unrolled steps, more noise or a lower learning rate."
            )
        states.append(state)
    return torch.stack(states, 1)


def relative_errors(preds: Tensor, target: Tensor) -> Tensor:
    """Return ``|preds - target| / |target|`` of states ``(B, T, C, *shape)``, float64 ``(B, T)``.

    What is not a number is infinitely wrong.
    """
    if preds.shape != target.shape or preds.ndim < 4:
        raise ValueError(
            "relative_errors: preds and target must have one shape (B, T, C, *shape), got"
            f" {tuple(preds.shape)} and {tuple(target.shape)}."
        )
    a, b = preds.double().flatten(2), target.double().flatten(2)
    return ((a - b).norm(dim=2) / b.norm(dim=2)).nan_to_num(nan=torch.inf, posinf=torch.inf)


def valid_times(errors: Tensor, threshold: float) -> Tensor:
    """Return how many steps errors ``(B, T)`` stay within the threshold from the start, ``(B,)``.

    Examples:
        >>> valid_times(torch.tensor([[0.1, 0.3, 0.1], [0.1, 0.1, 0.1]]), 0.2)
        tensor([1, 3])
    """
    return (errors <= threshold).long().cumprod(1).sum(1)


def energy_spectrum(states: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the energy by wave number of states ``(B, ..., *shape)``, ``(B, bins)``.

    Bin ``k`` holds all waves along the axes whose number, in waves per domain, rounds to ``k``.

    Args:
        states: The states.
        axes: Axes that wrap, negative; over all others the energy is averaged.

    Examples:
        >>> x = torch.tensor([[0.0, 1.0, 0.0, -1.0]])
        >>> energy_spectrum(x, [-1])
        tensor([[0.0000, 0.5000, 0.0000]], dtype=torch.float64)
    """
    sizes = [states.shape[axis] for axis in axes]
    power = torch.fft.fftn(states.double(), dim=tuple(axes), norm="forward").abs().square()
    others = [axis for axis in range(1, states.ndim) if axis - states.ndim not in axes]
    power = (power.mean(others) if others else power).flatten(1)  # (B, waves)
    grids = torch.meshgrid(
        *(torch.fft.fftfreq(n, 1 / n, device=states.device) for n in sizes), indexing="ij"
    )
    number = torch.stack(grids).square().sum(0).sqrt().round().long().flatten()
    bins = torch.zeros(len(power), int(number.max()) + 1, dtype=power.dtype, device=power.device)
    return bins.index_add(1, number, power)[:, : max(sizes) // 2 + 1]
