import importlib
import subprocess
import sys

import pytest

import trueshift as ts
from trueshift.cli import recipes
from trueshift.cli.main import COMMANDS, LIGHTNING, import_verb, main


@pytest.fixture
def fail(monkeypatch):
    """Let ``trueshift recipes`` run something else."""

    def set_run(action):
        monkeypatch.setattr(recipes, "run", lambda args: action())

    return set_run


@pytest.mark.parametrize(
    "action",
    [
        lambda: ts.Sampling("lsp"),  # raised by a check of ours
        lambda: recipes.Path("no/such/file").read_text(),  # the system says so
        lambda: recipes._copy(recipes.Path(recipes.__file__), recipes.Path(recipes.__file__)),
        lambda: ts.models.load("no.safetensors"),
        lambda: importlib.import_module("no_such_package"),
    ],
)
def test_errors_of_the_user_are_one_line(fail, action, capsys):
    fail(action)
    assert main(["recipes"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("trueshift recipes: error: ")
    assert "Traceback" not in said
    with pytest.raises((ValueError, OSError, ImportError)):
        main(["--debug", "recipes"])


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (lambda: ts.Sampling(methd="lps"), TypeError),
        (lambda: ts.LPD("four"), TypeError),  # a check of ours, but a caller's bug
        (lambda: int("three"), ValueError),  # nobody checked it, here
        (lambda: recipes._copy(recipes.Path("a"), "b"), AttributeError),
        (lambda: importlib.import_module("trueshift.nothing"), ImportError),
        (lambda: ts.shifts.circular_shift(None, 1, 1), Exception),
        (lambda: ts.functional.polyphase_split.missing, AttributeError),
    ],
)
def test_bugs_show_their_traceback(fail, action, error):
    fail(action)
    with pytest.raises(error):
        main(["recipes"])


def test_an_operation_of_ours_that_fails_is_a_bug(fail):
    """``int("x")`` has no frame of its own: the innermost one is that of our file."""
    source = "def run():\n    return int('x')\n"
    names = {}
    exec(compile(source, recipes.__file__, "exec"), names)
    fail(names["run"])
    with pytest.raises(ValueError, match="invalid literal"):
        main(["recipes"])


def test_a_bug_exits_with_1_and_a_traceback(tmp_path):
    (tmp_path / "buggy.py").write_text("def build():\n    return len(3)\n")
    words = [sys.executable, "-m", "trueshift", "audit", "buggy:build"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "TypeError: object of type 'int' has no len()" in done.stderr


def test_every_verb_has_a_file_of_its_own():
    for verb in COMMANDS:
        module = import_verb(verb)
        assert module.__name__ == f"trueshift.cli.{'lightning' if verb in LIGHTNING else verb}"
        assert all(hasattr(module, name) for name in ("run", "configure")) or verb in LIGHTNING


def test_help_imports_no_verb(capsys):
    script = "import sys; from trueshift.cli.main import main; main([]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "train a network from a recipe" in done.stdout
    loaded = done.stdout.splitlines()[-1].split()
    assert not {"lightning", "torchmetrics", "trueshift.cli.audit"} & set(loaded)
