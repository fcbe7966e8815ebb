"""The compiled library may be absent, broken or switched off; everything works without it.

And the hint about huge pages, which is taken where the system knows them.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tapas.native as native
from tapas import LocalTable, Uniform
from tapas.native import library, memory
from tapas.optim import SGD, RowwiseAdagrad
from tapas.rng import stream


def test_a_missing_library_is_reported_with_the_cure(tmp_path):
    assert library.load(tmp_path) == (
        None,
        "absent: not built at installation, because there was no compiler or it failed. With g++ "
        "or clang, `pip install -v --no-cache-dir --force-reinstall --no-deps tapas-softmax` "
        "builds them or shows why not.",
    )


def test_a_broken_library_is_reported_and_not_used(tmp_path):
    file = tmp_path / f"_kernels{library.EXTENSION_SUFFIXES[0]}"
    file.write_bytes(b"not a library")
    found, words = library.load(tmp_path)
    assert found is None
    assert re.fullmatch(rf"absent: {re.escape(file.name)} cannot be loaded \(.*\)\.", words)


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.parametrize("kind", ["a function lacks", "arguments changed"])
def test_a_library_of_another_version_is_reported_and_never_called(kind, tmp_path):
    source = tmp_path / "old.c"
    names = [] if kind == "a function lacks" else [*library.SIGNATURES, "tapas_usable"]
    lines = ["int tapas_interface(void) { return 0; }"]
    lines += [f"int {name}(void) {{ __builtin_trap(); }}" for name in names]
    source.write_text("\n".join(lines))
    file = tmp_path / f"_kernels{library.EXTENSION_SUFFIXES[0]}"
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", file], check=True)
    found, words = library.load(tmp_path)
    assert found is None
    assert words == f"absent: {file.name} is of another version. Install tapas-softmax again."


@pytest.mark.skipif(not shutil.which("g++"), reason="no compiler")
def test_kernels_are_built_if_there_is_a_compiler():
    """Otherwise all tests of kernels would be skipped unnoticed."""
    assert native.state() in (
        "in use on CPUs",
        "absent: this CPU has no AVX2 and FMA instructions.",
    )


@pytest.mark.slow
def test_everything_works_without_it():
    """In a process that does not find the library, as after an install without a compiler."""
    script = (
        "import importlib.machinery as m; m.EXTENSION_SUFFIXES[:] = ['.nowhere']\n"
        "import torch, tapas, tapas.native as native\n"
        "head = tapas.TapasSoftmax(300, 8, num_samples=20, presample_factor=4)\n"
        "query, before = torch.ones(5, 8, requires_grad=True), head.table.weight.clone()\n"
        "optimizer = tapas.optim.RowwiseAdagrad(head)\n"
        "head(query, torch.arange(5)).backward()\n"
        "optimizer.step()\n"
        "moved = bool((head.table.weight[:5] != before[:5]).all())\n"
        "print(native.state()[:7], head.topk(query, 3)[1].shape, moved)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert said.stdout == "absent: torch.Size([5, 3]) True\n", said.stderr


def test_switched_off_ends_with_its_block():
    before = native.state()
    with native.switched_off():
        assert native.state() == "switched off"
        assert not native.supports(torch.zeros(1))
        with native.switched_off():
            pass
        assert native.state() == "switched off"
    assert native.state() == before


def test_only_plain_cpu_tensors_are_supported():
    if native.state() != "in use on CPUs":
        pytest.skip(f"native kernels are {native.state()}")
    assert native.supports(torch.zeros(1), torch.nn.Parameter(torch.zeros(1)))
    assert not native.supports(torch.zeros(1), torch.zeros(1, device="meta"))
    assert not native.readable(torch.ones(4, 0), torch.ones(2, 0))  # rows of width 0


def test_a_bfloat16_table_gives_the_same_results_with_and_without_kernels():
    table = LocalTable(1009, 33, dtype=torch.bfloat16)
    query = torch.randn(37, 33, generator=stream(0, "query"))
    with native.switched_off():
        slow = (*table.topk(query, 5), table.log_partition(query))
    fast = (*table.topk(query, 5), table.log_partition(query))
    assert torch.equal(fast[1], slow[1])
    torch.testing.assert_close(fast[0], slow[0])
    torch.testing.assert_close(fast[2], slow[2])


def test_unsupported_tables_use_pytorch():
    """A table cast to float64, and rows that are not contiguous."""
    table = LocalTable(37, 3, row_optimizer=SGD.fused(lr=1.0)).double()
    query = torch.randn(5, 3, generator=stream(0, "query"))
    want = (query.double() @ table.weight.t() + table.bias).logsumexp(dim=1).float()
    torch.testing.assert_close(table.log_partition(query), want)
    table = LocalTable(37, 3, row_optimizer=SGD.fused(lr=1.0))
    before = table.weight.clone()
    table.weight = torch.nn.Parameter(before.t().contiguous().t(), requires_grad=False)
    assert not native.writable(table.weight)
    table.update(torch.tensor([3]), torch.ones(1, 3), torch.zeros(1))
    assert (table.weight - before).abs().sum(dim=1).nonzero().tolist() == [[3]]
    torch.testing.assert_close(table.weight[3], before[3] - 1)


def test_int32_draws_are_accepted():
    class Narrow(Uniform):
        def draw(self, k, *, generator):
            return super().draw(k, generator=generator).int()

    narrow = Narrow(100_000).sample(50, generator=stream(0, "draws"))
    whole = Uniform(100_000).sample(50, generator=stream(0, "draws"))
    assert torch.equal(narrow.ids, whole.ids)


SMAPS = Path("/proc/self/smaps")
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def flags_at(address):
    """What Linux reports about the memory at `address`."""
    inside = False
    for line in SMAPS.read_text().splitlines():
        if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(span[1], 16) <= address < int(span[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    return []


@pytest.mark.skipif(not (SMAPS.exists() and THP.exists()), reason="no such pages here")
def test_a_large_table_uses_huge_pages(monkeypatch):
    monkeypatch.setattr(memory, "MIN_BYTES", 8 << 20)
    table = LocalTable(40_000, 64, row_optimizer=RowwiseAdagrad.fused())
    middle = table.weight.data_ptr() + table.weight.numel() * 2
    assert "hg" in flags_at(middle)


def test_small_tensors_and_tensors_of_other_devices_are_left_alone():
    memory.prefer_huge_pages(torch.zeros(3))
    memory.prefer_huge_pages(torch.zeros(3, device="meta"))
    memory.prefer_huge_pages(torch.empty(0))
