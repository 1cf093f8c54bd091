import json
from pathlib import Path

import pytest
import yaml
from test_lightning import RECIPE

from trueshift.cli.main import main


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = []
    for method in ("stride", "aps"):
        recipe = json.loads(json.dumps(RECIPE))
        recipe["trainer"]["max_epochs"] = 1
        recipe["model"]["init_args"]["spec"] = {"method": method}
        recipe["model"]["init_args"]["tau"] = None
        path = Path(f"recipes/shapes/{method}.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(recipe))
        paths.append(str(path))
    return paths


def test_trains_tests_copies_and_leaves_what_is_done(recipes, capsys):
    words = ["sweep", *recipes, "--jobs", "2", "--seeds", "4", "--results", "kept"]
    assert main(words) == 0
    assert "aps_seed4: accuracy" in capsys.readouterr().out
    for method in ("stride", "aps"):
        results = json.loads(Path(f"kept/{method}_seed4/results.json").read_text())
        assert results["seed"] == 4
        assert results["config"]["data"]["init_args"]["seed"] == 4
        assert results["row"]["spec"]["method"] == method
    assert main(words) == 0
    assert capsys.readouterr().out.count("done before") == 2


def test_takes_up_a_run_that_was_not_tested(recipes, capsys):
    words = ["sweep", recipes[1], "--seeds", "0"]
    assert main(words) == 0
    results = Path("runs/seed0/shapes/aps/0/results.json")
    first = json.loads(results.read_text())["metrics"]
    results.unlink()
    assert main(words) == 0
    assert "aps_seed0: going on" in capsys.readouterr().out
    assert json.loads(results.read_text())["metrics"] == first


def test_a_run_that_fails_is_named_with_its_log(recipes, capsys):
    Path(recipes[0]).write_text("model: {}\n")
    assert main(["sweep", recipes[0]]) == 1
    assert "failed: stride_seed0, see runs/seed0/stride.log" in capsys.readouterr().err
    assert Path("runs/seed0/stride.log").read_text()


def test_a_recipe_that_is_not_there(recipes, capsys):
    assert main(["sweep", "none.yaml"]) == 2
    assert "no recipe none.yaml" in capsys.readouterr().err
