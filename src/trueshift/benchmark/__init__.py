"""Speed and memory of whole networks, beside plain ones and those of other packages."""

from trueshift.benchmark.models import NETWORKS, ROWS, Network, NotAvailable, Row, build
from trueshift.benchmark.run import DTYPES, LAYOUTS, MEASURES, Bench, Measured, Setting, measure

__all__ = [
    "DTYPES",
    "LAYOUTS",
    "MEASURES",
    "NETWORKS",
    "ROWS",
    "Bench",
    "Measured",
    "Network",
    "NotAvailable",
    "Row",
    "Setting",
    "build",
    "measure",
]
