"""The compiled library may be absent, broken or unwanted, and all goes on without it."""

import re
import subprocess
import sys

import pytest
import torch

import tapas.native as native
from tapas import LocalTable, stream
from tapas.native import library


def test_a_missing_library_is_told_with_the_cure(tmp_path):
    assert library.load(tmp_path) == (
        None,
        "absent: no compiler was found at installation. Install one (g++ or clang) and run "
        "`pip install --force-reinstall --no-deps tapas-softmax`.",
    )


def test_a_broken_library_is_told_and_does_no_harm(tmp_path):
    file = tmp_path / f"_kernels{library.EXTENSION_SUFFIXES[0]}"
    file.write_bytes(b"not a library")
    found, words = library.load(tmp_path)
    assert found is None
    assert re.fullmatch(rf"absent: {re.escape(file.name)} cannot be loaded \(.*\)\.", words)


def test_a_library_of_another_version_is_told(tmp_path):
    """It loads, but lacks a function that this version calls."""
    source = tmp_path / "old.c"
    source.write_text("int tapas_usable(void) { return 1; }")
    file = tmp_path / f"_kernels{library.EXTENSION_SUFFIXES[0]}"
    try:
        subprocess.run(["cc", "-shared", "-fPIC", source, "-o", file], check=True)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    found, words = library.load(tmp_path)
    assert found is None
    assert "undefined symbol: tapas_log_sum" in words


@pytest.mark.slow
def test_everything_works_without_it():
    """As on a machine without a compiler: a process that never finds the library."""
    script = (
        "import importlib.machinery as m; m.EXTENSION_SUFFIXES[:] = ['.nowhere']\n"
        "import torch, tapas, tapas.native as native\n"
        "head = tapas.TapasSoftmax(300, 8, num_samples=20, presample_factor=4)\n"
        "query = torch.ones(5, 8, requires_grad=True)\n"
        "head(query, torch.arange(5)).backward()\n"
        "print(native.state()[:7], head.top(query, 3)[1].shape)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert said.stdout == "absent: torch.Size([5, 3])\n", said.stderr


def test_switched_off_is_off_inside_and_as_before_outside():
    before = native.state()
    with native.switched_off():
        assert native.state() == "switched off"
        assert not native.reaches(torch.zeros(1))
        with native.switched_off():
            pass
        assert native.state() == "switched off"
    assert native.state() == before


def test_only_plain_tensors_of_this_machine_are_reached():
    if native.state() != "in use on CPUs":
        pytest.skip(f"native kernels are {native.state()}")
    assert native.reaches(torch.zeros(1), torch.nn.Parameter(torch.zeros(1)))
    assert not native.reaches(torch.zeros(1), torch.zeros(1, device="meta"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_table_answers_the_same_with_and_without(dtype):
    table = LocalTable(1009, 33, dtype=dtype)
    query = torch.randn(37, 33, generator=stream(0, "query"))
    with native.switched_off():
        slow = (*table.top(query, 5), table.log_partition(query))
    fast = (*table.top(query, 5), table.log_partition(query))
    assert torch.equal(fast[1], slow[1])
    torch.testing.assert_close(fast[0], slow[0])
    torch.testing.assert_close(fast[2], slow[2])
