"""Networks as files for other runtimes, checked against torch."""

from trueshift.export.check import Check, check
from trueshift.export.write import DYNAMIC, FORMATS, Exported, export, load

__all__ = ["DYNAMIC", "FORMATS", "Check", "Exported", "check", "export", "load"]
