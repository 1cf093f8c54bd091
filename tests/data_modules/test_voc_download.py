"""Archives like VOC's and SBD's, a few pictures large, served by this machine to itself."""

import functools
import hashlib
import http.server
import subprocess
import sys
import tarfile
import threading
import types

import numpy as np
import pytest
from PIL import Image

from trueshift.cli.main import main
from trueshift.data import VOCSegmentation, voc_download
from trueshift.data.voc_download import Archive, fetch_voc

SIZE = (12, 9)


def labels(value):
    return np.full(SIZE[::-1], value, dtype=np.uint8)


def pack(folder, top, archive, mode):
    with tarfile.open(archive, mode) as made:
        made.add(folder / top, top)
    return hashlib.md5(archive.read_bytes()).hexdigest()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def address(tmp_path):
    handler = functools.partial(Quiet, directory=str(tmp_path / "host"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def served(tmp_path, monkeypatch, address):
    """VOC: a, b to train, c to validate, d without a mask. SBD: a, c, d."""
    work, host = tmp_path / "work", tmp_path / "host"
    host.mkdir()
    voc = work / "VOCdevkit" / "VOC2012"
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (voc / name).mkdir(parents=True)
    for name in "abcd":
        Image.new("RGB", SIZE).save(voc / "JPEGImages" / f"{name}.jpg")
    for value, name in enumerate("abc"):
        mask = Image.fromarray(labels(value))
        mask.putpalette([k % 256 for k in range(768)])  # as VOC's: mode P
        mask.save(voc / "SegmentationClass" / f"{name}.png")
    for name, names in (("train", "a\nb\n"), ("val", "c\n")):
        (voc / "ImageSets" / "Segmentation" / f"{name}.txt").write_text(names)
    sbd = work / "benchmark_RELEASE" / "dataset"
    (sbd / "cls").mkdir(parents=True)
    (sbd / "img").mkdir()
    (sbd / "img" / "a.jpg").write_bytes(b"not needed")
    (sbd / "train.txt").write_text("a\nc\n")
    (sbd / "val.txt").write_text("d\n")
    for value, name in enumerate("acd", start=10):
        np.save(sbd / "cls" / f"{name}.npy", labels(value))
        (sbd / "cls" / f"{name}.npy").rename(sbd / "cls" / f"{name}.mat")
    found = {}
    for key, top, file, mode in (
        ("voc", "VOCdevkit", "voc.tar", "w"),
        ("sbd", "benchmark_RELEASE", "sbd.tgz", "w:gz"),
    ):
        md5 = pack(work, top, host / file, mode)
        found[key] = Archive(f"{address}/{file}", file, md5)
    monkeypatch.setattr(voc_download, "archives", lambda: found)
    return found


@pytest.fixture(autouse=True)
def scipy(monkeypatch):
    """Stand in for scipy, which reads MATLAB's nested structs; ours hold plain arrays."""

    def loadmat(path):
        with open(path, "rb") as file:
            segmentation = np.load(file)
        return {"GTcls": [{"Segmentation": [segmentation]}]}

    io = types.ModuleType("scipy.io")
    io.loadmat = loadmat
    monkeypatch.setitem(sys.modules, "scipy", types.ModuleType("scipy"))
    monkeypatch.setitem(sys.modules, "scipy.io", io)


def read(path):
    with Image.open(path) as file:
        return file.mode, int(np.asarray(file).min()), int(np.asarray(file).max())


def test_downloads_unpacks_and_augments(tmp_path, served, capsys):
    root = tmp_path / "data"
    assert main(["data", "voc", "--root", str(root)]) == 0
    told = capsys.readouterr()
    assert "train_aug: 3 images, not the 10,582 of the whole set" in told.out
    assert "val: 1 images, not the 1,449" in told.out
    assert "downloading http:" in told.err
    folder = root / "VOCdevkit" / "VOC2012"
    aug = folder / "SegmentationClassAug"
    assert (folder / "ImageSets/Segmentation/train_aug.txt").read_text().split() == ["a", "b", "d"]
    assert read(aug / "a.png") == ("L", 0, 0)  # VOC's own mask
    assert read(aug / "b.png") == ("L", 1, 1)
    assert read(aug / "d.png") == ("L", 12, 12)  # SBD's
    assert sorted(p.name for p in aug.iterdir()) == ["a.png", "b.png", "d.png"]
    assert not [p for p in (*folder.iterdir(), *folder.parent.iterdir()) if "unpack" in p.name]
    data = VOCSegmentation(str(root), num_workers=0)
    data.setup()
    assert len(data.datasets["train"]) == 3


def test_what_is_there_is_kept_unless_forced(tmp_path, served):
    root = tmp_path / "data"
    fetch_voc(root)
    mask = root / "VOCdevkit/VOC2012/SegmentationClassAug/d.png"
    Image.fromarray(labels(7)).save(mask)
    for archive in served.values():
        (root / archive.file).unlink()
    assert fetch_voc(root) == {"train_aug": 3, "val": 1}
    assert read(mask)[1] == 7
    assert not (root / "voc.tar").exists()  # nothing was fetched
    fetch_voc(root, force=True)
    assert read(mask)[1] == 12


def test_only_what_is_missing_is_made(tmp_path, served):
    root = tmp_path / "data"
    fetch_voc(root)
    folder = root / "VOCdevkit" / "VOC2012"
    (folder / "ImageSets/Segmentation/train_aug.txt").unlink()
    with pytest.raises(FileExistsError, match=r"SegmentationClassAug exists, but not its list"):
        fetch_voc(root)
    (root / "voc.tar").unlink()
    for mask in (folder / "SegmentationClassAug").iterdir():
        mask.unlink()
    (folder / "SegmentationClassAug").rmdir()
    assert fetch_voc(root)["train_aug"] == 3
    assert not (root / "voc.tar").exists()
    (folder / "ImageSets/Segmentation/val.txt").unlink()
    with pytest.raises(FileExistsError, match=r"exists, but has no .*val\.txt. Pass --force"):
        fetch_voc(root)


def test_archives_of_a_folder_are_checked(tmp_path, served):
    root, host = tmp_path / "data", tmp_path / "host"
    assert fetch_voc(root, source=host) == {"train_aug": 3, "val": 1}
    assert not (root / "voc.tar").exists()
    (host / "sbd.tgz").write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"sbd\.tgz is damaged, or not the right file: its md5"):
        fetch_voc(tmp_path / "other", source=host)
    with pytest.raises(FileNotFoundError, match=r"no voc\.tar in .* Or place the files by"):
        fetch_voc(tmp_path / "other", source=tmp_path, force=True)


def test_a_damaged_download_is_not_replaced_unless_forced(tmp_path, served):
    root = tmp_path / "data"
    root.mkdir()
    (root / "voc.tar").write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"voc\.tar is damaged"):
        fetch_voc(root)
    assert (root / "voc.tar").read_bytes() == b"broken"
    assert fetch_voc(root, force=True)["val"] == 1


def test_a_host_that_does_not_answer(tmp_path, served, capsys):
    (tmp_path / "host" / "voc.tar").unlink()
    assert main(["data", "voc", "--root", str(tmp_path / "data")]) == 2
    told = capsys.readouterr().err
    assert "could not be downloaded" in told
    assert "pass --source FOLDER" in told
    assert "DIR/VOCdevkit/VOC2012 with JPEGImages" in told
    assert not (tmp_path / "data" / "VOCdevkit").exists()


def test_a_download_that_is_cut_short(tmp_path, served):
    path = tmp_path / "host" / "voc.tar"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(OSError, match=r"could not be downloaded \(File not found or corrupted"):
        fetch_voc(tmp_path / "data")


def test_without_scipy(tmp_path, served, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(ImportError, match="pip install scipy"):
        fetch_voc(tmp_path / "data")
    assert (tmp_path / "data/VOCdevkit/VOC2012/JPEGImages/a.jpg").is_file()


def test_wrong_sources(tmp_path, capsys):
    assert main(["data", "voc", "--root", str(tmp_path), "--source", "npm"]) == 2
    assert "--source npm is for cifar10" in capsys.readouterr().err
    assert main(["data", "voc", "--root", str(tmp_path), "--source", "nowhere"]) == 2
    assert "nowhere is not a folder" in capsys.readouterr().err


def test_torchvision_knows_the_archives():
    found = voc_download.archives()
    assert found["voc"].file == "VOCtrainval_11-May-2012.tar"
    assert found["sbd"].file == "benchmark.tgz"
    assert all(len(archive.md5) == 32 for archive in found.values())


def test_a_new_process_finds_torchvision_by_itself(tmp_path):
    command = [sys.executable, "-m", "trueshift", "data", "voc", "--root", str(tmp_path)]
    told = subprocess.run(
        [*command, "--source", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert told.returncode == 2
    assert "Traceback" not in told.stderr
    assert "no VOCtrainval" in told.stderr
