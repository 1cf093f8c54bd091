"""Exponential time differencing of fourth order, for equations with a diagonal linear part."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_CIRCLE = 64  # points of the contour; the integrand is analytic, so the error falls exponentially


class ETDRK4:
    """Steps of ``dv/dt = linear * v + nonlinear(v)`` (Cox and Matthews 2002).

    The linear part is solved exactly, the nonlinear one by four Runge-Kutta stages. The
    coefficients are differences that cancel for small ``linear * dt``; they are therefore means
    over a circle around each value (Kassam and Trefethen 2005).

    Args:
        linear: Eigenvalues of the linear part, real or complex, of the shape of the modes.
        nonlinear: The rest, as a function of modes ``(B, *modes)``.
        dt: Time of a step.

    Examples:
        >>> decay = ETDRK4(torch.tensor([-1.0], dtype=torch.float64), lambda v: 0 * v, dt=0.5)
        >>> decay.step(torch.ones(1, 1, dtype=torch.float64))
        tensor([[0.6065]], dtype=torch.float64)
    """

    def __init__(self, linear: Tensor, nonlinear: Callable[[Tensor], Tensor], dt: float) -> None:
        if not dt > 0:
            raise ValueError(f"ETDRK4: dt must be positive, got {dt}.")
        self.nonlinear = nonlinear
        z = dt * linear
        angles = 2 * math.pi * (torch.arange(_CIRCLE, dtype=torch.float64) + 0.5) / _CIRCLE
        r = z[..., None] + torch.polar(torch.ones_like(angles), angles)  # (*modes, circle)
        full, half = r.exp(), (r / 2).exp()

        def coefficient(values: Tensor) -> Tensor:
            mean = dt * values.mean(-1)
            return mean if linear.is_complex() else mean.real

        self.decay, self.half_decay = z.exp(), (z / 2).exp()
        self.half = coefficient((half - 1) / r)
        self.first = coefficient((-4 - r + full * (4 - 3 * r + r**2)) / r**3)
        self.middle = coefficient(2 * (2 + r + full * (r - 2)) / r**3)
        self.last = coefficient((-4 - 3 * r - r**2 + full * (4 - r)) / r**3)

    def step(self, v: Tensor) -> Tensor:
        """Return the modes one step later."""
        n_v = self.nonlinear(v)
        a = self.half_decay * v + self.half * n_v
        n_a = self.nonlinear(a)
        b = self.half_decay * v + self.half * n_a
        n_b = self.nonlinear(b)
        c = self.half_decay * a + self.half * (2 * n_b - n_v)
        n_c = self.nonlinear(c)
        return self.decay * v + self.first * n_v + self.middle * (n_a + n_b) + self.last * n_c
