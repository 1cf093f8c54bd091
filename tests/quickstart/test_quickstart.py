"""The quickstart on a budget of seconds: every row is trained, tested, kept and drawn."""

import json
import os
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
from trueshift.quickstart import ROWS

SMALL = ["--epochs", "1", "--num-train", "100", "--num-test", "60", "--num-pairs", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    assert main(["quickstart", "--runs", str(runs), *SMALL]) == 0
    return runs / "quickstart" / "0"


def test_everything_is_kept(folder):
    for name in ROWS:
        row = folder / name
        assert {"config.yaml", "metrics.csv", "results.json", "network.safetensors"} <= {
            path.name for path in row.iterdir()
        }
        assert (row / "checkpoints" / "last.ckpt").is_file()
    for name in ("curves.png", "shifts.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_the_report_compares_two_networks(folder):
    html = (folder / "report.html").read_text()
    assert "Baseline (stride)" in html
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert "<script src" not in html


def test_the_table_says_who_is_exact(folder):
    table = json.loads((folder / "table.json").read_text())
    exact = {name: row["metrics"]["all_bitwise_equal"] for name, row in table.items()}
    assert exact == {name: ROWS[name].method != "stride" for name in ROWS}
    for name in ("aps", "lps", "lps_tri3"):
        assert table[name]["metrics"]["circular_consistency"] == 1
    lines = (folder / "table.md").read_text().splitlines()
    assert len(lines) == 2 + len(ROWS)
    assert "| LPS Tri-3 |" in lines[-1]


def test_saved_networks_are_whole(folder):
    network = ts.load(folder / "lps" / "network.safetensors")
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(network(x), network(x.roll((3, 5), (2, 3))))


def test_rows_are_recipes(folder, tmp_path):
    config = yaml.safe_load((folder / "lps" / "config.yaml").read_text())
    assert config["model"]["init_args"]["spec"]["method"] == "lps"
    words = ["--config", str(folder / "lps" / "config.yaml"), "--runs", str(tmp_path)]
    assert main(["fit", *words, "--trainer.fast_dev_run", "true"]) == 0


def test_a_stopped_run_goes_on(folder, capsys):
    before = (folder / "aps" / "results.json").stat().st_mtime_ns
    (folder / "lps" / "results.json").unlink()
    assert main(["quickstart", "--resume", str(folder)]) == 0  # the budget is known
    assert (folder / "aps" / "results.json").stat().st_mtime_ns == before
    assert (folder / "lps" / "results.json").is_file()
    assert "APS: done before" in capsys.readouterr().err


def test_a_run_with_another_budget_is_not_mixed_in(folder, capsys):
    assert main(["quickstart", "--resume", str(folder), *SMALL[:-1], "2"]) == 2
    assert "holds a run with another budget" in capsys.readouterr().err
    assert main(["quickstart", "--resume", str(folder / "lps")]) == 2
    assert "no run to go on with" in capsys.readouterr().err
    assert main(["quickstart", "--runs", str(folder), "--num-train", "0"]) == 2
    assert "quickstart: num_train must be at least 1, got 0" in capsys.readouterr().err


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
