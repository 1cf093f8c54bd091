import subprocess

import pytest

from trueshift.cli.main import COMMANDS, main
from trueshift.cli.recipes import recipes_folder


def test_lists_and_copies_recipes(tmp_path, capsys):
    assert main(["recipes", "cifar10/fast", "--copy", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert "cifar10/fast_lps.yaml  ResNet-9, LPS, on CIFAR-10" in listed
    assert "imagenet" not in listed
    original = recipes_folder() / "cifar10" / "fast_lps.yaml"
    assert (tmp_path / "cifar10" / "fast_lps.yaml").read_text() == original.read_text()


def test_never_overwrites_a_recipe(tmp_path, capsys):
    words = ["recipes", "cifar10/fast_lps.yaml", "--copy", str(tmp_path)]
    assert main(words) == 0
    assert main(words) == 2
    assert "exists. Remove it" in capsys.readouterr().err


def test_a_pattern_that_matches_nothing(capsys):
    assert main(["recipes", "no-such-thing"]) == 2
    assert "no recipe matches 'no-such-thing'" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_every_verb(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(verb in script for verb in COMMANDS)
    assert "--fail-under" in script


def test_bash_completes_a_verb(tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "trueshift.bash"
    script.write_text(capsys.readouterr().out)
    typed = "COMP_WORDS=(trueshift quick); COMP_CWORD=1; _shtab_trueshift"
    ask = f'source {script}; {typed}; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["quickstart"]
