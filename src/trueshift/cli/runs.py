"""Run folders: their numbers, their files, and the data that a run was trained on."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any


def new_folder(root: Path) -> Path:
    """Return the first folder ``root/0``, ``root/1``, ... after all that exist."""
    taken = [int(path.name) for path in root.glob("*") if path.name.isdigit()]
    return root / str(max(taken, default=-1) + 1)


def drop_unstarted(folder: Path) -> None:
    """Remove the folder of a run that could not start: it holds nothing but an empty log."""
    files = list(folder.glob("*"))
    if folder.is_dir() and all(path.name.startswith("events.out.") for path in files):
        for path in files:
            path.unlink()
        folder.rmdir()


def set_aside(path: Path) -> None:
    """Rename a file, if it is there, to one with a number: ``a.csv`` becomes ``a.0.csv``."""
    if path.is_file():
        number = len(list(path.parent.glob(f"{path.stem}.*{path.suffix}")))
        path.rename(path.with_name(f"{path.stem}.{number}{path.suffix}"))


def data_of(checkpoint: Path) -> tuple[type[Any], dict[str, Any]]:
    """Return the data module that a checkpoint was trained with, and its arguments."""
    config = checkpoint.parent.parent / "config.yaml"
    if not config.is_file():
        raise FileNotFoundError(f"no {config}: pass a checkpoint that lies in its run folder.")
    import yaml

    data = yaml.safe_load(config.read_text()).get("data") or {}
    if "class_path" not in data:
        raise ValueError(f"{config} does not name the data: pass a checkpoint of trueshift fit.")
    module, _, name = data["class_path"].rpartition(".")
    return getattr(importlib.import_module(module), name), data.get("init_args") or {}
