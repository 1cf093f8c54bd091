"""The command ``trueshift``: find the verb, run it, turn errors into exit codes."""

from __future__ import annotations

import argparse
import dis
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from trueshift import __version__
from trueshift.memory import keep_memory

COMMANDS = {
    "quickstart": "see in minutes how shifts change what networks say",
    "fit": "train a network from a recipe",
    "validate": "validate a checkpoint on the validation data",
    "test": "test a checkpoint: accuracy and consistency",
    "sweep": "train and test recipes with several seeds",
    "predict": "predict labels or masks with a checkpoint",
    "audit": "measure how much a network changes when images move",
    "demo": "drag an image in the browser and see networks answer",
    "figure": "draw masks, components and filters of checkpoints",
    "norms": "check whether learned selectors have learned to choose",
    "table": "print results next to the paper's",
    "bench": "measure parameters, speed and memory of networks",
    "export": "write a network as an ONNX or pt2 file and check it",
    "data": "download a data set and check it",
    "recipes": "list or copy the recipes",
    "completion": "print a script for tab completion",
}
LIGHTNING = ("fit", "validate", "test", "predict")  # LightningCLI parses their arguments
_PACKAGE = Path(__file__).parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments; by default those of the process.

    Returns:
        The exit code: 0 done, 1 a check failed, 2 wrong usage or input, 130 interrupted.

    Raises:
        Exception: Whatever is not the user's to fix (see :func:`is_users`);
            Python then prints the traceback and exits with code 1.
    """
    if argv is None:  # a process of our own
        keep_memory()
    words = list(sys.argv[1:] if argv is None else argv)
    debug = words[:1] == ["--debug"]
    words = words[1:] if debug else words
    verb = words[0] if words and words[0] in COMMANDS else None
    try:
        if verb in LIGHTNING:
            return int(import_verb(verb).main(verb, words[1:]))
        parser = _parser(verb)
        args = parser.parse_args(words)
        if verb is None:
            parser.print_help()
            return 2
        return int(args.run(args))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if debug or not is_users(error):
            raise
        message = str(error).removeprefix(f"{verb}: ")
        print(f"trueshift {verb}: error: {message}", file=sys.stderr)
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
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show versions and devices, for bug reports"
    )
    parser.add_argument("--debug", action="store_true", help="show the full traceback of errors")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, text in COMMANDS.items():
        sub = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name in verbs_to_configure:
            module = import_verb(name)
            module.configure(sub)
            sub.set_defaults(run=module.run)
    return parser


def import_verb(verb: str) -> ModuleType:
    """Import the module of a verb; only these import Lightning, so ``--help`` stays quick.

    It holds ``configure(parser)`` and ``run(args)``; that of :data:`LIGHTNING` holds
    ``main(verb, words)``.
    """
    match verb:
        case "quickstart":
            from trueshift.cli import quickstart

            return quickstart
        case "demo":
            from trueshift.cli import demo

            return demo
        case verb if verb in LIGHTNING:
            from trueshift.cli import lightning

            return lightning
    from trueshift.cli import (
        audit,
        bench,
        completion,
        data,
        export,
        figure,
        norms,
        recipes,
        sweep,
        table,
    )

    modules = (audit, bench, completion, data, export, figure, norms, recipes, sweep, table)
    return {module.__name__.rpartition(".")[2]: module for module in modules}[verb]


def is_users(error: Exception) -> bool:
    """Whether an error says what is wrong with a command, so that one line is enough.

    That is a ``ValueError`` or an ``ImportError`` that a ``raise`` statement of this package
    raised; a package that is not installed; and any ``OSError``: a file, a folder or a connection
    is not as the command needs it.
    Anything else is a bug, here or in a network that the user passed, and needs its traceback. A
    ``TypeError`` is one because no word of a command line can have a wrong type, and a
    ``ValueError`` that some operation raised because nobody has checked its operands.

    Args:
        error: An exception that was caught.
    """
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return error.name.partition(".")[0] != "trueshift"
    if not isinstance(error, ValueError | ImportError) or error.__traceback__ is None:
        return isinstance(error, OSError)
    place = error.__traceback__
    while place.tb_next is not None:
        place = place.tb_next
    code = place.tb_frame.f_code
    is_raise_statement = dis.opname[code.co_code[place.tb_lasti]] == "RAISE_VARARGS"
    return is_raise_statement and Path(code.co_filename).is_relative_to(_PACKAGE)
