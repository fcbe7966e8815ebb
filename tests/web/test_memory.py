"""What a server does so that its memory stays, in a process of its own."""

import platform
import subprocess
import sys

import pytest

GARBAGE = """
import gc
from tapas.web.models import YOUNG_OBJECTS, settle_garbage

assert gc.get_freeze_count() == 0
for _ in range(2):  # at the start, and after a reload
    stays = [[] for _ in range(1000)]
    stays.append(stays)
    settle_garbage()
    assert gc.get_freeze_count() > 1000
    assert gc.get_threshold()[0] == YOUNG_OBJECTS
    del stays
settle_garbage()  # what was frozen is found, too, once nobody needs it
before = gc.get_freeze_count()
settle_garbage()
assert abs(gc.get_freeze_count() - before) < 1000
"""

PAGES = """
import ctypes
from tapas.native.memory import OWN_PAGES, keep_large_arrays_apart

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
    ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p])

class Info(ctypes.Structure):  # of mallinfo2
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]

libc.mallinfo2.restype = Info

def has_own_pages():
    before = libc.mallinfo2().hblks
    address = libc.malloc(2 * OWN_PAGES)
    found = libc.mallinfo2().hblks > before
    libc.free(address)
    return found

if {keep}:
    keep_large_arrays_apart()
libc.free(libc.malloc(64 * OWN_PAGES))  # from now on glibc takes smaller ones from its heap
assert has_own_pages() is {keep}
"""


def run(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_what_stays_is_not_looked_through_again():
    run(GARBAGE)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can do it")
@pytest.mark.parametrize("keep", [True, False])
def test_large_arrays_have_pages_of_their_own_for_good(keep):
    run(PAGES.replace("{keep}", str(keep)))
