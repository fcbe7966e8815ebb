"""`tapas` with a planned fault for each attempt of a job, such as FAULTS="kill@1:7 hang@0:9".

Each is KIND@RANK:STEP.
"""

import ctypes
import os
import signal

from forked import tapas_main

from tapas.cli import stop_request as stopping
from tapas.distributed import peer_failure
from tapas.training import step as steps

inner = steps.step


def wait_for_ever():
    """In C, as in a collective of gloo: handlers of signals in Python do not run."""
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)


def step(*args, number, **options):
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    planned = (os.environ.get("FAULTS", "").split() + [""] * (attempt + 1))[attempt]
    kind, _, place = planned.partition("@")
    if place == f"{os.environ['RANK']}:{number}":
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "hang":
            wait_for_ever()
        raise ValueError("a fault that was planned")
    return inner(*args, number=number, **options)


def faulty_tapas(*arguments):
    peer_failure.GRACE_SECONDS, stopping.PATIENCE_SECONDS = 1.0, 2
    steps.step = step
    tapas_main(*arguments)
