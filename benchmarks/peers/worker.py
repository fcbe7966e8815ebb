"""The program of a contender's process: runs steps on command.

It first prints one JSON line that describes the contender. Each line that it reads is JSON: a
number of steps to run, which it answers with the seconds of each, or an object with sizes to
change to (`Contender.change`), which it answers when it is ready; until its input is closed.
"""

import ctypes
import importlib
import itertools
import json
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from peers.contender import Contender, Sizes, check


def set_up(framework: str, num_threads: int) -> None:
    if framework == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(num_threads)
        tf.random.set_seed(0)
    else:
        import torch

        torch.set_num_threads(num_threads)
        torch.manual_seed(0)


def give_back_memory() -> None:
    """Return freed memory to the system: steps would reuse it, and their peak would look lower."""
    with suppress(AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)


class Clock:
    """Runs steps of a contender, each on the next batch."""

    def __init__(self, contender: Contender):
        self.contender, self.number = contender, 0

    def steps(self, count: int) -> list[float]:
        """Seconds of each of `count` steps."""
        clock = [time.perf_counter()]
        for _ in range(count):
            self.contender.step(self.number)
            self.number += 1
            clock.append(time.perf_counter())
        return [end - start for start, end in itertools.pairwise(clock)]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the parent closes our input
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of a framework is not a reply

    def reply(value: Any) -> None:
        replies.write(json.dumps(value) + "\n")

    settings = json.loads(sys.argv[1])
    set_up(settings["framework"], settings["threads"])
    make = getattr(importlib.import_module(f"peers.{settings['module']}"), settings["kind"])
    if settings.get("check", True):
        check(make, settings["options"])
    if settings["check_only"]:
        reply({})
        return
    contender = make(Sizes(**settings["sizes"]), **settings["options"])
    clock = Clock(contender)
    give_back_memory()
    reply({"versions": contender.versions, "state_bytes": contender.state_bytes()})
    for line in sys.stdin:
        command = json.loads(line)
        reply(contender.change(**command) if isinstance(command, dict) else clock.steps(command))


if __name__ == "__main__":
    main()
