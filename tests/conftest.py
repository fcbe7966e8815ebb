"""One thread for each test process: results must not hang on the number of cores."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import settings

from tapas import native

torch.set_num_threads(1)
settings.register_profile("tapas", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("tapas")


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
