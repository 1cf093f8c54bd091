"""Run folders, and our short forms on the command line that name them."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, NamedTuple

RUNS = Path("runs")
CONFIG, CHECKPOINTS = "config.yaml", "checkpoints"
RUN_FOLDER = "TRUESHIFT_RUN_FOLDER"  # tells the processes that Lightning starts


class Asked(NamedTuple):
    """What a command line asks for: LightningCLI's words, the run folder, a report or none."""

    words: list[str]
    folder: Path
    report: bool


def expand(verb: str, words: list[str]) -> Asked:
    """Replace our short forms by LightningCLI's words, and find the run folder.

    Args:
        verb: ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``.
        words: What follows it; left as it is.

    Returns:
        What is asked for.
    """
    words = list(words)
    root = Path(_take(words, "--runs") or RUNS)
    resume, checkpoint = _take(words, "--resume"), _take(words, "--ckpt")
    report = "--no-report" not in words
    if not report and verb != "test":
        raise ValueError("--no-report is for trueshift test; other commands write no report.")
    words = [word for word in words if word != "--no-report"]
    if resume is not None and verb != "fit":
        raise ValueError("--resume is for trueshift fit. Pass --ckpt FILE instead.")
    if checkpoint is not None and verb == "fit":
        raise ValueError(
            "--ckpt is for validate, test and predict. To continue a run, pass --resume RUN_FOLDER."
        )
    if resume is not None:
        checkpoint = str(Path(resume) / CHECKPOINTS / "last.ckpt")
    if checkpoint is not None:
        # However it was trained, it is tested in float32, unless later words say otherwise.
        precision = [] if verb == "fit" else ["--trainer.precision", "32-true"]
        words = [*_configuration(checkpoint, words), *precision, *words]
    return Asked(words, _find_folder(words, root, new=verb == "fit" and resume is None), report)


def _configuration(checkpoint: str, words: list[str]) -> list[str]:
    """Return the words that load a checkpoint with the configuration saved next to it."""
    if not Path(checkpoint).is_file():
        raise FileNotFoundError(f"no checkpoint {checkpoint}.")
    if Path(checkpoint).suffix == ".safetensors":
        recipe = _take(words, "--config") or _take(words, "-c")
        if recipe is None:
            raise ValueError(
                f"{checkpoint} holds a network, but not its data: pass its recipe, --config FILE."
            )
        return ["--config", recipe, "--model.weights", checkpoint]
    config = _folder_of(checkpoint) / CONFIG
    if not config.is_file():
        raise FileNotFoundError(
            f"no {config} next to {checkpoint}, so the network is not known."
            f" Pass --config FILE --ckpt_path {checkpoint}."
        )
    return ["--config", str(config), "--ckpt_path", checkpoint]


def _find_folder(words: list[str], root: Path, new: bool) -> Path:
    """Return the folder of a run: ``new``, or that of the checkpoint."""
    if RUN_FOLDER in os.environ:  # a process that Lightning started in addition to the first
        return Path(os.environ[RUN_FOLDER])
    checkpoint = _last_value(words, "--ckpt_path")
    if checkpoint not in (None, "null") and not new:
        return _folder_of(str(checkpoint))
    config = _last_value(words, "--config") or _last_value(words, "-c")
    runs = root / (_recipe_name(Path(config)) if config else "run")
    return new_folder(runs)


def _folder_of(checkpoint: str) -> Path:
    folder = Path(checkpoint).parent
    return folder.parent if folder.name == CHECKPOINTS else folder


def _recipe_name(config: Path) -> Path:
    """Return ``cifar10/resnet18_lps`` for ``recipes/cifar10/resnet18_lps.yaml``, else the stem."""
    parts = config.with_suffix("").parts
    if "recipes" in parts[:-1]:
        return Path(*parts[len(parts) - parts[::-1].index("recipes") :])
    return Path(parts[-1])


def _take(words: list[str], option: str) -> str | None:
    """Remove an option and its value from the words and return the value."""
    for place, word in enumerate(words):
        if word.startswith(f"{option}="):
            return words.pop(place).partition("=")[2]
        if word == option:
            if place + 1 == len(words):
                raise ValueError(f"{option} needs a value.")
            words.pop(place)
            return words.pop(place)
    return None


def _last_value(words: list[str], option: str) -> str | None:
    rest, value = list(words), None
    while (taken := _take(rest, option)) is not None:
        value = taken
    return value


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
        raise FileNotFoundError(f"no {config}: pass a checkpoint inside its run folder.")
    import yaml

    data = yaml.safe_load(config.read_text()).get("data") or {}
    if "class_path" not in data:
        raise ValueError(f"{config} does not name the data: pass a checkpoint of trueshift fit.")
    module, _, name = data["class_path"].rpartition(".")
    return getattr(importlib.import_module(module), name), data.get("init_args") or {}
