"""Two scenes in minutes on a CPU: pictures that move, and a flow on a ring."""

from trueshift.quickstart.results import COLUMNS, table, write_all
from trueshift.quickstart.run import quickstart, read_budget
from trueshift.quickstart.scenes import SCENES, Budget, Run, runs

__all__ = [
    "COLUMNS",
    "SCENES",
    "Budget",
    "Run",
    "quickstart",
    "read_budget",
    "runs",
    "table",
    "write_all",
]
