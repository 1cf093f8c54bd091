"""Which errors are the user's to fix, and which are bugs."""

from __future__ import annotations

import dis
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


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
