"""Options and fixtures of the whole suite. Sizes are small, not square and no powers of two."""

import pytest
import torch
from helpers import SHAPE
from hypothesis import settings

settings.register_profile(
    "trueshift", deadline=None, max_examples=50, derandomize=True, database=None
)
settings.load_profile("trueshift")


def pytest_addoption(parser):
    parser.addoption("--runslow", action="store_true", help="also run the tests marked slow")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes long; runs with --runslow only")
    if hasattr(config, "workerinput"):  # one of several xdist workers
        torch.set_num_threads(1)


def pytest_collection_modifyitems(config, items):
    if config.getoption("--runslow"):
        return
    slow = [item for item in items if "slow" in item.keywords]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if "slow" not in item.keywords]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def x(generator):
    return torch.randn(SHAPE, generator=generator)
