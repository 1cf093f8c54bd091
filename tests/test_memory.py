"""Freed memory stays with the process that asked for it."""

import os
import platform
import subprocess
import sys

import pytest

from trueshift.memory import keep_memory

FAULTS = """
import resource, sys
import torch
from trueshift.memory import keep_memory
kept = keep_memory() if sys.argv[1] == "kept" else None
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
for _ in range(20):  # until the C library has settled
    faults()
print(kept, sum(faults() for _ in range(5)))
"""
GLIBC = platform.libc_ver()[0] == "glibc"


def run(what, **env):
    command = [sys.executable, "-c", FAULTS, what]
    ours = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    ours.pop("GLIBC_TUNABLES", None)
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=ours | env)
    kept, faults = done.stdout.split()
    return kept, int(faults)


@pytest.fixture(scope="module")
def usual():
    return run("system")[1]


def test_a_freed_map_is_used_again_without_page_faults(usual):
    kept, faults = run("kept")
    assert kept == str(GLIBC)
    assert faults < usual // 100 or not GLIBC


@pytest.mark.parametrize(
    ("name", "value"),
    [("MALLOC_MMAP_THRESHOLD_", "131072"), ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1000")],
)
def test_what_the_user_set_stays(name, value, usual):
    kept, faults = run("kept", **{name: value})
    assert kept == "False"
    assert faults > usual // 2


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert keep_memory() is False
