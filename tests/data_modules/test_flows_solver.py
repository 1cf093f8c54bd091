"""The solver against known solutions, its order, and what its equations keep."""

import math

import pytest
import torch

from trueshift.data.flows import EQUATIONS, solve, trajectories
from trueshift.data.flows.equations import Burgers, Channel, KuramotoSivashinsky, NavierStokes
from trueshift.data.flows.solver import ETDRK4

SMALL = [
    KuramotoSivashinsky(20.0, points=32),
    Burgers(0.2, points=32),
    NavierStokes(0.02, points=16),
    NavierStokes(0.02, growth=0.3, drag=0.1, points=16),
    Channel(points=(8, 16)),
]
NAMES = ["kuramoto_sivashinsky", "burgers", "navier_stokes", "forced", "channel"]
ALL = pytest.mark.parametrize("equation", SMALL, ids=NAMES)


def grid(n, length=2 * math.pi):
    return torch.arange(n, dtype=torch.float64) * length / n


def start(equation, num=2):
    sources = [torch.Generator().manual_seed(seed) for seed in range(num)]
    return torch.stack([equation.initial(source) for source in sources])


def close(a, b, tolerance):
    return torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def test_burgers_is_the_solution_of_cole_and_hopf():
    equation = Burgers(0.1, points=128, dt=0.02)
    x = grid(128)

    def exact(t):  # -2 nu phi_x / phi of a solution phi of the heat equation
        wave = math.exp(-0.1 * t)
        return 0.2 * wave * x.sin() / (1.2 + wave * x.cos())

    (states,) = solve(equation, exact(0.0)[None], num_states=3, interval=50)
    assert float((exact(2.0) - exact(0.0)).abs().max()) > 0.1
    close(states[2], exact(2.0), 1e-8)


def test_a_taylor_green_vortex_decays():
    x = grid(16)
    vortex = (2 * x[:, None]).cos() * x.cos()
    (states,) = solve(NavierStokes(0.05, drag=0.1, points=16), vortex[None], 2, interval=25)
    close(states[1], vortex * math.exp(-(0.05 * 5 + 0.1) * 25 * 0.04), 1e-12)


def test_forced_waves_grow_and_others_decay():
    x = grid(32)
    equation = NavierStokes(0.01, growth=0.3, band=(3.0, 5.0), points=32)
    for k, rate in ((2, -0.04), (4, 0.3 - 0.16)):
        wave = (k * x).cos()[:, None].expand(32, 32)
        (states,) = solve(equation, wave[None], 2, interval=25)
        close(states[1], wave * math.exp(rate), 1e-12)


def test_the_linear_part_of_kuramoto_sivashinsky():
    equation = KuramotoSivashinsky(2 * math.pi / 0.7, points=32)
    wave = 1e-8 * (0.7 * grid(32, 2 * math.pi / 0.7)).cos()
    (states,) = solve(equation, wave[None], 2, interval=8)
    close(states[1] / 1e-8, wave * math.exp(0.7**2 - 0.7**4) / 1e-8, 1e-6)


def test_a_dye_at_rest_diffuses_and_walls_let_nothing_through():
    equation = Channel(0.01, speed=0.0, points=(16, 32))
    y = (torch.arange(16, dtype=torch.float64)[:, None] + 0.5) / 16
    mode = (3 * math.pi * y).cos() * (2 * math.pi * grid(32, 2.0)).cos()
    (states,) = solve(equation, mode[None], 2, interval=50)
    close(states[1], mode * math.exp(-0.01 * math.pi**2 * (9 + 4)), 1e-12)


def test_a_dye_in_the_channel_follows_the_exponential_of_its_operator():
    n, diffusion, k = 16, 0.02, math.pi
    equation = Channel(diffusion, points=(n, 16))
    place = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    cosines = (math.pi * place[:, None] * torch.arange(n)).cos()  # (place, mode)
    rates = diffusion * ((math.pi * torch.arange(n, dtype=torch.float64)) ** 2 + k**2)
    diffuse = -cosines @ torch.diag(rates) @ cosines.inverse()
    flow = torch.diag((math.pi * place).sin() ** 2)
    after = torch.matrix_exp(diffuse - 1j * k * flow) @ cosines[:, 1].to(torch.complex128)
    wave = torch.exp(1j * k * grid(16, 2.0))
    (states,) = solve(equation, (cosines[:, 1:2] * wave.real)[None], 2, interval=50)
    close(states[1], (after[:, None] * wave).real, 1e-5)


@ALL
def test_order_four_in_time(equation):
    begin = start(equation, 1)
    solvers = {n: ETDRK4(equation.linear(), equation.nonlinear, 1.0 / n) for n in (32, 64, 256)}
    ends = {}
    for n, solver in solvers.items():
        v = equation.to_modes(begin)
        for _ in range(n):
            v = solver.step(v)
        ends[n] = equation.to_values(v)
    coarse, fine = ((ends[n] - ends[256]).norm() for n in (32, 64))
    assert 3.6 < math.log2(coarse / fine) < 4.8


def test_coefficients_do_not_cancel():
    z = torch.tensor([0.0, -1e-6, -1e-2, -50.0], dtype=torch.float64)
    solver = ETDRK4(z, torch.zeros_like, dt=1.0)
    close(solver.first[:2], torch.full((2,), 1 / 6, dtype=torch.float64), 1e-6)
    close(solver.middle[:2], torch.full((2,), 1 / 3, dtype=torch.float64), 1e-6)
    whole = solver.first + 2 * solver.middle + solver.last  # (exp(z) - 1) / z
    close(whole[2:], torch.expm1(z[2:]) / z[2:], 1e-14)


@ALL
def test_the_mean_stays(equation):
    begin = start(equation) + (0 if isinstance(equation, NavierStokes) else 0.5)
    states = solve(equation, begin, 5)
    means = states.flatten(2).mean(2)
    close(means, means[:, :1].expand_as(means), 1e-12)


def test_advection_keeps_energy_and_enstrophy():
    equation = NavierStokes(points=16)
    v = equation.to_modes(start(equation)) * equation.unaliased
    change = equation.to_values(equation.nonlinear(v))
    stream = equation.to_values(v / equation.squares.clamp(min=1.0))
    assert float(change.norm()) > 1
    for kept in (equation.to_values(v), stream):
        close((kept * change).mean((1, 2)), torch.zeros(2, dtype=torch.float64), 1e-13)


@ALL
def test_the_solver_commutes_with_shifts_along_axes_that_wrap(equation):
    begin = start(equation)
    axes = [axis for axis, wraps in zip(equation.axes, equation.periodic, strict=True) if wraps]
    shifts = [3, 5][: len(axes)]
    moved = solve(equation, begin.roll(shifts, axes), 6)
    assert float((moved - solve(equation, begin, 6)).abs().max()) > 0.01
    close(moved, solve(equation, begin, 6).roll(shifts, axes), 1e-9)


@pytest.mark.parametrize("name", EQUATIONS)
def test_a_trajectory_depends_on_its_own_seed_only(name):
    equation = EQUATIONS[name]
    if equation.warm_up > 100:  # long, and not what this is about
        equation = {"forced_navier_stokes": SMALL[3], "kuramoto_sivashinsky": SMALL[0]}[name]
    both = trajectories(equation, [4, 5], 2, interval=2)
    assert torch.equal(both, trajectories(equation, [4, 5], 2, interval=2))
    close(both[1:], trajectories(equation, [5], 2, interval=2), 1e-9)
    assert not torch.allclose(both[0], both[1])


def test_errors_name_the_rule():
    with pytest.raises(ValueError, match=r"start must have shape \(B, 32\), got \(1, 30\)"):
        solve(SMALL[1], torch.zeros(1, 30), 2)
    with pytest.raises(FloatingPointError, match=r"Burgers blew up before state 1. Pass a smaller"):
        solve(Burgers(0.2, points=32), 1e30 * start(SMALL[1]), 2)
    with pytest.raises(ValueError, match="dt must be positive"):
        ETDRK4(torch.zeros(1), torch.zeros_like, dt=0.0)
