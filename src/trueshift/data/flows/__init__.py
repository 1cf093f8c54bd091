"""Flows on periodic domains: equations, their solver, and the data module."""

from trueshift.data.flows.equations import EQUATIONS, Equation
from trueshift.data.flows.module import Flows
from trueshift.data.flows.trajectories import solve, trajectories

__all__ = ["EQUATIONS", "Equation", "Flows", "solve", "trajectories"]
