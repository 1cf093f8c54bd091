import sys

import pytest

from trueshift.cli.progress import Progress


@pytest.mark.parametrize(
    ("every", "printed"), [(0, ["a: one", "a: two", "b: one"]), (60, ["b: one"])]
)
def test_without_a_terminal_lines_are_printed_when_they_are_new_and_due_or_last(
    every, printed, capsys
):
    with Progress("a", "b", every_seconds=every) as progress:
        for task, share, text in (("a", 0.1, "one"), ("a", 0.2, "one"), ("a", None, "two")):
            progress(task, share, text)
        progress("b", 1.0, "one")
    said = capsys.readouterr()
    assert said.err.splitlines() == printed
    assert said.out == ""


def test_a_terminal_shows_bars(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with Progress("first", "second") as progress:
        progress("first", 0.5, "half of it")
        progress("first", 1.0, "done")
        progress("second", None, "no share known")
    said = capsys.readouterr()
    assert "first" in said.err
    assert "done" in said.err
    assert "no share known" in said.err
    assert said.out == ""
