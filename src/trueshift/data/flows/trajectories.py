"""Trajectories of an equation, from a seed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trueshift._validate import check_positive
from trueshift.data.flows.equations import Equation
from trueshift.data.flows.solver import ETDRK4


def solve(
    equation: Equation, start: Tensor, num_states: int, interval: int | None = None
) -> Tensor:
    """Solve an equation from given states on.

    Args:
        equation: The equation.
        start: First states ``(B, *shape)``.
        num_states: States to return, the first one included.
        interval: Solver steps between two states; ``None`` takes the equation's own.

    Returns:
        States ``(B, num_states, *shape)``, float64.

    Examples:
        >>> from trueshift.data.flows.equations import Burgers
        >>> x = torch.linspace(0, 6.2832, 33, dtype=torch.float64)[:-1]
        >>> solve(Burgers(points=32), x.sin()[None], num_states=3).shape
        torch.Size([1, 3, 32])
    """
    interval = equation.interval if interval is None else interval
    check_positive("solve", num_states=num_states, interval=interval)
    if tuple(start.shape[1:]) != equation.shape:
        raise ValueError(
            f"solve: start must have shape (B, {', '.join(map(str, equation.shape))}), got"
            f" {tuple(start.shape)}."
        )
    solver = ETDRK4(equation.linear(), equation.nonlinear, equation.dt)
    modes = equation.to_modes(start.double())
    states = [start.double()]
    for number in range(1, num_states):
        for _ in range(interval):
            modes = solver.step(modes)
        states.append(equation.to_values(modes))
        if not torch.isfinite(states[-1]).all():
            raise FloatingPointError(
                f"solve: {type(equation).__name__} blew up before state {number}. Pass a smaller"
                f" dt than {equation.dt}."
            )
    return torch.stack(states, 1)


def trajectories(
    equation: Equation, seeds: Sequence[int], num_states: int, interval: int | None = None
) -> Tensor:
    """Solve an equation from random states on, one for each seed, after its warm-up.

    Args:
        equation: The equation.
        seeds: A seed for each trajectory; a trajectory depends on its own seed only.
        num_states: States of each.
        interval: Solver steps between two states; ``None`` takes the equation's own.

    Returns:
        States ``(len(seeds), num_states, *shape)``, float64.
    """
    sources = [torch.Generator().manual_seed(seed) for seed in seeds]
    start = torch.stack([equation.initial(source) for source in sources])
    if equation.warm_up:
        start = solve(equation, start, 2, equation.warm_up)[:, 1]
    return solve(equation, start, num_states, interval)
