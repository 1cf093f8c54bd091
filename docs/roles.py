"""Shows names in docstrings as code: the site does not know Sphinx's roles."""

import re
from typing import Any

import griffe


class PlainRoles(griffe.Extension):
    """Turns a role such as ``:class:`` before a name into plain code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of every object that has one."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r":[a-z]+:`~?", "`", obj.docstring.value)
