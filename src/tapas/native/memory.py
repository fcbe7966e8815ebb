"""Memory of this process: huge pages for tables, and giving back what is not used."""

import ctypes
import mmap

from torch import Tensor

MIN_BYTES = 64 << 20  # smaller tensors fit the processor's cache of page addresses (TLB)
M_MMAP_THRESHOLD, OWN_PAGES = -3, 128 << 10  # of glibc's malloc.h, and its value at the start


def prefer_huge_pages(tensor: Tensor) -> None:
    """Ask Linux for pages of 2 MB for `tensor`; call it before anything is written.

    Reading rows at random from gigabytes misses the TLB with pages of 4 kB, and the page tables
    do not fit into the caches either. On other systems this does nothing.
    """
    size = tensor.numel() * tensor.element_size()
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    madvise = getattr(ctypes.CDLL(None), "madvise", None) if advice is not None else None
    if madvise is None or tensor.device.type != "cpu" or size < MIN_BYTES:
        return
    start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (tensor.data_ptr() + size - start) // mmap.PAGESIZE * mmap.PAGESIZE
    madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), advice)


def trim_heap() -> None:
    """Give memory that is free, but scattered over the heap, back to the system.

    Steps whose tensors differ in size leave gaps that no later tensor fits into: the heap would
    grow to several times what a step needs. Only glibc can do this; elsewhere it does nothing.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keep_large_arrays_apart() -> None:
    """Let arrays of 128 kB and more have pages of their own for good, given back once freed.

    glibc begins like this, but when a larger array is freed, later ones of its size come from the
    heap of their thread, where small objects that live longer leave gaps: a server grew by 10 MB
    with each model that a thread loaded for it. Only glibc can do this; elsewhere it does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, OWN_PAGES)
