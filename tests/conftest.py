"""Fixtures and settings of all tests.

Each test process uses one thread, so that results do not depend on the number of cores. With
`-n`, all tests of a file run in one process.
"""

import gc
import os
import signal
from contextlib import nullcontext

import pytest
import torch
from hypothesis import settings
from ranks import quick_process

from tapas import native

gc.disable()  # until all tests are collected
torch.set_num_threads(1)
os.environ.pop("COLUMNS", None)  # with -n, readline sets it; output to a pipe is not wrapped
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by a job in the background
settings.register_profile("full", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("fuzz", deadline=None, max_examples=3000)
settings.register_profile("quick", settings.get_profile("full"), max_examples=15)


def pytest_configure(config):
    """Run fewer Hypothesis examples when slow tests are deselected.

    `pytest tests/fuzz --hypothesis-profile=fuzz` runs many, other ones each time.
    """
    if config.getoption("--hypothesis-profile") is not None:
        return
    settings.load_profile("quick" if config.option.markexpr == "not slow" else "full")


def pytest_collection_modifyitems(items):
    """Run files with slow tests first, so that all processes finish at about the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish():
    """Garbage collection skips what was there before the first test."""
    quick_process()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Run each file in one process, in the order above, so that its fixtures are built once."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


@pytest.fixture(autouse=True)
def _one_thread_again():
    """Undo `torch.set_num_threads` of commands that were run in this process."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _global_generator_is_not_used():
    """The library must never use torch's global generator."""
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state()), "the global generator was used"


@pytest.fixture(scope="module", params=["native", "torch"])
def kernels(request):
    """Runs the tests of a module twice: with native kernels and with their PyTorch fallback."""
    if request.param == "native" and native.state() != "in use on CPUs":
        pytest.skip(f"native kernels are {native.state()}")
    with nullcontext() if request.param == "native" else native.switched_off():
        yield request.param
