"""``trueshift completion``: tab completion for the shell."""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "tcsh")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.description = (
        "Print a completion script. For bash: trueshift completion bash >"
        " ~/.local/share/bash-completion/completions/trueshift"
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell you use")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    try:
        import shtab
    except ImportError as error:
        raise ImportError("completion needs shtab: pip install shtab.") from error
    from trueshift.cli.main import full_parser

    print(shtab.complete(full_parser(), args.shell))
    return 0
