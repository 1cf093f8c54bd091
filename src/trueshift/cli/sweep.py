"""``trueshift sweep``: recipes times seeds, several at once, each trained and tested once."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from trueshift._validate import check_positive

RESULTS, LAST = "results.json", "checkpoints/last.ckpt"


@dataclass(frozen=True)
class Job:
    """One recipe with one seed, and where its run is kept."""

    recipe: Path
    seed: int
    runs: Path

    @property
    def name(self) -> str:
        """What it is called in tables, and the name of its folder of results."""
        return f"{self.recipe.stem}_seed{self.seed}"

    @property
    def root(self) -> Path:
        """Where its runs are counted up."""
        return self.runs / f"seed{self.seed}"

    @property
    def log(self) -> Path:
        """Where its processes write what they say."""
        return self.root / f"{self.recipe.stem}.log"

    def newest(self, file: str) -> Path | None:
        """Return the newest ``file`` in a folder of this job's runs."""
        files = self.root.rglob(f"{self.recipe.stem}/*/{file}")
        return max(files, key=lambda path: path.stat().st_mtime, default=None)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.description = (
        "Train and test recipes with several seeds, several runs at once if you like. Stopped runs"
        " are continued; finished ones are left as they are."
    )
    parser.add_argument(
        "recipes", nargs="+", type=Path, metavar="RECIPE", help="YAML file (see trueshift recipes)"
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0], metavar="N", help="seeds to run (default: 0)"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="runs at once (default: 1)"
    )
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="folder for runs (default: runs)",
    )
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="also copy every results.json into DIR"
    )


def run(args: argparse.Namespace) -> int:
    """Bring every job to its end; 1 if one failed."""
    check_positive("sweep", jobs=args.jobs)
    missing = [str(recipe) for recipe in args.recipes if not recipe.is_file()]
    if missing:
        raise FileNotFoundError(f"no recipe {', '.join(missing)}.")
    jobs = [Job(recipe, seed, args.runs) for seed in args.seeds for recipe in args.recipes]

    def finish(job: Job) -> bool:
        done = _finish(job, args.jobs)
        if done and args.results is not None:
            _copy(job, args.results / job.name / RESULTS)
        return done

    pool = ThreadPoolExecutor(args.jobs)
    try:
        done = list(pool.map(finish, jobs))
    finally:  # an interrupt also reaches the runs, which save themselves; start no others
        pool.shutdown(cancel_futures=True)
    for job in (job for job, fine in zip(jobs, done, strict=True) if not fine):
        print(f"failed: {job.name}, see {job.log}", file=sys.stderr)
    return 0 if all(done) else 1


def _finish(job: Job, jobs: int) -> bool:
    """Finish a job from where it stopped; false if a step failed."""
    if job.newest(RESULTS) is not None:
        print(f"{job.name}: done before", flush=True)
        return True
    last = job.newest(LAST)
    print(f"{job.name}: {'training' if last is None else 'continuing'}", flush=True)
    seeds = ["--seed_everything", str(job.seed), "--data.seed", str(job.seed)]
    new = ["--config", str(job.recipe), *seeds, "--runs", str(job.root)]
    if not _trueshift(["fit", *(["--resume", str(last.parents[1])] if last else new)], job, jobs):
        return False
    last = job.newest(LAST)
    print(f"{job.name}: testing", flush=True)
    if last is None or not _trueshift(["test", "--no-report", "--ckpt", str(last)], job, jobs):
        return False
    results = job.newest(RESULTS)
    metrics = json.loads(results.read_text())["metrics"] if results else {}
    print(f"{job.name}: " + ", ".join(f"{k} {v:.4f}" for k, v in metrics.items()), flush=True)
    return results is not None


def _trueshift(words: list[str], job: Job, jobs: int) -> bool:
    """Run a verb in a process of its own, with its share of the cores."""
    job.root.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    command = [sys.executable, "-m", "trueshift", *words]
    with job.log.open("a") as log:
        return subprocess.run(command, stdout=log, stderr=log, env=environment).returncode == 0


def _copy(job: Job, target: Path) -> None:
    results = job.newest(RESULTS)
    if results is not None and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(results, target)
