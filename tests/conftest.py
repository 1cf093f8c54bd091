"""Options and fixtures of the whole suite. Sizes are small, not square and no powers of two."""

import contextlib
import os

import pytest
import torch
from helpers import SHAPE
from hypothesis import settings

import trueshift as ts
from trueshift._torchvision import import_torchvision

import_torchvision()  # before torchmetrics, Lightning and timm, which import it

settings.register_profile(
    "trueshift", deadline=None, max_examples=50, derandomize=True, database=None
)
settings.load_profile("trueshift")


def pytest_addoption(parser):
    parser.addoption("--runslow", action="store_true", help="also run the tests marked slow")
    parser.addoption("--runbrowser", action="store_true", help="also run the tests in a browser")
    parser.addoption("--plain", action="store_true", help="run formulas only, as a GPU does")
    parser.addoption("--device", default="cpu", help="where tests make their tensors")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes long; runs with --runslow only")
    config.addinivalue_line("markers", "browser: needs Chromium; runs with --runbrowser only")
    if hasattr(config, "workerinput"):  # one of several xdist workers
        torch.set_num_threads(1)
    if config.getoption("--plain"):
        os.environ["TRUESHIFT_PLAIN"] = "1"  # for the processes that tests start
        stack = contextlib.ExitStack()
        stack.enter_context(ts.plain())
        config.add_cleanup(stack.close)


def pytest_collection_modifyitems(config, items):
    left_out = {name for name in ("slow", "browser") if not config.getoption(f"--run{name}")}
    unwanted = [item for item in items if left_out & set(item.keywords)]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if not left_out & set(item.keywords)]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def device(request):
    return torch.device(request.config.getoption("--device"))


@pytest.fixture(autouse=True)
def _default_device(device):
    """Make tensors and modules on the device that was asked for."""
    if device.type == "cpu":
        yield
    else:
        with device:
            yield


@pytest.fixture(scope="module", params=["kernels", "plain"])
def both_ways(request):
    """Run a test twice: as is, and with formulas only."""
    if request.param == "kernels":
        yield
    else:
        with ts.plain():
            yield


@pytest.fixture
def generator(device):
    return torch.Generator(device).manual_seed(0)


@pytest.fixture
def x(generator, device):
    return torch.randn(SHAPE, generator=generator, device=device)
