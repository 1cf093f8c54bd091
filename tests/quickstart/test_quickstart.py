"""The quickstart on a budget of seconds: every run is trained, tested, kept and shown."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

import trueshift as ts
from trueshift.cli.main import main
from trueshift.quickstart import SCENES, Budget, runs, table

SMALL = ["--seeds", "1", "--epochs", "1", "--num-train", "100", "--num-test", "60"]
SMALL += ["--num-pairs", "1", "--flow-epochs", "1", "--num-flows", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    assert main(["quickstart", "--runs", str(root), *SMALL]) == 0
    return root / "quickstart" / "0"


def test_every_run_is_kept_and_is_a_recipe(folder, tmp_path):
    assert len(runs(Budget(seeds=3))) == 3 * sum(map(len, SCENES.values()))
    for run in runs(Budget(seeds=1)):
        kept = {path.name for path in run.folder(folder).iterdir()}
        assert kept == {"config.yaml", "results.json", "network.safetensors", "checkpoints"}
    for scene in SCENES:
        config = folder / scene / "lps_seed0" / "config.yaml"
        assert yaml.safe_load(config.read_text())["model"]["init_args"]["spec"]["method"] == "lps"
        words = ["--config", str(config), "--runs", str(tmp_path), "--trainer.fast_dev_run", "true"]
        assert main(["fit", *words]) == 0


def test_the_tables_say_who_is_exact(folder):
    results = json.loads((folder / "results.json").read_text())
    for scene, rows in SCENES.items():
        for name, row in rows.items():
            equal = [one["bitwise_equal"] for one in results[scene][name]]
            assert (equal == [1.0] * len(equal)) == (row.spec.method != "stride"), (scene, name)
    lines = (folder / "tables.md").read_text().splitlines()
    assert (
        len([line for line in lines if "LPS (blur, learned)" in line and "| 100.0 |" in line]) == 2
    )


def test_a_cell_is_the_mean_and_the_standard_deviation():
    metrics = {"accuracy": 0.5, "shifted_accuracy": 0.4}
    metrics |= {"circular_consistency": 1.0, "bitwise_equal": 1.0}
    made = [
        {"metrics": {**metrics, "accuracy": a}, "time": {"train_seconds": 3}} for a in (0.5, 0.7)
    ]
    heads, rows = table("pictures", {"pictures": {"lps": made}})
    assert heads[1] == "Accuracy"
    assert rows == [
        ["LPS (blur, learned)", "60.0 ± 14.1", "40.0 ± 0.0", "100.0 ± 0.0", "100.0 ± 0.0", "3"]
    ]


def test_the_page_holds_all_it_shows(folder):
    html = (folder / "quickstart.html").read_text()
    assert not re.search(r"https?://|<script src|<link rel=.stylesheet", html)
    data = json.loads(re.search(r"const \{ pictures, flow \} = (.*);\n", html)[1])
    titles = [row.title for row in SCENES["pictures"].values()]
    assert data["pictures"]["networks"] == titles
    for one in data["pictures"]["shown"]:
        changes = [len(set(labels)) > 1 for labels in one["labels"]]
        assert all(len(labels) == 32 * 32 for labels in one["labels"])
        assert changes[2:] == [False, False]  # APS and LPS
    plain, lps = data["flow"]["networks"]
    assert len(lps["largest"]) == len(lps["rollouts"]) == 9
    assert set(lps["largest"]) == {0}
    assert len(set(lps["valid"])) == 1
    assert max(plain["largest"]) > 0


def test_saved_networks_are_whole(folder):
    network = ts.load(folder / "pictures" / "lps_seed0" / "network.safetensors")
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(network(x), network(x.roll((3, 5), (2, 3))))


def test_a_stopped_run_goes_on(folder, capsys):
    done, stopped = (folder / "pictures" / f"{name}_seed0" for name in ("aps", "lps"))
    before = (done / "results.json").stat().st_mtime_ns
    first = json.loads((stopped / "results.json").read_text())["metrics"]
    (stopped / "results.json").unlink()
    assert main(["quickstart", "--resume", str(folder)]) == 0  # the budget is known
    assert (done / "results.json").stat().st_mtime_ns == before
    assert json.loads((stopped / "results.json").read_text())["metrics"] == first
    assert "seed 0: done before" in capsys.readouterr().err


def test_a_run_with_another_budget_is_not_mixed_in(folder, capsys):
    assert main(["quickstart", "--resume", str(folder), "--num-flows", "2"]) == 2
    assert "holds a run with another budget" in capsys.readouterr().err
    assert main(["quickstart", "--resume", str(folder / "flow")]) == 2
    assert "no run to continue in" in capsys.readouterr().err
    assert main(["quickstart", "--runs", str(folder), "--num-train", "0"]) == 2
    assert "error: num_train must be at least 1, got 0" in capsys.readouterr().err


ORPHANS = """
import multiprocessing, os, signal, time
from concurrent.futures import ProcessPoolExecutor
from trueshift.quickstart.run import _share_cores

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, context, _share_cores, (1,))
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 600)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(ORPHANS)
    told = subprocess.run(  # a worker that lives on keeps the pipe open
        [sys.executable, script], stdout=subprocess.PIPE, text=True, check=False, timeout=180
    )
    assert told.returncode == -signal.SIGKILL
    worker, until = int(told.stdout), time.monotonic() + 30
    while alive(worker) and time.monotonic() < until:
        time.sleep(0.2)
    assert not alive(worker)


def alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process}/stat")  # ended, but nobody asked yet
    return not stat.exists() or stat.read_text().split()[2] != "Z"
