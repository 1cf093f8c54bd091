"""Tables and pictures from results; the only place that multiplies by 100."""

from trueshift.report.tables import build_table, find_results, render

__all__ = ["build_table", "find_results", "render"]
