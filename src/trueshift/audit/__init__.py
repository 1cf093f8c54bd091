"""How much a network changes when its input moves, and where inside it breaks; numbers only."""

from trueshift.audit.layers import LayerError
from trueshift.audit.margins import Choice, Margin
from trueshift.audit.measure import audit
from trueshift.audit.onnx import load_onnx
from trueshift.audit.results import AuditResult, Example, Measurement, Spread
from trueshift.audit.selection import LayerSelection, Outcome, Selection, diagnose_selectors

__all__ = [
    "AuditResult",
    "Choice",
    "Example",
    "LayerError",
    "LayerSelection",
    "Margin",
    "Measurement",
    "Outcome",
    "Selection",
    "Spread",
    "audit",
    "diagnose_selectors",
    "load_onnx",
]
