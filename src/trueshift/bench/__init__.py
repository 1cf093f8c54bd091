"""Speed and memory of whole networks, compared with plain ones and those of other packages."""

from trueshift.bench.models import NETWORKS, ROWS, NotAvailable, Variant, Workload, build
from trueshift.bench.run import DTYPES, LAYOUTS, MEASURES, Bench, Measured, Setting, measure

__all__ = [
    "DTYPES",
    "LAYOUTS",
    "MEASURES",
    "NETWORKS",
    "ROWS",
    "Bench",
    "Measured",
    "NotAvailable",
    "Setting",
    "Variant",
    "Workload",
    "build",
    "measure",
]
