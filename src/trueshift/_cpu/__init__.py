"""Kernels for CPUs, each registered for the formula that it computes faster.

Only this folder, ``_dispatch.py`` and ``exact.py`` ask about devices, memory formats, gradients and
sizes.
"""

from trueshift._cpu import copies, filters, maximum, sampling, scores, upsample

__all__ = ["copies", "filters", "maximum", "sampling", "scores", "upsample"]
