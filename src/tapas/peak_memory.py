"""Peak resident memory of this process since a reset, as Linux counts it."""

import ctypes
import gc
import re
from contextlib import suppress
from pathlib import Path

SELF = Path("/proc/self")
RESET_PEAK = "5"  # of Linux's /proc/self/clear_refs


def forget_peak(process: Path = SELF) -> None:
    """Reset the peak to the present size; does nothing where the kernel has no such counter.

    Free memory is returned to the system first, because it would count as resident.
    """
    gc.collect()
    with suppress(OSError, AttributeError):  # not glibc's
        ctypes.CDLL(None).malloc_trim(0)
    try:
        (process / "clear_refs").write_text(RESET_PEAK)
    except OSError:
        return


def peak_bytes(process: Path = SELF) -> int | None:
    """Peak resident bytes since `forget_peak`; None where the kernel has no such counter."""
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB$", (process / "status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return 1024 * int(found[1]) if found else None
