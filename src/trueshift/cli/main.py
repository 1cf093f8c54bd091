"""The command ``trueshift``: find the verb, run it, turn errors into exit codes."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence

from trueshift import __version__
from trueshift.cli.errors import is_users
from trueshift.cli.verbs import COMMANDS, LIGHTNING, import_verb
from trueshift.memory import keep_memory


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments; by default those of the process.

    Returns:
        The exit code: 0 done, 1 a check failed, 2 wrong usage or input, 130 interrupted.

    Raises:
        Exception: Whatever is not the user's to fix (see :func:`trueshift.cli.errors.is_users`);
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
    for name, text in COMMANDS.items():
        sub = verbs.add_parser(name, help=text, description=text)
        if name in verbs_to_configure:
            module = import_verb(name)
            module.configure(sub)
            sub.set_defaults(run=module.run)
    return parser
