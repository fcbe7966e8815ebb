"""What does a busy process on the same machine cost?  Head steps and a training step, two threads.

Each contender is a process of its own; they take turns, alone and beside one process that keeps a
core busy. "default" is our head in an environment where nothing is set, as when the library is
imported; "command" is the same head in the environment in which `tapas` starts itself and its
processes. The training step is that of bench_whole_step.py, with its GRU. Targets: alone, the
command's environment costs at most 1.05 times the default's; beside the busy process a step takes
at most 2 times as long as alone, and nine of ten steps at most 3 times. Arguments such as
`GOMP_SPINCOUNT=0` or `OMP_WAIT_POLICY=passive` add contenders with these variables.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from measuring import (
    OtherWork,
    Target,
    arguments,
    quartiles,
    quick,
    ratio_target,
    rounded,
    write_record,
)
from peers.processes import PAUSE_SECONDS, ContenderPool, Entry

THREADS, C = 2, 500_000
ROUNDS, QUICK_ROUNDS = 8, 2
BLOCK_SECONDS, FEWEST_STEPS, MOST_STEPS = 0.4, 5, 40  # of a turn, as long as it takes alone
WARMUP = 3
TRIES, BUSY_CORES = 4, 0.2  # blocks are measured again if others kept more than this busy
DEFAULT, COMMAND, PLAIN = "default", "command", "plain PyTorch"
ALONE, BESIDE = "alone", "beside"
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # variables that decide it
TRAINING = "training step with the GRU"
HEADS = {  # B, D, n, r
    "head (1024, 64, 1000, r=8)": (1024, 64, 1000, 8),
    "head (128, 128, 256, r=8)": (128, 128, 256, 8),
    "head (64, 64, 1000, r=1)": (64, 64, 1000, 1),
}
BUSY = """
import os
parent = os.getppid()
print("busy", flush=True)
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""  # ends by itself when the benchmark is gone
Turns = dict[str, dict[str, list[list[float]]]]  # contender, alone or beside, rounds, steps


def command_environment() -> dict[str, str]:
    """What the `tapas` command sets before torch is loaded."""
    try:
        from tapas.threads import waiting_variables
    except ModuleNotFoundError:
        return {"GOMP_SPINCOUNT": "1000"}
    return waiting_variables({})


def environments(words: Sequence[str]) -> dict[str, dict[str, str]]:
    """Contenders with our head, and the variables of each; `words` like NAME=value add some."""
    found = {DEFAULT: {}, COMMAND: command_environment()}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in WAITING:
            raise SystemExit(f"'{word}' is not {' or '.join(f'{n}=value' for n in WAITING)}.")
        found[word] = {name: value}
    return found


@contextmanager
def busy_process() -> Iterator[int]:
    """One process that computes for as long as the context lasts; gives its pid."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()  # until it has begun
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def start(pool: ContenderPool, case: str, words: Sequence[str]) -> None:
    """The processes of all contenders of a case."""
    settings: dict[str, Any] = {"threads": THREADS, "check_only": False}
    if case == TRAINING:
        entry = Entry(
            module="whole_step",
            kind="WholeStep",
            options={"num_samples": 1000, "presample_factor": 8},
        )
        settings |= {"sizes": {"num_classes": C, "dim": 64, "batch": 1000}, "check": False}
    else:
        batch, dim, num_samples, factor = HEADS[case]
        settings["sizes"] = {"num_classes": C, "dim": dim, "batch": batch}
        options = {"num_samples": num_samples}
        entry = Entry(module="ours", kind="Ours", options=options | {"presample_factor": factor})
        plain = Entry(module="torch_peers", kind="Sampled", options=options)
        pool.start(PLAIN, plain, **settings)
    for name, environment in environments(words).items():
        pool.start(name, entry, environment=environment, **settings)


def blocks(
    pool: ContenderPool, steps: Mapping[str, int], first: int, neighbour: Sequence[int] = ()
) -> dict[str, list[float]]:
    """Seconds of each step of one block for each contender, `first` to begin with.

    All are measured again if processes other than contenders and `neighbour` (pids) were busy.
    """
    names = list(steps)
    known = [process.process.pid for process in pool.processes.values()]
    for _ in range(TRIES):
        found = {}
        others = OtherWork([*known, *neighbour])
        for name in names[first % len(names) :] + names[: first % len(names)]:
            time.sleep(PAUSE_SECONDS)
            pool.processes[name].each_step(1)
            seconds = pool.processes[name].each_step(steps[name])
            found[name] = [float(f"{each:.4g}") for each in seconds]
        if others.cores() <= BUSY_CORES:
            break
    return found


def measure(case: str, words: Sequence[str]) -> Turns:
    with ContenderPool() as pool:
        start(pool, case, words)
        if pool.left_out:
            raise SystemExit("a contender cannot run: there is nothing to compare.")
        steps = {}
        for name in pool.processes:
            once = min(pool.processes[name].each_step(WARMUP))
            steps[name] = max(FEWEST_STEPS, min(MOST_STEPS, int(BLOCK_SECONDS / once)))
        turns: Turns = {name: {ALONE: [], BESIDE: []} for name in steps}
        for number in range(QUICK_ROUNDS if quick() else ROUNDS):
            for name, seconds in blocks(pool, steps, number).items():
                turns[name][ALONE].append(seconds)
            with busy_process() as neighbour:
                for name, seconds in blocks(pool, steps, number, [neighbour]).items():
                    turns[name][BESIDE].append(seconds)
    return turns


def medians(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The median step of each round."""
    return [statistics.median(steps) for steps in rounds]


def ninth_decile(rounds: Sequence[Sequence[float]]) -> float:
    """The time that nine steps out of ten do not exceed."""
    return statistics.quantiles([step for steps in rounds for step in steps], n=10)[-1]


def verdicts(case: str, turns: Turns) -> list[Target]:
    alone, beside = turns[COMMAND][ALONE], turns[COMMAND][BESIDE]
    middle = statistics.median(step for steps in alone for step in steps)
    return [
        ratio_target(
            f"{case}, alone: command's environment / default",
            medians(alone),
            medians(turns[DEFAULT][ALONE]),
            "at most",
            1.05,
        ),
        ratio_target(
            f"{case}: beside a busy process / alone",
            medians(beside),
            medians(alone),
            "at most",
            2,
        ),
        Target(
            measure=f"{case}: p90 beside a busy process / median alone",
            target=3,
            kind="at most",
            reading=ninth_decile(beside) / middle,
        ),
    ]


def print_table(case: str, turns: Turns) -> None:
    print(f"\n{case}\n  {'contender':<28}{'alone, ms':<34}{'beside a busy process, ms':<34}")
    for name, found in turns.items():
        cells = []
        for rounds in (found[ALONE], found[BESIDE]):
            steps = [1000 * step for each in rounds for step in each]
            low, high = (rounded(value) for value in quartiles(steps))
            middle, most = statistics.median(steps), 1000 * ninth_decile(rounds)
            cells.append(f"{rounded(middle)} [{low}, {high}], p90 {rounded(most)}")
        print(f"  {name:<28}{cells[0]:<34}{cells[1]:<34}", flush=True)


def main() -> None:
    words = arguments()
    for name in WAITING:
        os.environ.pop(name, None)  # the default is that nothing is set
    torch.set_num_threads(THREADS)
    cases, targets = {}, []
    for case in (*HEADS, TRAINING):
        cases[case] = measure(case, words)
        print_table(case, cases[case])
        targets += verdicts(case, cases[case])
    write_record(
        "neighbour",
        {"C": C, "rounds": ROUNDS, "environments": environments(words)},
        {"cases": cases},
        targets=targets,
    )


if __name__ == "__main__":
    main()
