import itertools
import runpy
from pathlib import Path

import pytest
import torch
from PIL import Image

import trueshift as ts

FOLDER = Path(__file__).parents[1] / "examples"
# These go through every shift of an image and return the largest difference.
EXAMPLES = [
    FOLDER / f"{name}.py" for name in ("simple_classifier", "simple_unet", "convert_pretrained")
]
# These train, and return scores.
TRAINED = {"classification_finetune", "segmentation", "signals_1d", "video_flicker"}


def test_every_example_is_tested_here():
    assert {path.stem for path in FOLDER.glob("*.py")} == {p.stem for p in EXAMPLES} | TRAINED


def main_of(name):
    return runpy.run_path(str(FOLDER / f"{name}.py"))["main"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_finds_no_difference_at_all(path, capsys):
    difference = runpy.run_path(str(path))["main"]()
    assert isinstance(difference, float)
    assert difference == 0.0
    assert capsys.readouterr().out.rstrip().endswith("shifts: 0.0")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_as_a_script(path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert "largest difference over all" in capsys.readouterr().out


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_would_notice_a_difference(path, capsys, monkeypatch, tmp_path):
    # With plain strides in place of a choice by content, the same program finds one.
    monkeypatch.setattr(ts, "LPD", lambda channels: ts.PolyphaseDown(ts.FixedSelector(0)))
    plain = tmp_path / path.name
    plain.write_text(path.read_text().replace('.eval(), "aps"', '.eval(), "stride"'))
    assert runpy.run_path(str(plain))["main"]() > 0.0
    assert not capsys.readouterr().out.rstrip().endswith("shifts: 0.0")


def test_fine_tuning_keeps_the_consistency_and_brings_back_accuracy(capsys):
    scores = main_of("classification_finetune")(
        num_images=500, num_test=100, epochs=6, tune_epochs=3
    )
    before, converted, tuned = scores.values()
    assert before.consistency < 1
    assert converted.consistency == tuned.consistency == 1
    assert tuned.shifted_accuracy == tuned.accuracy
    assert tuned.loss < converted.loss
    assert tuned.accuracy > max(converted.accuracy, before.shifted_accuracy)
    assert len(capsys.readouterr().out.splitlines()) == 4  # a head and three rows


def test_masks_of_lps_move_with_the_picture(capsys):
    scores = main_of("segmentation")(num_images=100, num_test=20, epochs=3)
    plain, lps = scores["stride"], scores["LPS"]
    assert lps.bitwise_equal
    assert lps.consistency == 1
    assert lps.shifted_mean_iou == lps.mean_iou
    assert plain.consistency < 1
    assert not plain.bitwise_equal
    assert min(plain.mean_iou, lps.mean_iou) > 0.5  # background only would give 0.4
    assert "mASCC" in capsys.readouterr().out


def test_mean_iou_of_a_mask_that_is_known():
    mean_iou = runpy.run_path(str(FOLDER / "segmentation.py"))["mean_iou"]
    masks = torch.tensor([[1, 1, 0, 0]])
    assert mean_iou(masks, masks) == 1
    assert mean_iou(torch.tensor([[1, 0, 0, 0]]), masks) == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_events_are_told_apart_wherever_they_are(capsys):
    scores = main_of("signals_1d")(num_signals=300, num_test=50, epochs=6)
    assert scores["lps"].largest_change == 0
    assert scores["lps"].consistency == 1
    assert scores["lps"].accuracy_anywhere == pytest.approx(scores["lps"].accuracy)
    assert scores["lps"].accuracy > 0.6  # chance is a third
    assert scores["stride"].largest_change > 0
    assert "anywhere" in capsys.readouterr().out


def test_a_turning_camera_does_not_change_the_mind_of_lps(tmp_path, capsys):
    path = tmp_path / "flicker.gif"
    rates = main_of("video_flicker")(path, num_images=300, num_clips=10, num_frames=9, epochs=3)
    assert rates["turn"]["LPS"] == 0
    assert rates["turn"]["stride"] > 0
    assert 0 <= rates["pan"]["LPS"] <= 1
    with Image.open(path) as film:
        assert film.format == "GIF"
        assert film.n_frames == 9
    assert "wrote" in capsys.readouterr().out


def test_clips_of_the_video_move_by_one_pixel_per_frame():
    functions = runpy.run_path(str(FOLDER / "video_flicker.py"))
    picture = torch.rand(1, 3, 48, 48)
    turn, pan = functions["turn"](picture, 5)[0], functions["pan"](picture, 5)[0]
    assert turn.shape == pan.shape == (5, 3, 32, 32)
    for before, after in itertools.pairwise(turn):
        assert torch.equal(after, before.roll(-1, 2))
    for before, after in itertools.pairwise(pan):
        assert torch.equal(after[:, :, :-1], before[:, :, 1:])
        assert not torch.equal(after, before.roll(-1, 2))
    labels = torch.tensor([[0, 0, 1, 1, 0]])
    assert functions["changes"](labels) == 0.5
