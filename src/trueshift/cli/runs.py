"""Where runs are kept: folders that are counted up."""

from __future__ import annotations

from pathlib import Path


def new_folder(root: Path) -> Path:
    """Return the first folder ``root/0``, ``root/1``, ... after all that exist."""
    taken = [int(path.name) for path in root.glob("*") if path.name.isdigit()]
    return root / str(max(taken, default=-1) + 1)
