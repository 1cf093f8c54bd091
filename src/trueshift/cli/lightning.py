"""``trueshift fit``, ``validate``, ``test`` and ``predict``: LightningCLI on one YAML per run."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trueshift._torchvision import import_torchvision

import_torchvision()  # before Lightning, which imports it

from lightning.fabric.utilities.exceptions import MisconfigurationException  # noqa: E402
from lightning.pytorch import LightningDataModule, Trainer  # noqa: E402
from lightning.pytorch.callbacks import (  # noqa: E402
    Callback,
    LearningRateMonitor,
    ModelCheckpoint,
    RichProgressBar,
)
from lightning.pytorch.cli import (  # noqa: E402
    ArgsType,
    LightningArgumentParser,
    LightningCLI,
    SaveConfigCallback,
)
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger  # noqa: E402
from lightning.pytorch.utilities import rank_zero_only  # noqa: E402

from trueshift.cli.runs import (  # noqa: E402
    CHECKPOINTS,
    RUN_FOLDER,
    Asked,
    drop_unstarted,
    expand,
    set_aside,
)
from trueshift.report.html import write_html  # noqa: E402
from trueshift.training import (  # noqa: E402
    AuditTested,
    NetworkModule,
    PlainProgress,
    SaveOnInterrupt,
    WritePredictions,
    WriteResults,
)

_RUN_HELP = (
    "Pass --ckpt FILE, a checkpoint of trueshift fit; the configuration saved next to it is used."
    " Or pass --config RECIPE --ckpt FILE, a file that trueshift.save wrote."
)
HELP = {
    "fit": (
        "Train a network. Start from a recipe: trueshift fit --config recipes/....yaml, and change"
        " single settings after it: --model.lr 0.05. Continue a stopped run: trueshift fit --resume"
        " RUN_FOLDER. Runs are kept in runs/<recipe>/<n>, or below another folder: --runs DIR."
    ),
    "validate": f"Validate a checkpoint. {_RUN_HELP}",
    "test": (
        "Test a checkpoint: accuracy or mIoU, and consistency under shifts. Writes results.json to"
        " the run folder, and report.html, which shows what shifts do to a few of the images"
        f" (--no-report leaves it out). {_RUN_HELP}"
    ),
    "predict": f"Predict labels or masks and write them to the run folder. {_RUN_HELP}",
}
VERBS = tuple(HELP)


def main(verb: str, argv: Sequence[str]) -> int:
    """Run one verb.

    Args:
        verb: ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``.
        argv: What follows it on the command line.

    Returns:
        The exit code: 0 done, 2 wrong usage, 130 interrupted.
    """
    if verb == "fit" and not argv:
        raise ValueError("fit: pass a recipe, --config FILE. `trueshift recipes` lists them.")
    asked = expand(verb, list(argv))
    run = _Run(asked)
    _quiet()
    os.environ[RUN_FOLDER] = str(asked.folder)
    try:
        _CLI(run, [verb, *asked.words])
    except SystemExit as stop:
        if run.on_interrupt.asked:
            print(run.how_to_resume(), file=sys.stderr)
            return 130
        return stop.code if isinstance(stop.code, int) else 2
    except MisconfigurationException as error:
        raise ValueError(str(error)) from error
    finally:
        del os.environ[RUN_FOLDER]
        if verb == "fit" and _is_first_process():
            drop_unstarted(asked.folder)
    if _is_first_process():
        _say_what_next(verb, run)
    return 0


class _Run:
    """The folder of a run and how to continue it."""

    def __init__(self, asked: Asked) -> None:
        self.folder = asked.folder
        self.on_interrupt = SaveOnInterrupt(self.folder / CHECKPOINTS)
        self.audit = AuditTested() if asked.report else None

    def checkpoint(self, name: str) -> Path:
        return self.folder / CHECKPOINTS / f"{name}.ckpt"

    def how_to_resume(self) -> str:
        if not self.checkpoint("last").is_file():
            return "stopped before the first checkpoint: start again to train."
        return f"stopped. To continue: trueshift fit --resume {shlex.quote(str(self.folder))}"


def _say_what_next(verb: str, run: _Run) -> None:
    last = run.checkpoint("last")  # not the best one, which was chosen on the validation data
    if verb == "fit" and last.is_file():
        print(f"run folder: {run.folder}")
        print(f"to test it: trueshift test --ckpt {shlex.quote(str(last))}")
    if verb in ("test", "predict") and run.folder.is_dir():
        print(f"written to: {run.folder}")
    if run.audit is not None and run.audit.result is not None:
        path = run.folder / "report.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        set_aside(path)
        print(f"report, to open in a browser: {write_html(run.audit.result, path)}")


def _quiet() -> None:
    """Leave out what Lightning says on every run, and warnings that do not apply here."""
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.seed"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*LeafSpec.*",
        "(?s).*(JsonargparseDeprecation|will be removed in v5)",  # what LightningCLI calls
        ".*does not have many workers.*",
        ".*smaller than the logging interval.*",
        ".*your dataloader is not resumable.*",  # StepSeeds skips what was seen
        ".*callbacks used to create the checkpoint.*",  # a test needs none
        ".*exists and is not empty.*",  # a resumed run goes on in its folder
    ):
        warnings.filterwarnings("ignore", message)


def _help(verb: str) -> dict[str, str]:
    usage = f"trueshift {verb} [--config FILE] [--KEY VALUE ...]"
    return {"description": HELP[verb], "usage": usage}


def _is_first_process() -> bool:
    return getattr(rank_zero_only, "rank", 0) == 0


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


class _CLI(LightningCLI):
    """LightningCLI with our run folder, loggers, checkpoints and progress."""

    def __init__(self, run: _Run, words: list[str]) -> None:
        self.run = run
        super().__init__(
            model_class=NetworkModule,
            datamodule_class=LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_callback=SaveConfigCallback if words[0] == "fit" else None,
            save_config_kwargs={"overwrite": True},
            seed_everything_default=0,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            parser_kwargs={"prog": "trueshift", **{verb: _help(verb) for verb in VERBS}},
            args=words,
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse our own words; the process's are another matter."""
        self.config = parser.parse_args(args)  # type: ignore[arg-type]

    def _parse_ckpt_path(self) -> None:
        """Take the configuration from YAML only: a checkpoint must not override what is asked."""

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        """Never unpickle a checkpoint, unless that is asked for."""
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        if kwargs["weights_only"] is None:
            kwargs["weights_only"] = True
        return kwargs

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer with what every run has; the configuration comes first."""
        config = self.config_init[self.subcommand].trainer
        if self.subcommand == "fit" and config.logger in (None, True):
            kwargs["logger"] = self._loggers()
        elif self.subcommand != "fit":
            kwargs["logger"] = False  # a test does not touch the curves of the training
            kwargs["enable_checkpointing"] = False
        if config.default_root_dir is None:
            kwargs["default_root_dir"] = self.run.folder
        kwargs["callbacks"] = [*_as_list(config.callbacks), *self._callbacks(config)]
        if config.enable_model_summary is None:
            kwargs["enable_model_summary"] = False
        try:
            return super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, ValueError) as error:  # Lightning's, on a wrong value
            raise ValueError(f"trainer: {error}") from error

    def _loggers(self) -> list[Logger]:
        folder = self.run.folder
        if _is_first_process():
            folder.mkdir(parents=True, exist_ok=True)
            set_aside(folder / "metrics.csv")  # Lightning's CSV logger would delete it
        place: dict[str, Any] = {"save_dir": folder.parent.parent, "name": folder.parent.name}
        return [
            CSVLogger(**place, version=folder.name),
            TensorBoardLogger(**place, version=folder.name, default_hp_metric=False),
        ]

    def _callbacks(self, config: Any) -> list[Callback]:
        given = _as_list(config.callbacks)
        callbacks: list[Callback] = []
        if config.enable_progress_bar in (None, True):
            callbacks.append(RichProgressBar() if sys.stdout.isatty() else PlainProgress())
        if self.subcommand == "test":
            self._dump_config()
            callbacks.append(WriteResults(self.config_dump, self.run.folder))
            callbacks += [] if self.run.audit is None else [self.run.audit]
        if self.subcommand == "predict":
            callbacks.append(WritePredictions(self.run.folder))
        if self.subcommand != "fit" or config.fast_dev_run:
            return callbacks
        callbacks += [LearningRateMonitor("epoch"), self.run.on_interrupt]
        if not any(isinstance(callback, ModelCheckpoint) for callback in given):
            callbacks += self._checkpoints(config.limit_val_batches != 0)
        return callbacks

    def _checkpoints(self, validates: bool) -> list[Callback]:
        """Save every epoch to go on from, and the one that validated best.

        Lightning's ``save_last`` would only copy the best one.
        """
        common: dict[str, Any] = {
            "dirpath": (self.run.folder / CHECKPOINTS).resolve(),
            "save_on_train_epoch_end": True,
            "enable_version_counter": False,
        }
        best = {"filename": "best", "monitor": self.model.monitor, "mode": "max"}
        last = ModelCheckpoint(filename="last", **common)
        return [ModelCheckpoint(**best, **common), last] if validates else [last]
