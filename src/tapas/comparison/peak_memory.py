"""The most memory that this process has held since a moment, as the kernel counts it."""

import ctypes
import gc
import re
from contextlib import suppress
from pathlib import Path

SELF = Path("/proc/self")
RESET_PEAK = "5"  # of Linux's /proc/self/clear_refs


def forget_peak(process: Path = SELF) -> None:
    """Begin anew at what is held now; does nothing where the kernel keeps no such count.

    What is free but was not given back would count as held: it is given back first.
    """
    gc.collect()
    with suppress(OSError, AttributeError):  # not glibc's
        ctypes.CDLL(None).malloc_trim(0)
    try:
        (process / "clear_refs").write_text(RESET_PEAK)
    except OSError:
        return


def peak_bytes(process: Path = SELF) -> int | None:
    """Most bytes resident since `forget_peak`; None where the kernel does not say."""
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB$", (process / "status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return 1024 * int(found[1]) if found else None
