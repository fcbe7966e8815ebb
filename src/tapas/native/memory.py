"""A hint to the system about tables that are read at random."""

import ctypes
import mmap

from torch import Tensor

WORTH_IT = 64 << 20  # bytes; below, the processor remembers where all pages are


def prefer_huge_pages(tensor: Tensor) -> None:
    """Ask for pages of 2 MB for `tensor`, before anything is written to it.

    Rows are read at random from gigabytes: with pages of 4 kB the processor looks up where
    each one is, in tables that do not fit into its caches either. A hint (Linux): where it is
    not understood, nothing changes but the speed.
    """
    size = tensor.numel() * tensor.element_size()
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    madvise = getattr(ctypes.CDLL(None), "madvise", None) if advice is not None else None
    if madvise is None or tensor.device.type != "cpu" or size < WORTH_IT:
        return
    start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (tensor.data_ptr() + size - start) // mmap.PAGESIZE * mmap.PAGESIZE
    madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), advice)
