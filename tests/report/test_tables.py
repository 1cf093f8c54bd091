import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from trueshift.layers.spec import Sampling
from trueshift.report import build_table, find_results, render
from trueshift.report.ours import TABLES
from trueshift.report.paper import METHODS
from trueshift.report.tables import belongs

RECIPES = Path(__file__).parents[2] / "recipes"
OURS = (
    "cifar10-record",
    "cifar10-quick",
    "cifar10-fast",
    "cifar10-transformers",
    "voc-small",
    "voc-mobilenet",
    "flows",
)
PAPER = {name: TABLES[name] for name in TABLES if name not in ("params", "time", *OURS)}


def result(row, seed=0, **metrics):
    """Make what a test of this row would write."""
    key = dict(row.key)
    up = key.pop("up", None)
    row_of_result = {
        "data": key.pop("data", None),
        "setting": key.pop("setting", None),
        "network": key.pop("network"),
        "network_options": {} if up is None else {"up": up},
        "spec": {"padding_mode": "circular", "train_rule": "gumbel", **key},
    }
    return {"row": row_of_result, "metrics": metrics, "time": {"inference": None}, "seed": seed}


def save(folder, results):
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(results))


def cell(name, method, antialias, metric, network=None):
    rows = [
        row
        for row in TABLES[name].rows
        if (row.method, row.antialias) == (method, antialias) and network in (None, row.network)
    ]
    assert len(rows) == 1
    return rows[0].numbers[metric]


def test_cells_are_the_papers():
    assert cell("cifar10", "LPS", "Tri-3", "accuracy") == (94.8, 0.14)
    assert cell("cifar10", "Baseline", "-", "circular_consistency") == (89.64, 0.39)
    assert cell("cifar10", "LPS (softmax)", "Tri-3", "accuracy") == (93.22, 0.13)
    assert cell("imagenet-circular", "DDAC", "Adapt-3", "circular_consistency") == 77.23
    assert cell("imagenet-standard", "LPS", "Adapt-3", "shift_consistency") == 92.4
    assert cell("imagenet-standard", "LPF", "Tri-3", "accuracy", "ResNet-50") == 76.83
    assert cell("voc-circular", "LPD only", "Adapt-3", "miou") == 72.47
    assert cell("voc-standard", "DDAC*", "Adapt-3", "shift_consistency") == 97.83
    assert cell("time", "LPD", "Tri-3", "batch_ms") == (83.61, 0.19)


def test_tables_have_all_rows():
    counts = {name: len(table.rows) for name, table in TABLES.items()}
    assert counts == {
        "cifar10": 16,
        "cifar10-record": 4,
        "cifar10-quick": 5,
        "cifar10-fast": 14,
        "cifar10-transformers": 9,
        "flows": 34,
        "imagenet-circular": 9,
        "imagenet-standard": 9,
        "params": 5,
        "time": 5,
        "voc-circular": 6,
        "voc-small": 9,
        "voc-mobilenet": 12,
        "voc-standard": 5,
    }
    assert {row.method for t in PAPER.values() for row in t.rows} <= METHODS.keys()


def test_counted_parameters_are_the_papers():
    for line in build_table("params", {}):
        for metric, cell_of_line in line.cells.items():
            assert cell_of_line.values == (cell_of_line.paper[0],), (line.row.method, metric)


@pytest.mark.parametrize("name", PAPER)
def test_every_result_finds_its_row_and_no_other(name):
    for table in PAPER.values():
        for row in table.rows:
            made = result(row)
            rows = [other for other in PAPER[name].rows if belongs(other, made)]
            expected = [other for other in PAPER[name].rows if other.key == row.key]
            assert rows == expected
            assert len(rows) <= 2  # DDAC and DDAC* are one network


def test_our_numbers_beside_the_papers(tmp_path):
    rows = {(row.method, row.antialias): row for row in TABLES["cifar10"].rows}
    lps = rows["LPS", "Tri-3"]
    save(tmp_path / "a" / "0", result(lps, 0, accuracy=0.94, circular_consistency=1.0))
    save(tmp_path / "a" / "1", result(lps, 1, accuracy=0.96, circular_consistency=1.0))
    text = render("cifar10", build_table("cifar10", find_results(tmp_path)))
    line = next(line for line in text.splitlines() if line.startswith("| LPS | Tri-3"))
    assert "| 95.00 ± 1.41 | 94.80 ± 0.14 | 100.00 ± 0.00 | 100.00 ± 0.00 | 2 |" in line
    assert text.count("no result") == 2 * 15

    parsed = json.loads(render("cifar10", build_table("cifar10", find_results(tmp_path)), "json"))
    row = next(r for r in parsed["rows"] if r["recipe"] == "cifar10/resnet18_lps_tri3")
    assert row["metrics"]["accuracy"]["ours"] == pytest.approx(95)
    assert row["sources"] == ["a/0/results.json", "a/1/results.json"]
    assert parsed["rows"][0]["metrics"]["accuracy"]["ours"] is None

    latex = render("cifar10", build_table("cifar10", find_results(tmp_path)), "latex")
    assert r"LPS & Tri-3 & ResNet-18 & 95.00 $\pm$ 1.41" in latex
    assert latex.rstrip().endswith(r"\end{tabular}")


def test_tables_of_our_own_have_no_numbers_of_the_paper(tmp_path):
    rows = TABLES["voc-small"].rows
    assert all(row.numbers == {} and row.recipe is None for row in rows)
    for k, row in enumerate(rows):
        made = result(row, miou=0.5, shifted_miou=0.4, circular_consistency=1.0)
        made["metrics"]["bitwise_equal"] = k / 10
        save(tmp_path / str(k), made)
    assert TABLES["voc-small"].number is None
    lines = build_table("voc-small", find_results(tmp_path))
    assert [line.sources for line in lines] == [(f"{k}/results.json",) for k in range(len(rows))]
    text = render("voc-small", lines)
    assert text.startswith("Segmentation of the built-in shapes")
    assert "paper" not in text
    assert (
        "| LPD only | Adapt-3 | DeepLabV3+ ResNet-18 | 50.00 | 40.00 | 100.00 | 40.00 | 1 |" in text
    )
    parsed = json.loads(render("voc-small", lines, "json"))
    assert parsed["number"] is None
    assert parsed["rows"][0]["metrics"]["miou"]["paper"] is None
    assert "% Segmentation" in render("voc-small", lines, "latex")


def test_the_fast_table_has_a_recipe_for_every_row_and_the_papers_numbers_beside(tmp_path):
    rows = TABLES["cifar10-fast"].rows
    recipes = sorted((RECIPES / "cifar10").glob("fast_*.yaml"))
    assert len(recipes) == len(rows)
    for path in recipes:
        model = yaml.safe_load(path.read_text())["model"]["init_args"]
        spec = dataclasses.asdict(Sampling(**model["spec"]))
        tested = {"data": "cifar10", "network": model["network"], "spec": spec}
        assert sum(belongs(row, {"row": tested}) for row in rows) == 1, path.name
    for k, row in enumerate(rows):
        save(tmp_path / str(k), result(row, accuracy=k / 100, circular_consistency=1.0))
    lines = build_table("cifar10-fast", find_results(tmp_path))
    assert [line.sources for line in lines] == [(f"{k}/results.json",) for k in range(len(rows))]
    text = render("cifar10-fast", lines)
    assert "| LPS | - | ResNet-9 | 2.00 | 94.45 ± 0.05 | no result | 100.00 |" in text
    assert "| LPS, select on input | - | ResNet-9 | 3.00 | - | no result | 100.00 | - |" in text


def test_every_transformer_recipe_has_a_row():
    rows = TABLES["cifar10-transformers"].rows
    folder = Path(__file__).parents[2] / "recipes" / "cifar10"
    recipes = sorted([*folder.glob("vit_*.yaml"), *folder.glob("swin_*.yaml")])
    found = []
    for path in recipes:
        model = yaml.safe_load(path.read_text())["model"]["init_args"]
        spec = dataclasses.asdict(Sampling(**model["spec"]))
        tested = {"data": "cifar10", "network": model["network"], "spec": spec}
        found += [row for row in rows if belongs(row, {"row": tested})]
    assert len(found) == len(recipes) == len(rows)
    assert all(row in found for row in rows)


def test_the_flows_have_a_recipe_for_every_row_and_steps_are_not_in_percent():
    rows, results = TABLES["flows"].rows, {}
    for path in sorted((Path(__file__).parents[2] / "recipes" / "flows").glob("*.yaml")):
        config = yaml.safe_load(path.read_text())
        model = config["model"]["init_args"]
        spec = dataclasses.asdict(Sampling(**model["spec"]))
        setting = config["data"]["init_args"]["equation"]
        tested = {"data": "flows", "setting": setting, "network": model["network"], "spec": spec}
        results[path.stem] = {"row": tested, "metrics": {"valid_time": 12.5, "error_10": 0.25}}
    lines = build_table("flows", results)
    assert [line.row for line in lines] == list(rows)
    assert all(len(line.sources) == 1 for line in lines)
    names = {(line.row.network, line.row.method): line.sources[0] for line in lines}
    assert names["Dye in a channel", "LPS, select on input"] == "channel_lps_tri3_input"
    assert "| FNO | - | Burgers | 12.50 | no result | 25.00 |" in render("flows", lines)


def test_a_result_that_no_row_names_gets_a_row_that_says_what_is_unusual():
    lps = next(row for row in TABLES["cifar10"].rows if row.method == "LPS")
    straight, elsewhere = result(lps, accuracy=0.5), result(lps, accuracy=0.5)
    straight["row"]["spec"]["train_rule"] = "straight"
    elsewhere["row"]["network"] = "resnet101"
    lines = build_table("cifar10", {"one": straight, "other": elsewhere})
    others = [line for line in lines if line.row not in TABLES["cifar10"].rows]
    assert [(line.row.method, line.sources) for line in others] == [
        ("LPS, train_rule straight", ("one",))
    ]
    burgers = next(row for row in TABLES["flows"].rows if row.network == "Burgers")
    other = result(burgers, valid_time=3.0)
    other["row"]["spec"] |= {"method": "aps", "antialias": "bin5"}
    *_, last = build_table("flows", {"one": other})
    assert (last.row.method, last.row.antialias, last.row.network) == ("APS", "Bin-5", "Burgers")


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("cifar10", "APS, train_rule random"),
        ("cifar10-quick", "APS (random)"),
        ("voc-small", "APS, train_rule random, up linear"),
    ],
)
def test_runs_with_random_phases_are_no_seeds_of_a_row_that_chooses_by_norm(name, label):
    row = next(row for row in TABLES[name].rows if row.method == "APS")
    by_norm, random = (result(row, accuracy=0.5, miou=0.5) for _ in range(2))
    by_norm["row"]["spec"]["train_rule"] = "straight"  # a rule of learned selectors
    random["row"]["spec"]["train_rule"] = "random"
    lines = build_table(name, {"norm": by_norm, "random": random})
    named = {line.sources: line.row.method for line in lines if line.sources}
    assert named == {("norm",): "APS", ("random",): label}


def test_time_counts_only_on_the_papers_batch():
    row = TABLES["time"].rows[0]
    good, other = result(row), result(row)
    measured = {"mean_ms": 50.0, "std_ms": 1.0}
    good["time"] = {"inference": {"batch_shape": [32, 3, 224, 224], **measured}}
    other["time"] = {"inference": {"batch_shape": [8, 3, 224, 224], **measured}}
    line = build_table("time", {"good": good, "other": other})[0]
    assert line.cells["batch_ms"].values == (50.0,)
    assert line.sources == ("good",)


def test_rows_of_mobilenets_tell_time_and_memory_of_an_image():
    table = TABLES["voc-mobilenet"]
    results = {}
    for path in sorted((RECIPES / "voc").glob("mobilenet_*.yaml")):
        model = yaml.safe_load(path.read_text())["model"]["init_args"]
        spec = dataclasses.asdict(Sampling(**model["spec"]))
        soft = (model.get("tau") or {"init_args": {}})["init_args"].get("softmax_from")
        spec |= {"train_rule": "softmax", "test_rule": "softmax"} if soft else {}
        row = {key: model.get(key) for key in ("network", "network_options", "convert")}
        row |= {"data": "vocsegmentation", "spec": spec}
        inference = {"batch_shape": [2, 3, 8, 8], "mean_ms": 50.0, "peak_mib": 30.0}
        results[path.stem] = {"row": row, "metrics": {}, "time": {"inference": inference}}
    lines = build_table("voc-mobilenet", results)
    assert [line.sources for line in lines] == [
        (f"mobilenet_{name}",)
        for name in [
            "zeros",
            "circular",
            "lpf_tri3",
            "aps_tri3",
            "aps_random",
            "lpd_only_tri3",
            "lps",
            "lps_tri3",
            "lps_tri3_input",
            "lps_tri3_softmax",
            "unet_circular",
            "unet_lps_tri3",
        ]
    ]
    assert {line.cells["image_ms"].values for line in lines} == {(25.0,)}
    assert {line.cells["image_mib"].values for line in lines} == {(15.0,)}
    for one in results.values():
        one["time"]["inference"].pop("peak_mib")  # not measured
    lines = build_table("voc-mobilenet", results)
    assert {line.cells["image_mib"].values for line in lines} == {()}
    assert list(table.metrics.values())[-3:] == ["mASSC", "Time per image, ms", "Memory, MiB"]


def test_wrong_input(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        find_results(tmp_path / "nothing")
    with pytest.raises(ValueError, match="unknown name 'cifar'"):
        build_table("cifar", {})
    with pytest.raises(ValueError, match="format"):
        render("cifar10", [], "html")
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        find_results(tmp_path)


def test_other_json_files_are_left_out(tmp_path):
    save(tmp_path / "other", {"something": 1})
    assert find_results(Path(tmp_path)) == {}
