"""How many threads this process may use, and how they wait for each other.

OpenMP reads its variables when torch is loaded, so this file does not import torch. A library
leaves the environment of its process alone; only the command, whose process is its own, sets
what `waiting_variables` returns.
"""

import math
import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from tapas.cgroups import ROOT, cpu_quota
from tapas.errors import UsageError

MOST_THREADS = 1024  # OpenMP crashes with many more
NUM_THREADS, POLICY = "OMP_NUM_THREADS", "OMP_WAIT_POLICY"
# How long a thread that waits keeps its core busy before it sleeps. By default, milliseconds (200
# for Intel's OpenMP): whoever else needs the core slows every step several times. Sleeping at
# once costs more than it saves. Measured by benchmarks/bench_neighbour.py.
WAITING = {
    "GOMP_SPINCOUNT": "1000",  # libgomp, with which torch is built on Linux: some 20 us
    "KMP_BLOCKTIME": "1",  # milliseconds; libomp and libiomp5, in other builds of torch
}
RUNTIMES = {"libgomp": "GOMP_SPINCOUNT", "libiomp5": "KMP_BLOCKTIME", "libomp": "KMP_BLOCKTIME"}


def waiting_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of WAITING that `environ` lacks; none if a policy is chosen in it.

    >>> waiting_variables({"GOMP_SPINCOUNT": "30000"})
    {'KMP_BLOCKTIME': '1'}
    """
    if POLICY in environ:
        return {}
    return {name: value for name, value in WAITING.items() if name not in environ}


def set_waiting(environ: MutableMapping[str, str] = os.environ) -> None:
    """For the command only, before torch is imported: nobody reads the variables later."""
    if "torch" not in sys.modules:
        environ.update(waiting_variables(environ))


def describe_waiting(environ: Mapping[str, str] = os.environ, *, root: Path = ROOT) -> str:
    """The OpenMP libraries in this process, and the variables that say how their threads wait.

    There should be one: two have twice the threads.
    """
    try:
        maps = (root / "proc/self/maps").read_text()
    except OSError:
        maps = ""
    found = {name: variable for name, variable in RUNTIMES.items() if f"/{name}" in maps}
    variables = (POLICY, *dict.fromkeys(found.values()))
    given = [f"{name}={environ[name]}" for name in variables if name in environ]
    return f"{' and '.join(found) or 'OpenMP'}, {', '.join(given) or 'as by default'}"


def allowed_cores(*, root: Path = ROOT) -> int:
    """Cores that this process may use: by its affinity (taskset), and the quota of its cgroup.

    A quota of 2.5 cores is 2: a thread more would be stopped for a part of the time, and all others
    would wait for it.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    quota = cpu_quota(root)
    return cores if math.isinf(quota) else max(1, min(cores, int(quota)))


def requested_threads(environ: Mapping[str, str] = os.environ) -> int | None:
    """The number of threads in OMP_NUM_THREADS; None if it is not set.

    A list, such as "4,2", has numbers for nested regions after the first. OpenMP itself ignores
    what is no number, and ends the process where it is too large.
    """
    words = environ.get(NUM_THREADS)
    if words is None:
        return None
    first = words.split(",")[0].strip()
    if not (first.isascii() and first.isdigit() and 1 <= int(first[:9]) <= MOST_THREADS):
        raise UsageError(
            f"{NUM_THREADS} is {words!r}; expected an integer from 1 to {MOST_THREADS:,}. Correct "
            "it, or unset it to use all cores."
        )
    return int(first)
