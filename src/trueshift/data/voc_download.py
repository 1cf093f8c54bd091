"""Fetch PASCAL VOC 2012 and make the augmented training list from SBD, checked all the way."""

from __future__ import annotations

import importlib
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from trueshift._torchvision import import_torchvision

LAYOUT = "VOCdevkit/VOC2012"
LISTS = {"train_aug": "SegmentationClassAug", "val": "SegmentationClass"}
FULL = {"train_aug": 10_582, "val": 1_449}
BY_HAND = (
    "Or place the files by hand: DIR/VOCdevkit/VOC2012 with JPEGImages/*.jpg,"
    " SegmentationClass/*.png, ImageSets/Segmentation/{train,val}.txt (all in"
    " VOCtrainval_11-May-2012.tar), and SegmentationClassAug/*.png (labels of SBD as plain PNG)"
    " with ImageSets/Segmentation/train_aug.txt (10,582 names)."
)

Tell = Callable[[str], None]


class Archive(NamedTuple):
    """A file to fetch, and its checksum."""

    url: str
    file: str
    md5: str


def archives() -> dict[str, Archive]:
    """Return VOC 2012 and SBD as torchvision knows them."""
    import_torchvision()
    from torchvision.datasets import SBDataset
    from torchvision.datasets.voc import DATASET_YEAR_DICT

    voc = DATASET_YEAR_DICT["2012"]
    return {
        "voc": Archive(voc["url"], voc["filename"], voc["md5"]),
        "sbd": Archive(SBDataset.url, SBDataset.filename, SBDataset.md5),
    }


def fetch_voc(
    root: str | Path, source: str | Path | None = None, force: bool = False, tell: Tell = print
) -> dict[str, int]:
    """Make ``root/VOCdevkit/VOC2012`` whole: images, masks, and the augmented training set.

    What is there is kept: only what is missing is fetched, into place at once or not at all.

    Args:
        root: Folder to store it in; downloaded archives stay there too.
        source: Folder that holds the archives already; ``None`` downloads them.
        force: Fetch all of it again and replace what is there.
        tell: Called with what is being done.

    Returns:
        Number of images of each list.
    """
    root = Path(root)
    folder = root / LAYOUT
    root.mkdir(parents=True, exist_ok=True)
    if force or not (folder / "ImageSets" / "Segmentation" / "val.txt").is_file():
        if folder.exists() and not force:
            raise FileExistsError(
                f"VOC: {folder} exists, but has no ImageSets/Segmentation/val.txt. Pass --force"
                f" to replace it. {BY_HAND}"
            )
        _unpack_voc(_get("voc", root, source, force, tell), folder, tell)
    if force or not (folder / "ImageSets" / "Segmentation" / "train_aug.txt").is_file():
        if (folder / "SegmentationClassAug").exists() and not force:
            raise FileExistsError(
                f"VOC: {folder / 'SegmentationClassAug'} exists, but not its list train_aug.txt."
                f" Add the list, or pass --force to make both again. {BY_HAND}"
            )
        _augment(_get("sbd", root, source, force, tell), folder, tell)
    return check_voc(folder)


def check_voc(folder: Path) -> dict[str, int]:
    """Return the number of images of each list; raise if a file of one is missing."""
    from trueshift.data.voc import VOCDataset

    return {
        names: len(VOCDataset(folder, names, masks, None, None, (0.0,) * 3, (1.0,) * 3))
        for names, masks in LISTS.items()
    }


def _get(name: str, root: Path, source: str | Path | None, force: bool, tell: Tell) -> Path:
    """Return the path of an archive whose checksum is right, downloading it if need be."""
    wanted = archives()[name]  # first: it makes torchvision importable
    from torchvision.datasets.utils import check_integrity, download_url

    path = Path(source or root) / wanted.file
    if source is not None and not path.is_file():
        raise FileNotFoundError(f"VOC: no {wanted.file} in {source}. {BY_HAND}")
    if path.is_file() and check_integrity(path, wanted.md5):
        return path
    if path.is_file() and (source is not None or not force):
        raise ValueError(
            f"VOC: {path} is damaged, or not the right file: its md5 is not {wanted.md5}."
            " Fetch it again (--force downloads and replaces it)."
        )
    tell(f"downloading {wanted.url} ...")
    try:
        download_url(wanted.url, root, wanted.file, wanted.md5)
    except (OSError, RuntimeError, ValueError) as error:
        raise OSError(
            f"VOC: {wanted.url} could not be downloaded ({error}). Get {wanted.file} from another"
            f" place (its md5 is {wanted.md5}) and pass --source FOLDER that holds it. {BY_HAND}"
        ) from error
    return path


def _unpack_voc(archive: Path, folder: Path, tell: Tell) -> None:
    tell(f"unpacking {archive.name} ...")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpacking-") as scratch:
        with tarfile.open(archive) as opened:
            opened.extractall(scratch, filter="data")
        _replace(Path(scratch) / LAYOUT, folder)


def _augment(archive: Path, folder: Path, tell: Tell) -> None:
    """Write ``SegmentationClassAug`` and ``train_aug.txt``.

    The list is all of VOC's training images and SBD's, without VOC's validation images. Images that
    VOC has labelled itself keep its masks; the others get SBD's, which have no ignored border.
    """
    from PIL import Image

    read = _mat_reader()
    lists = folder / "ImageSets" / "Segmentation"
    train, val = (set((lists / f"{name}.txt").read_text().split()) for name in ("train", "val"))
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        tell(f"unpacking {archive.name} ...")
        with tarfile.open(archive) as opened:
            opened.extractall(scratch, _wanted_of_sbd(opened), filter="data")
        sbd = Path(scratch) / "benchmark_RELEASE" / "dataset"
        names = sorted((train | _names(sbd / "train.txt") | _names(sbd / "val.txt")) - val)
        tell(f"writing {len(names)} masks ...")
        for name in names:
            if name in train:
                with Image.open(folder / "SegmentationClass" / f"{name}.png") as file:
                    labels = Image.frombytes("L", file.size, file.tobytes())
            else:
                labels = Image.fromarray(read(sbd / "cls" / f"{name}.mat"))
            labels.save(made / f"{name}.png")
        _replace(made, folder / "SegmentationClassAug")
    (lists / "train_aug.txt").write_text("\n".join(names) + "\n")


def _wanted_of_sbd(opened: tarfile.TarFile) -> list[tarfile.TarInfo]:
    """Leave out the pictures, which VOC has too, and the instances."""
    kept = ("/dataset/cls/", "/dataset/train.txt", "/dataset/val.txt")
    return [member for member in opened.getmembers() if any(part in member.name for part in kept)]


def _names(path: Path) -> set[str]:
    return set(path.read_text().split())


def _mat_reader() -> Callable[[Path], Any]:
    try:
        loadmat = importlib.import_module("scipy.io").loadmat
    except ImportError as error:
        raise ImportError(
            "VOC: the labels of SBD are MATLAB files: pip install scipy (or trueshift[voc]) to read"
            f" them. {BY_HAND}"
        ) from error
    return lambda path: loadmat(path)["GTcls"][0]["Segmentation"][0]


def _replace(new: Path, old: Path) -> None:
    """Put a folder into place; what was there goes last."""
    if not new.is_dir():
        raise ValueError(f"VOC: the archive holds no {LAYOUT}. Is it the right one?")
    aside = old.with_name(f"{old.name}.old")
    if old.exists():
        old.replace(aside)
    new.replace(old)
    shutil.rmtree(aside, ignore_errors=True)
