"""Forks of a process whose OpenMP threads have worked: `os.fork`, or multiprocessing's "fork".

A fork copies only the thread that calls it. libgomp does not notice: the first operation of torch
or of our kernels with several threads would wait for ever for threads that the child does not
have. So they are ended before a fork, by the call that OpenMP has for it, and parent and child
start new ones when they need them. Other OpenMP libraries look after this themselves.
"""

import ctypes
import os
import sys

SOFT = 1  # omp_pause_soft: keep the settings


def end_idle_threads() -> None:
    """End the OpenMP threads of the calling thread, which do nothing at the moment."""
    if "torch" not in sys.modules:
        return
    pause = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
    if pause is not None:
        pause(SOFT)


def prepare_for_forks() -> None:
    """Call `end_idle_threads` before every fork of this process."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=end_idle_threads)
