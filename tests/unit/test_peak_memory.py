"""Peak memory as counted by the kernel, or None."""

import sys

import numpy as np
import pytest

from tapas.peak_memory import forget_peak, peak_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps this count")
def test_a_large_array_counts_until_the_peak_is_reset():
    forget_peak()
    before = peak_bytes()
    held = np.ones(8 << 20)  # 64 MiB
    del held
    peak = peak_bytes()
    assert peak - before > 48 << 20
    forget_peak()
    assert peak_bytes() < peak - (32 << 20)


def test_the_count_is_read_in_kilobytes(tmp_path):
    (tmp_path / "status").write_text("VmPeak:\t  10 kB\nVmHWM:\t    7 kB\nVmRSS:\t    5 kB\n")
    assert peak_bytes(tmp_path) == 7 * 1024
    forget_peak(tmp_path)
    assert (tmp_path / "clear_refs").read_text() == "5"


def test_without_a_count_by_the_kernel_it_is_none(tmp_path):
    assert peak_bytes(tmp_path) is None
    (tmp_path / "status").write_text("Name: x\n")
    assert peak_bytes(tmp_path) is None
    forget_peak(tmp_path / "nowhere")
