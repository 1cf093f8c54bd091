import json

import pytest

from trueshift.bench import Bench, Measured, Setting
from trueshift.report.speed import render_benches

MACHINE = {"cpu": "a CPU", "threads": 2}


def bench():
    made = Bench(Setting("resnet101", repeats=3), complete=True)
    for key, ms, mib in (
        ("torchvision", 80.0, 100.0),
        ("floor", 120.0, 150.0),
        ("lpf-tri3", 100.0, 200.0),
        ("lps-tri3", 150.0, 250.0),
    ):
        times = {"eval": [ms, ms - 1, ms + 1], "train": []}
        made.rows[key] = Measured(10, 2_000_000_000, times, {"eval": mib})
    made.missing["antialiased-cnns"] = "antialiased-cnns is not installed"
    return made


def cells(text, title):
    line = next(line for line in text.splitlines() if line.startswith(f"| {title} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_markdown_has_numbers_and_ratios():
    text = render_benches([bench()], MACHINE, "markdown")
    assert "## ResNet-101: 8 x 3 x 224 x 224, nchw, float32" in text
    assert "medians of 3 interleaved runs" in text
    expected = ["LPS tri3", "150.0", "1.88", "1.50", "1.25", "250", "1.25", "2.00", "10"]
    assert cells(text, "LPS tri3") == expected
    assert "Not measured: antialiased-cnns, size 3 (antialiased-cnns is not installed)." in text
    assert "A training step" not in text


def test_the_layout_of_table_4_marks_the_papers_numbers():
    text = render_benches([bench()], MACHINE, "markdown")
    table = text[text.index("## The layout of table 4") :]
    assert "Mean (ms), paper" in table
    lines = [line for line in table.splitlines() if line.startswith("| LPD") or "Default |" in line]
    assert lines == [
        "| LPD | Tri-3 | 150.0 | 1.50 | 83.61 | 1.22 |",
        "| Default | Tri-3 | 100.0 | 1.00 | 68.72 | 1.00 |",
    ]


def test_json_has_every_run():
    whole = json.loads(render_benches([bench()], MACHINE, "json"))
    assert whole["machine"] == MACHINE
    (read,) = whole["benches"]
    assert read["shape"] == [8, 3, 224, 224]
    row = read["rows"]["lps-tri3"]["eval"]
    assert row["times_ms"] == [150.0, 149.0, 151.0]
    assert row["time_ratios"] == {"torchvision": 1.875, "lpf-tri3": 1.5, "floor": 1.25}
    assert read["rows"]["lps-tri3"]["train"]["median_ms"] is None
    assert read["missing"] == {"antialiased-cnns": "antialiased-cnns is not installed"}


def test_says_that_it_was_cut_short():
    short = bench()
    short.complete = False
    assert "Cut short" in render_benches([short], MACHINE, "markdown")


def test_unknown_format():
    with pytest.raises(ValueError, match="format"):
        render_benches([bench()], MACHINE, "latex")
