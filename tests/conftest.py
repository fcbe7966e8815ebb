"""One thread for each test process: results must not hang on the number of cores.

With `-n`, a process takes whole files.
"""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import settings

from tapas import native

torch.set_num_threads(1)
settings.register_profile("whole", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("quick", settings.get_profile("whole"), max_examples=15)


def pytest_configure(config):
    """Fewer made-up examples where slow tests are left out."""
    settings.load_profile("quick" if config.option.markexpr == "not slow" else "whole")


def pytest_collection_modifyitems(items):
    """Files with slow tests first: what comes last should be short, or a process idles."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A file is run by one process, in the order above: what its tests share is made once."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


@pytest.fixture(autouse=True)
def _one_thread_again():
    """A command that was run in this process may have taken all cores."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _ambient_randomness_is_not_used():
    """The library must never touch torch's global generator."""
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state()), "the global generator was used"


@pytest.fixture(scope="module", params=["native", "torch"])
def kernels(request):
    """For modules whose code has a native kernel and a double in PyTorch: both are tested."""
    if request.param == "native" and native.state() != "in use on CPUs":
        pytest.skip(f"native kernels are {native.state()}")
    with nullcontext() if request.param == "native" else native.switched_off():
        yield request.param
