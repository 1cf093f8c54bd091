"""Real shifts: frames that move by exactly so many pixels."""

import dataclasses
import json

import pytest
import torch
from test_measure import Striped

import trueshift as ts
from trueshift.audit import audit
from trueshift.audit.moves import bootstrap, difference
from trueshift.audit.shifting import NEIGHBOURS, diagonal
from trueshift.data import make_shapes
from trueshift.report.words import (
    difference_rows,
    move_table,
    percent,
    short_names,
    summary_rows,
)


@pytest.fixture(scope="module")
def images():
    return make_shapes(6, size=48)[0].float() / 255


LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def windows(images, dy, dx, size=32):
    top = (48 - size) // 2
    return images[:, :, top - dy : top - dy + size, top - dx : top - dx + size]


@torch.inference_mode()
def test_moves_are_those_of_plain_loops(images):
    model = Striped()
    measured = audit(model, images, LABELS, kind="standard", window=32).measurements[0]
    assert [move.distance for move in measured.moves] == [1, 2, 4, 8]  # 16 and 32 do not fit
    still = model(windows(images, 0, 0))

    def moved(shifts):
        outputs = torch.stack([model(windows(images, *shift)) for shift in shifts])
        same = outputs.argmax(2) == still.argmax(1)
        return same, (outputs == still).all(2), outputs.argmax(2) == LABELS

    for move in measured.moves:
        same, bits, right = moved(diagonal(move.distance))
        assert move.image_shares == pytest.approx(same.double().mean(0).tolist())
        assert move.consistency.mean == pytest.approx(float(same.double().mean()))
        assert move.bitwise_share.mean == pytest.approx(float(bits.double().mean()))
        assert move.accuracy.mean == pytest.approx(float(right.double().mean()))
        assert move.agreement is None
        assert move.consistency.low <= move.consistency.mean <= move.consistency.high
    same, _, _ = moved(NEIGHBOURS)
    assert measured.neighbours.image_shares == tuple(same.all(0).double().tolist())
    assert 0 < measured.moves[0].consistency.mean < 1


def test_distances_that_were_not_measured_whole_are_left_out(images):
    few = audit(Striped(), images, kind="standard", window=32, shifts=[*diagonal(2), (1, 1)])
    assert [move.distance for move in few.measurements[0].moves] == [2]
    assert few.measurements[0].neighbours is None
    assert audit(Striped(), images[:2], shifts=20).measurements[0].moves == ()  # circular


@torch.inference_mode()
def test_anchored_networks_agree_where_their_windows_do(images):
    model = ts.anchor(Striped(), window=24, modulus=8)
    result = audit(model, images, kind="standard", window=32)
    measured = result.measurements[0]
    for move in measured.moves:
        frames = [windows(images, *shift) for shift in ((0, 0), *diagonal(move.distance))]
        first, *others = [model.corners(one)[:, 0] for one in frames]
        same = torch.stack(
            [
                (other - torch.tensor(shift) == first).all(1)
                for other, shift in zip(others, diagonal(move.distance), strict=True)
            ]
        )
        assert move.agreement.mean == pytest.approx(float(same.double().mean()))
        assert move.bitwise_share.mean >= move.agreement.mean
    assert 0 < measured.moves[0].agreement.mean < 1
    assert result.layers == ()  # maps inside do not move with the frame
    assert result.examples[0].windows.shape == (len(result.view), 1, 4)
    assert any("same windows" in value for _, value in summary_rows(result))


def test_the_bootstrap_covers_the_mean_and_pairs_are_compared_as_pairs():
    values = (torch.rand(400, generator=torch.Generator().manual_seed(3)) < 0.8).double()
    one = bootstrap(values)
    error = float(values.std()) / 20
    assert one.mean == pytest.approx(float(values.mean()))
    assert one.high - one.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    a, b = values, torch.maximum(values, (torch.arange(400) % 50 == 0).double())
    rough = bootstrap(b).high - bootstrap(a).low
    paired = bootstrap(b - a)
    assert paired.high - paired.low < rough / 2


def test_differences_of_two_networks(images):
    plain, anchored = (
        audit(model, images, LABELS, kind="standard", window=32, name=name)
        for name, model in (("a", Striped()), ("b", ts.anchor(Striped(), 24, modulus=8)))
    )
    mine, theirs = plain.measurements[0].moves[0], anchored.measurements[0].moves[0]
    gain = difference(mine, theirs)
    assert gain.mean == pytest.approx(theirs.consistency.mean - mine.consistency.mean)
    rows = dict(difference_rows(plain, anchored))
    assert rows["Moved by 1 px, unchanged"].startswith(f"{100 * gain.mean:+.1f} points (")
    assert "All nine frames, accuracy" in rows
    assert (
        difference(dataclasses.replace(mine, image_accuracies=None), theirs, "image_accuracies")
        is None
    )


def test_the_table_of_moves_has_every_number_and_its_difference(images):
    results = [
        audit(model, images, LABELS, kind="standard", window=32, name=f"net, {name}")
        for name, model in (("centre", Striped()), ("x 1", ts.anchor(Striped(), 24, modulus=8)))
    ]
    assert short_names(results) == ["centre", "x 1"]
    assert short_names(results[:1]) == ["net, centre"]
    table = dict(move_table(results))
    assert list(table) == ["Labels unchanged", "Accuracy", "Same windows", "Same bits"]
    assert [row.name for row in table["Accuracy"]] == ["all nine", "1 px", "2 px", "4 px", "8 px"]
    mine, theirs = (one.measurements[0].moves[0] for one in results)
    row = table["Labels unchanged"][1]
    assert [value for value, _ in row.values] == [
        percent(move.consistency.mean) for move in (mine, theirs)
    ]
    assert row.difference[0] == f"{100 * difference(mine, theirs).mean:+.1f}"
    none, some = table["Same windows"][1].values
    assert none == ("\N{EN DASH}", "")
    assert some[0] == percent(theirs.agreement.mean)
    assert table["Same bits"][1].difference == ("", "")
    (row, *_) = dict(move_table(results[:1]))["Labels unchanged"]
    assert len(row.values) == 1


def test_the_report_draws_the_curve_and_the_frame(images, tmp_path):
    results = [
        audit(model, images, kind="standard", window=32, name=name)
        for name, model in (("plain", Striped()), ("anchored", ts.anchor(Striped(), 24, modulus=8)))
    ]
    page = results[0].to_html(tmp_path / "a.html", results[1]).read_text()
    assert page.count("<polyline") == 2
    assert "Move the frame over a photo" in page
    assert 'id="heat"' not in page  # nothing but the moves of the curve
    assert '"windows": [[[' in page
    numbers = json.loads(results[0].to_json(tmp_path / "a.json", results[1]).read_text())
    moves = numbers["measurements"][0]["moves"]
    assert [move["distance"] for move in moves] == [1, 2, 4, 8]
    for share in ("consistency", "bitwise_share"):
        assert set(moves[0][share]) == {"mean", "low", "high"}
    gains = numbers["differences"]
    assert list(gains) == ["all nine", "1 px", "2 px", "4 px", "8 px"]
    first, second = (
        one["measurements"][0]["moves"][0]["consistency"] for one in (numbers, numbers["against"])
    )
    assert gains["1 px"]["consistency"]["mean"] == pytest.approx(second["mean"] - first["mean"])
