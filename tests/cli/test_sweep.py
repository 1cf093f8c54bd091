import json
from pathlib import Path

import pytest
import yaml
from test_lightning import RECIPE

from trueshift.cli import sweep
from trueshift.cli.main import main


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # so that it is taken back afterwards
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


@pytest.fixture
def _in_this_process(monkeypatch):
    """Run verbs without a process of their own, whose start takes most of the time."""

    def run(words, job, jobs):
        job.root.mkdir(parents=True, exist_ok=True)
        job.log.write_text(" ".join(words))
        return main(words) == 0

    monkeypatch.setattr(sweep, "_trueshift", run)


@pytest.mark.usefixtures("_in_this_process")
def test_trains_tests_copies_and_goes_on_from_where_it_stopped(recipes, capsys):
    words = ["sweep", *recipes, "--seeds", "4", "--results", "kept"]
    assert main(words) == 0
    assert "aps_seed4: accuracy" in capsys.readouterr().out
    for method in ("stride", "aps"):
        results = json.loads(Path(f"kept/{method}_seed4/results.json").read_text())
        assert results["seed"] == 4
        assert results["config"]["data"]["init_args"]["seed"] == 4
        assert results["row"]["spec"]["method"] == method
    tested = Path("runs/seed4/shapes/aps/0/results.json")
    first = json.loads(tested.read_text())["metrics"]
    tested.unlink()
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "stride_seed4: done before" in out
    assert "aps_seed4: continuing" in out
    assert json.loads(tested.read_text())["metrics"] == first


def test_runs_have_processes_of_their_own_and_one_that_fails_is_named(recipes, capsys):
    Path(recipes[0]).write_text("model: {}\n")
    assert main(["sweep", *recipes, "--jobs", "2"]) == 1
    told = capsys.readouterr()
    assert "aps_seed0: accuracy" in told.out
    assert "failed: stride_seed0, see runs/seed0/stride.log" in told.err
    assert Path("runs/seed0/stride.log").read_text()


def test_a_recipe_that_is_not_there(recipes, capsys):
    assert main(["sweep", "none.yaml"]) == 2
    assert "no recipe none.yaml" in capsys.readouterr().err
