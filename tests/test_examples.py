import argparse
import itertools
import json
import runpy
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import trueshift as ts
from trueshift._torchvision import import_torchvision

FOLDER = Path(__file__).parents[1] / "examples"
# These go through every shift of an image and return the largest difference.
EXAMPLES = [
    FOLDER / f"{name}.py" for name in ("simple_classifier", "simple_unet", "convert_pretrained")
]
# These train, and return scores.
TRAINED = {"classification_finetune", "panorama", "segmentation", "signals_1d", "video_flicker"}


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


def slim_mobilenet():
    import_torchvision()
    from torchvision.models import mobilenet_v2

    torch.manual_seed(0)
    net = mobilenet_v2(weights=None, width_mult=0.1)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # statistics of the one batch that follows
    with torch.no_grad():
        net(torch.randn(32, 3, 64, 64))
    return net.eval()


@pytest.mark.parametrize(
    ("spec", "padding", "learn", "steps"),
    [("APS", "circular", "", 50), ("APS", "seam", "", 2), ("LPS", "seam", "sampling.", 2)],
)
def test_the_original_teaches_its_copy_without_labels(spec, padding, learn, steps, capsys):
    functions = runpy.run_path(str(FOLDER / "convert_pretrained.py"))
    original, photos = slim_mobilenet(), list(torch.randint(0, 256, (4, 3, 40, 48)).byte())
    images = torch.randn(2, 3, 32, 32)
    net = ts.convert(original, functions[spec], images, padding=padding)
    before = {name: value.clone() for name, value in net.named_parameters()}
    losses = functions["distill"](
        original, net, functions[spec], photos, steps, padding=padding, learn=learn, size=32
    )
    changed = {name for name, value in net.named_parameters() if not value.equal(before[name])}
    assert changed
    assert all(name.startswith(learn) for name in changed)
    assert not any(name.startswith(("classifier.", "features.6.")) for name in changed)
    assert any(name.startswith("features.7.") for name in changed) == (learn == "")
    assert len(losses) == steps
    if steps > 2:
        assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
        assert "step 50: loss" in capsys.readouterr().out
    with torch.inference_mode():
        assert net(images).equal(net(images.roll((3, 5), (2, 3))))


def test_the_converted_network_is_measured():
    functions = runpy.run_path(str(FOLDER / "convert_pretrained.py"))
    torch.manual_seed(0)
    images, labels = torch.randn(3, 3, 256, 256), torch.tensor([1, 2, 3])
    original = functions["SmallResNet"]().eval()
    nets = {"original": original, "aps": ts.convert(original, "aps", images[:1, :, :16, :16])}
    rows = {name: functions["evaluate"](net, images, labels) for name, net in nets.items()}
    assert rows["aps"]["circular"] == 1
    assert rows["aps"]["bitwise_equal"] == 3
    assert rows["original"]["bitwise_equal"] == 0
    assert rows["aps"]["flops"] > rows["original"]["flops"] == 1
    times = functions["clock"](nets, images[:, :, :64, :64], rounds=2)
    assert times["original"] == {"time": 1, "time_channels_last": 1}
    assert times["aps"]["time"] > 0


@pytest.mark.slow
def test_the_whole_table_of_the_pretrained_network(tmp_path, capsys):
    functions = runpy.run_path(str(FOLDER / "convert_pretrained.py"))
    functions["measure"].__globals__["read_network"] = lambda weights: slim_mobilenet()
    for path in (tmp_path / "val/0007/a.png", tmp_path / "val/0003/b.png", tmp_path / "p/a.jpg"):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((256, 256), 80).save(path)
    options = argparse.Namespace(
        weights=tmp_path / "none.pth",
        images=tmp_path / "val",
        tuning_images=tmp_path / "p",
        steps=4,
        save=tmp_path / "tuned",
    )
    rows = functions["measure"](options)
    assert len(rows) == 10
    assert all(
        rows[name]["bitwise_equal"] == 2
        for name in rows
        if name != "original" and name != "stride, circular"
    )
    assert json.loads((options.save / "results.json").read_text()) == rows
    written = {path: path.read_bytes() for path in options.save.glob("*.pth")}
    assert len(written) == 3
    again = functions["measure"](options)  # finds the tuned weights
    assert again["aps, seam, distilled"]["top1"] == rows["aps, seam, distilled"]["top1"]
    assert {path: path.read_bytes() for path in options.save.glob("*.pth")} == written
    assert capsys.readouterr().out.count("FLOPs") == 2


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
    scores = main_of("segmentation")(num_images=200, num_test=20, epochs=3)
    plain, lps = scores["plain"], scores["LPS"]
    assert lps["mASCC"] == lps["exact"] == 1
    assert plain["mASCC"] < 1
    assert plain["exact"] == 0
    assert min(plain["mIoU"], lps["mIoU"]) > 0.5  # background only would give 0.4
    assert "mASCC" in capsys.readouterr().out


def test_panoramas_may_be_turned_by_any_angle(capsys, tmp_path):
    path = tmp_path / "panorama.png"
    sizes = {"num_images": 30, "num_test": 4, "epochs": 3, "every": 9}
    scores = main_of("panorama")(**sizes, path=path)
    plain, lps = scores["stride, zeros"], scores["LPS, cylinder"]
    assert lps.exact_turns == 1
    assert lps.changed == 0
    assert plain.exact_turns == 0
    assert plain.changed > 0
    assert min(plain.mean_iou, lps.mean_iou) > 0.5  # background only would give 0.4
    assert "exact turns (of 15)" in capsys.readouterr().out
    with Image.open(path) as figure:
        assert figure.size[0] > 800


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
