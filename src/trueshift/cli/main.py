"""The command ``trueshift``: find the verb, run it, turn errors into exit codes."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from trueshift import __version__


class Command(NamedTuple):
    """A verb: the module that holds ``configure(parser)`` and ``run(args)``, and one line of help.

    Modules are imported only when their verb is called, so that ``trueshift --help`` is quick.
    """

    module: str
    help: str


COMMANDS: dict[str, Command] = {}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments; by default those of the process.

    Returns:
        The exit code: 0 done, 1 a check failed, 2 wrong usage or input, 130 interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    verb = next((word for word in words if word in COMMANDS), None)
    parser = _parser(verb)
    args = parser.parse_args(words)
    if verb is None:
        parser.print_help()
        return 2
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except (ImportError, OSError, TypeError, ValueError) as error:
        if args.debug:
            raise
        print(f"trueshift {verb}: error: {error}", file=sys.stderr)
        return 2


def _parser(verb: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trueshift", description="Networks that are truly invariant and equivariant to shifts."
    )
    parser.add_argument("--version", action="version", version=f"trueshift {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of errors")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = verbs.add_parser(name, help=command.help, description=command.help)
        if name == verb:
            module = importlib.import_module(command.module)
            module.configure(sub)
            sub.set_defaults(run=module.run)
    return parser
