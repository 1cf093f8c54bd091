"""Kernels for CPUs, each registered for the formula that it computes faster.

Only this folder, ``_dispatch.py`` and ``exact.py`` ask about devices, memory formats, gradients and
sizes.
"""

from trueshift._cpu import filters, maximum, sampling, scores, sums, upsample

__all__ = ["filters", "maximum", "sampling", "scores", "sums", "upsample"]
