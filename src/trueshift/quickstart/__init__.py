"""Six rows of the paper's first table on built-in data, in minutes on a CPU."""

from trueshift.quickstart.results import HEADS, table_rows, write_all
from trueshift.quickstart.rows import ROWS, TITLES, Budget
from trueshift.quickstart.run import quickstart, read_budget

__all__ = [
    "HEADS",
    "ROWS",
    "TITLES",
    "Budget",
    "quickstart",
    "read_budget",
    "table_rows",
    "write_all",
]
