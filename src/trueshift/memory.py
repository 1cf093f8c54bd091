"""Keep the memory of a process, so that large maps need not ask the system for it again."""

from __future__ import annotations

import ctypes
import os
import platform

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # names of malloc.h
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")


def keep_memory() -> bool:
    """Ask the C library to keep freed memory for this process instead of returning it.

    By default glibc gives every block above 32 MB back to the system when it is freed, and the
    next map of that size needs pages that the system must clear first. On a CPU that can
    take longer than to compute the map. The command line does this for itself; call it at the
    start of your own training script. The process then holds what it needed at its peak until it
    ends.

    Returns:
        Whether it was done: not with another C library than glibc, and not where the environment
        already says how memory is to be handled (``MALLOC_MMAP_THRESHOLD_``, ``GLIBC_TUNABLES``).
    """
    if platform.libc_ver()[0] != "glibc" or _is_set_by_user():
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(_MMAP_MAX, 0) and libc.mallopt(_TRIM_THRESHOLD, -1))


def _is_set_by_user() -> bool:
    tuned = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    return tuned or any(name in os.environ for name in _SETTINGS)
