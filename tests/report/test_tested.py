import pytest
import torch
from lightning.pytorch import Trainer

import trueshift as ts
from trueshift.data import Flows, Shapes
from trueshift.report import tested
from trueshift.report.tested import WriteReport, budget, set_aside
from trueshift.training import Classifier, Emulator, Segmenter

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*")


def run_test(module, folder, data=None, **options):
    callback = WriteReport(folder)
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
    )
    options = {"batch_size": 3, "num_train": 1, "num_val": 1, "num_test": 7, **options}
    trainer.test(module, datamodule=data or Shapes(**options), verbose=False)
    return callback.path


def classifier(padding_mode="circular", **options):
    return Classifier(
        network="resnet",
        network_options={"depths": (1, 1), "widths": (4, 8), "stem": "cifar"},
        spec=ts.Sampling("lps", padding_mode=padding_mode, hidden=2),
        num_classes=10,
        max_shift=4,
        **options,
    )


def test_an_emulator_has_no_images_to_report(tmp_path, capsys):
    module = Emulator(
        network="unet",
        network_options={"widths": (4, 8), "in_channels": 1},
        spec=ts.Sampling("lps", dim=1),
        num_classes=1,
        exact_steps=2,
    )
    few = {"num_train": 1, "num_val": 1, "num_test": 1, "num_states": 2, "num_test_states": 3}
    assert run_test(module, tmp_path, Flows("burgers", root=str(tmp_path), **few)) is None
    assert "report" not in capsys.readouterr().err


def test_a_segmenter_is_shown_as_the_test_saw_it(tmp_path):
    module = Segmenter(
        network="unet",
        network_options={"widths": (4, 8), "in_channels": 3},
        spec=ts.Sampling("lps"),
        num_classes=11,
        max_shift=2,
    )
    path = run_test(module, tmp_path / "run", size=9, masks=True)
    assert path == tmp_path / "run" / "report.html"
    page = path.read_text()
    assert "unet, lps is exactly shift-equivariant here" in page
    assert "7 of the test images of Shapes: 7 of 3 x 10 x 10" in page  # extended
    assert "Segmentation under shifts" in page
    assert "What the selectors saw and kept" in page


@pytest.mark.parametrize(
    ("padding_mode", "text"),
    [("circular", "7 of 3 x 8 x 8"), ("zeros", "behind a window of 8 x 8 pixels")],
)
def test_the_window_is_that_of_the_test(tmp_path, padding_mode, text):
    path = run_test(classifier(padding_mode, crop_size=8), tmp_path, size=12)
    page = path.read_text()
    assert text in page
    assert "truly" in page


def test_why_there_is_no_report_is_said(tmp_path, monkeypatch, capsys):
    def fail(*args, **options):
        raise MemoryError("audit: no memory.")

    monkeypatch.setattr(tested, "audit", fail)
    assert run_test(classifier(), tmp_path, size=8) is None
    assert "no report.html: audit: no memory." in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("num_batches", "batch"), [(1, 100), (3, 8), (16, 4), (500, 4), (2, 3)])
def test_images_are_spread_over_the_data(num_batches, batch):
    kept = []
    for index in range(num_batches):
        images = torch.arange(batch) + index * batch
        kept += tested._some((images, images), index, num_batches)
    found = [int(image) for image, _ in kept]
    assert len(set(found)) == len(found)
    assert min(16, num_batches * batch) <= len(found) < 32
    assert found[0] == 0
    assert found[-1] >= num_batches * batch * 0.75


def test_images_of_several_sizes_give_those_of_the_commonest():
    items = [(torch.zeros(3, size, 8), torch.tensor(k)) for k, size in enumerate((8, 4, 8))]
    images, targets = tested._of_one_size(items)
    assert images.shape == (2, 3, 8, 8)
    assert targets.tolist() == [0, 2]
    with pytest.raises(ValueError, match="no images"):
        tested._of_one_size([])


def test_larger_images_are_fewer():
    pairs = [num * shifts for num, shifts in (budget(side * side) for side in (8, 64, 300, 2000))]
    assert pairs == sorted(pairs, reverse=True)
    assert pairs[0] <= 1024
    assert pairs[-1] == 32


def test_files_are_set_aside_under_numbers(tmp_path):
    path = tmp_path / "a.txt"
    set_aside(path)  # nothing there
    for word in ("first", "second"):
        path.write_text(word)
        set_aside(path)
    assert not path.exists()
    assert [(tmp_path / f"a.{k}.txt").read_text() for k in (0, 1)] == ["first", "second"]
