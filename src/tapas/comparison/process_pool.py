"""Runs several runs at once, each in a process with one thread."""

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress

from tapas.comparison.ledger import Ledger, Result, Run
from tapas.heads.own_method import OWN_METHODS, import_method

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
Progress = Callable[[int, int], None]  # runs done, runs in all; first at the start


def run_missing(
    ledger: Ledger,
    runs: Iterable[Run],
    execute: Callable[[Run], Result],
    progress: Progress,
    *,
    workers: int,
) -> None:
    """Execute the `runs` that the ledger lacks, and add each result as soon as it is ready."""
    wanted = {run.key(): run for run in runs}
    todo = ledger.missing(wanted.values())
    done = len(wanted) - len(todo)
    if not todo:
        return
    progress(done, len(wanted))
    if workers == 1:
        for run in todo:
            ledger.add(execute(run))
            done += 1
            progress(done, len(wanted))
        return
    spawn = multiprocessing.get_context("spawn")  # forking a process with torch threads is not safe
    pool = ProcessPoolExecutor(
        min(workers, len(todo)), spawn, _prepare, initargs=(tuple(OWN_METHODS),)
    )
    try:
        pending = [pool.submit(execute, run) for run in todo]
        for future in as_completed(pending):
            ledger.add(future.result())
            done += 1
            progress(done, len(wanted))
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _prepare(own_methods: tuple[str, ...]) -> None:
    """Ignore Ctrl-C, which the parent handles; on Linux, die with the parent. Import methods."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in own_methods:
        import_method(name)
