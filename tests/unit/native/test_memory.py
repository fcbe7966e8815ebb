"""The hint reaches the system where there is one to take it, and harms nowhere else."""

import re
from pathlib import Path

import pytest
import torch

from tapas import LocalTable
from tapas.native import memory
from tapas.optim import RowwiseAdagrad

SMAPS = Path("/proc/self/smaps")
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def flags_at(address):
    """What the system notes about the memory at `address`."""
    inside = False
    for line in SMAPS.read_text().splitlines():
        if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(span[1], 16) <= address < int(span[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    return []


@pytest.mark.skipif(not (SMAPS.exists() and THP.exists()), reason="no such pages here")
def test_a_large_table_is_asked_for_in_huge_pages(monkeypatch):
    monkeypatch.setattr(memory, "WORTH_IT", 8 << 20)
    table = LocalTable(40_000, 64, row_optimizer=RowwiseAdagrad.fused())
    middle = table.weight.data_ptr() + table.weight.numel() * 2
    assert "hg" in flags_at(middle)


def test_small_and_foreign_tensors_are_left_alone():
    memory.prefer_huge_pages(torch.zeros(3))
    memory.prefer_huge_pages(torch.zeros(3, device="meta"))
    memory.prefer_huge_pages(torch.empty(0))
