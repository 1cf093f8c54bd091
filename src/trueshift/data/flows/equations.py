"""Equations on periodic domains, in Fourier space: linear part, nonlinear part, initial states.

All of them commute with shifts along their periodic axes, forcing included, so the map from one
state to the next is shift-equivariant. Products are dealiased by the 2/3 rule. All is in float64.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Generator, Tensor


class Equation(ABC):
    """A real field on a torus, its modes, and the times that suit it.

    Args:
        shape: Points of each axis.
        lengths: Length of each axis.
        dt: Time of a solver step.
        interval: Solver steps between two states, by default.
        warm_up: Solver steps before the first state.
    """

    def __init__(
        self, shape: Sequence[int], lengths: Sequence[float], dt: float, interval: int, warm_up: int
    ) -> None:
        self.shape, self.periodic = tuple(shape), (True,) * len(shape)
        self.dt, self.interval, self.warm_up = dt, interval, warm_up
        self.axes = tuple(range(-len(shape), 0))
        self.k = _wave_numbers(shape, lengths)
        indices = _wave_numbers(shape, [2 * math.pi] * len(shape))
        limits = zip(indices, shape, strict=True)
        self.unaliased = math.prod(index.abs() < n / 3 for index, n in limits)
        self.squares: Tensor = sum(k**2 for k in self.k)  # type: ignore[assignment]

    @abstractmethod
    def linear(self) -> Tensor:
        """Return the eigenvalues of the linear part, one per mode."""

    @abstractmethod
    def nonlinear(self, v: Tensor) -> Tensor:
        """Return the rest of the time derivative of modes ``(B, *modes)``."""

    @abstractmethod
    def initial(self, source: Generator) -> Tensor:
        """Draw a state, ``shape``."""

    def to_modes(self, x: Tensor) -> Tensor:
        """Return the modes of values ``(B, *shape)``."""
        return torch.fft.rfftn(x, dim=self.axes)

    def to_values(self, v: Tensor) -> Tensor:
        """Return the values of modes."""
        sizes = (*v.shape[-len(self.axes) : -1], self.shape[-1])
        return torch.fft.irfftn(v, s=sizes, dim=self.axes)

    def random_field(self, source: Generator, low: float, high: float) -> Tensor:
        """Draw a field of rms 1 with wave numbers from ``low`` to ``high``."""
        white = self.to_modes(torch.randn(self.shape, generator=source, dtype=torch.float64))
        length = self.squares.sqrt()
        field = self.to_values(white * ((low <= length) & (length <= high)))
        return field / field.square().mean().sqrt()


class SelfAdvection(Equation):
    """A field on a line that carries itself along: ``-u u_x`` is its nonlinear part."""

    def nonlinear(self, v: Tensor) -> Tensor:
        square = self.to_modes(self.to_values(v).square())
        return -0.5j * self.k[0] * square * self.unaliased


class KuramotoSivashinsky(SelfAdvection):
    """``u_t = -u u_x - u_xx - u_xxxx``: flame fronts; chaotic, a Lyapunov time is about 11."""

    def __init__(self, length: float = 60.0, points: int = 128, dt: float = 0.125) -> None:
        super().__init__([points], [length], dt, interval=8, warm_up=1600)

    def linear(self) -> Tensor:
        return self.squares - self.squares**2

    def initial(self, source: Generator) -> Tensor:
        return self.random_field(source, 0.1, 1.0)


class Burgers(SelfAdvection):
    """``u_t = -u u_x + viscosity u_xx``: waves that steepen to shocks, meet and decay."""

    def __init__(self, viscosity: float = 0.05, points: int = 128, dt: float = 0.01) -> None:
        super().__init__([points], [2 * math.pi], dt, interval=4, warm_up=50)
        self.viscosity = viscosity

    def linear(self) -> Tensor:
        return -self.viscosity * self.squares

    def initial(self, source: Generator) -> Tensor:
        return self.random_field(source, 1.0, 4.0)


class NavierStokes(Equation):
    """Vorticity of an incompressible flow: ``w_t = -(u . grad) w + viscosity lap w - drag w``.

    A force that depends on position would break the symmetry under shifts. Here it is linear:
    waves whose wave number lies in ``band`` grow at the rate ``growth``, wherever they are.

    Args:
        viscosity: Kinematic viscosity.
        drag: Linear friction of all waves.
        growth: Growth rate of the forced waves; 0 lets the flow decay.
        band: Lowest and highest wave number of the forced waves.
        warm_up: Solver steps before the first state.
        points: Points of each axis.
        dt: Time of a solver step.
    """

    def __init__(
        self,
        viscosity: float = 5e-3,
        drag: float = 0.0,
        growth: float = 0.0,
        band: tuple[float, float] = (3.0, 5.0),
        warm_up: int = 25,
        points: int = 64,
        dt: float = 0.04,
    ) -> None:
        super().__init__([points] * 2, [2 * math.pi] * 2, dt, interval=2, warm_up=warm_up)
        self.viscosity, self.drag, self.growth, self.band = viscosity, drag, growth, band

    def linear(self) -> Tensor:
        length = self.squares.sqrt()
        forced = ((self.band[0] <= length) & (length <= self.band[1])).double()
        return self.growth * forced - self.viscosity * self.squares - self.drag

    def nonlinear(self, v: Tensor) -> Tensor:
        ky, kx = self.k
        stream = v / self.squares.clamp(min=1.0)  # the mean has no flow: both its factors are 0
        flow_x, flow_y, w_x, w_y = (
            self.to_values(modes)
            for modes in (1j * ky * stream, -1j * kx * stream, 1j * kx * v, 1j * ky * v)
        )
        advected = self.to_modes(flow_x * w_x + flow_y * w_y) * self.unaliased
        advected[..., 0, 0] = 0  # the mean vorticity stays, without rounding
        return -advected

    def initial(self, source: Generator) -> Tensor:
        return 4 * self.random_field(source, 3.0, 6.0)


class Channel(Equation):
    """A dye in a channel: ``c_t = -u(y) c_x + diffusion lap c``; along x it wraps, y has walls.

    The flow ``u = speed sin^2(pi y / width)`` rests at the walls, which let no dye through. So
    cosines across y are the modes: Fourier modes of the channel joined to its mirror image.

    Args:
        diffusion: Diffusivity of the dye.
        speed: Flow in the middle of the channel.
        points: Points across and along.
        lengths: Width and length of the channel.
        dt: Time of a solver step.
    """

    def __init__(
        self,
        diffusion: float = 1e-3,
        speed: float = 1.0,
        points: tuple[int, int] = (32, 64),
        lengths: tuple[float, float] = (1.0, 2.0),
        dt: float = 0.02,
    ) -> None:
        across, along = points
        doubled = (2 * lengths[0], lengths[1])
        super().__init__((2 * across, along), doubled, dt, interval=4, warm_up=25)
        self.shape, self.periodic = points, (False, True)
        self.diffusion = diffusion
        place = (torch.arange(across, dtype=torch.float64)[:, None] + 0.5) / across
        self.flow = speed * (math.pi * place).sin().square()  # (across, 1)

    def to_modes(self, x: Tensor) -> Tensor:
        return super().to_modes(torch.cat([x, x.flip(-2)], -2))

    def to_values(self, v: Tensor) -> Tensor:
        return super().to_values(v)[..., : self.shape[0], :]

    def linear(self) -> Tensor:
        return -self.diffusion * self.squares

    def nonlinear(self, v: Tensor) -> Tensor:
        return -self.to_modes(self.flow * self.to_values(1j * self.k[1] * v)) * self.unaliased

    def initial(self, source: Generator) -> Tensor:
        return self.random_field(source, 3.0, 16.0)


def _wave_numbers(shape: Sequence[int], lengths: Sequence[float]) -> list[Tensor]:
    """Return the wave numbers of each axis, to broadcast; of the last only those of a real field.

    The highest one of an even axis has no odd derivative; dealiasing leaves it out.
    """
    made = []
    for axis, (n, length) in enumerate(zip(shape, lengths, strict=True)):
        frequencies = torch.fft.rfftfreq if axis == len(shape) - 1 else torch.fft.fftfreq
        k = frequencies(n, length / (2 * math.pi * n), dtype=torch.float64)
        made.append(k.view(-1, *[1] * (len(shape) - 1 - axis)))
    return made


EQUATIONS: dict[str, Equation] = {
    "kuramoto_sivashinsky": KuramotoSivashinsky(),
    "burgers": Burgers(),
    "decaying_navier_stokes": NavierStokes(),
    "forced_navier_stokes": NavierStokes(drag=0.1, growth=0.3, warm_up=500),
    "channel": Channel(),
}
