"""The command ``trueshift``: find the verb, run it, turn errors into exit codes."""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
from collections.abc import Sequence
from typing import NamedTuple

from trueshift import __version__
from trueshift.memory import keep_memory


class Command(NamedTuple):
    """A verb: the module that holds ``configure(parser)`` and ``run(args)``, and one line of help.

    Modules are imported only when their verb is called, so that ``trueshift --help`` is quick.
    """

    module: str
    help: str


COMMANDS = {
    "quickstart": Command(
        "trueshift.cli.quickstart", "train six small networks on built-in data and compare them"
    ),
    "fit": Command("trueshift.cli.lightning", "train a network from a recipe"),
    "validate": Command("trueshift.cli.lightning", "validate a checkpoint"),
    "test": Command("trueshift.cli.lightning", "test a checkpoint: accuracy and consistency"),
    "sweep": Command("trueshift.cli.sweep", "train and test recipes with several seeds"),
    "predict": Command("trueshift.cli.lightning", "predict labels or masks"),
    "audit": Command("trueshift.cli.audit", "see how much a network changes when images move"),
    "demo": Command("trueshift.cli.demo", "drag an image in the browser, see two networks answer"),
    "figure": Command("trueshift.cli.figure", "draw masks, components and filters of checkpoints"),
    "norms": Command("trueshift.cli.norms", "see whether learned selectors choose"),
    "table": Command("trueshift.cli.table", "put results beside the paper's"),
    "bench": Command("trueshift.cli.bench", "parameters, speed and memory of whole networks"),
    "export": Command("trueshift.cli.export", "write a network as ONNX or pt2, and check the file"),
    "data": Command("trueshift.cli.data", "get a data set and check it"),
    "recipes": Command("trueshift.cli.recipes", "list or copy the recipes"),
    "completion": Command("trueshift.cli.completion", "print tab completion for a shell"),
}
LIGHTNING = ("fit", "validate", "test", "predict")  # LightningCLI parses their arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments; by default those of the process.

    Returns:
        The exit code: 0 done, 1 a check failed, 2 wrong usage or input, 130 interrupted.
    """
    if argv is None:  # a process of our own
        keep_memory()
    words = list(sys.argv[1:] if argv is None else argv)
    debug = words[:1] == ["--debug"]
    words = words[1:] if debug else words
    verb = words[0] if words and words[0] in COMMANDS else None
    try:
        if verb in LIGHTNING:
            module = importlib.import_module(COMMANDS[verb].module)
            return int(module.main(verb, words[1:]))
        parser = _parser(verb)
        args = parser.parse_args(words)
        if verb is None:
            parser.print_help()
            return 2
        return int(args.run(args))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except (ImportError, OSError, TypeError, ValueError) as error:
        if debug:
            raise
        print(f"trueshift {verb}: error: {error}", file=sys.stderr)
        return 2


class _Version(argparse.Action):
    """Print what a bug report needs."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import torch

        device = torch.accelerator.current_accelerator()
        print(f"trueshift {__version__}, Python {platform.python_version()}, {platform.platform()}")
        print(
            f"torch {torch.__version__}, {torch.get_num_threads()} threads,"
            f" accelerator: {device or 'none'}"
        )
        parser.exit()


def full_parser() -> argparse.ArgumentParser:
    """Return the parser with the arguments of every verb that argparse parses."""
    return _parser(*(name for name in COMMANDS if name not in LIGHTNING))


def _parser(*verbs_to_configure: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trueshift", description="Networks that are truly invariant and equivariant to shifts."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show versions and devices")
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of errors")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = verbs.add_parser(name, help=command.help, description=command.help)
        if name in verbs_to_configure:
            module = importlib.import_module(command.module)
            module.configure(sub)
            sub.set_defaults(run=module.run)
    return parser
