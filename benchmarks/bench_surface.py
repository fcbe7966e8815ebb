"""How fast is a head step at every size?  B 32 to 4096, D 16 to 512, n 64 to 8000, C=500,000.

A step is zero_grad, loss, backward to the queries, and the update of the rows by
`tapas.optim.RowwiseAdagrad`. Beside ours with one pass (r=1) and two (r=8): plain PyTorch and
TensorFlow's sparse Adagrad with the same n and one pass, and the floor, the bare reads of the
B + n rows and the three matrix products. Contenders take turns on the same batches, those of torch
in this process, TensorFlow in one of its own with two threads (its environment is that of
bench_peers.py; without it the column says why). One and two threads: targets are for two.

Some 12 minutes. Finished cells are kept in a temporary file named by the commit: a run that was
interrupted, or that `--minutes 3` ended early, continues where it was. `--dims 64 256` measures
only these, for a run without them to continue. `--quick` tries 8 cells.
"""

import argparse
import gc
import hashlib
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from measuring import OtherWork, arguments, quick, ratio, write_record
from peers.environment import PEERS, LeftOutError
from peers.processes import PAUSE_SECONDS, ContenderProcess, Entry
from surface_grid import (
    DIMS,
    FLOOR,
    ONE,
    PLAIN,
    TENSORFLOW,
    THREADS,
    TWO,
    C,
    Cell,
    R,
    Seconds,
    grid,
    surface_of,
    verdicts,
)
from surface_steps import LEARNING_RATE, SEEN, Tables, Timed

CELL_SECONDS = 2.5  # of timing for each cell, about
TURN_SECONDS = 0.004  # of a turn, at least: short steps are timed several at once
MOST_STEPS = 12  # in a turn
SETTLE_SECONDS = 0.005  # after a turn: waiting threads keep a core busy before they sleep
LONG_STEP_SECONDS = 0.02  # a step this long needs none before it to warm up the caches
FEWEST, MOST = 7, 15  # turns
WARMUP = 2
TRIES, BUSY_CORES = 4, 0.1  # a cell is measured again if others kept more than this busy
TENSORFLOW_ENTRY = Entry(
    module="tensorflow_peer",
    kind="SampledTensorFlow",
    options={"num_samples": 64, "optimizer": "sparse"},
    framework="tensorflow",
)


def take_turns(contenders: Mapping[str, Timed]) -> Seconds:
    """Seconds of a step, by contender and turn; the i-th values are from the same turn.

    Turns are as many as fit into CELL_SECONDS. In a turn, short steps are repeated after one
    that is not timed, and their mean counts.
    """
    step = {name: min(run(WARMUP)) for name, run in contenders.items()}
    steps = {
        name: max(1, min(MOST_STEPS, round(TURN_SECONDS / each))) for name, each in step.items()
    }
    warm = {name: int(each < LONG_STEP_SECONDS) for name, each in step.items()}
    round_seconds = sum((steps[name] + warm[name]) * step[name] for name in contenders)
    turns = max(FEWEST, min(MOST, int(CELL_SECONDS / round_seconds)))
    seconds: Seconds = {name: [] for name in contenders}
    order = list(contenders.items())
    for _ in range(3 if quick() else turns):
        order.append(order.pop(0))  # so that no contender always runs after the same one
        for name, run in order:
            run(warm[name])
            seconds[name].append(float(f"{statistics.mean(run(steps[name])):.4g}"))
            time.sleep(SETTLE_SECONDS)
    return seconds


class TensorFlowTable:
    """A process of TensorFlow with a table of one D; `why_not` says why there is none."""

    def __init__(self, dim: int):
        self.why_not = ""
        self.process: ContenderProcess | None = None
        if quick() and not PEERS.installed():
            self.why_not = "its environment is not installed; a run without --quick installs it"
            return
        sizes = {"num_classes": C, "dim": dim, "batch": 32}
        try:
            self.process = ContenderProcess(
                TENSORFLOW_ENTRY, sizes=sizes, threads=THREADS[0], check_only=False
            )
            self.process.answer()
        except LeftOutError as error:
            self.close(f"TensorFlow {error}")

    def contender(self, cell: Cell) -> dict[str, Timed]:
        if self.process is None or cell.threads != THREADS[0]:
            return {}
        process = self.process
        try:
            process.change(batch=cell.B, num_samples=cell.n)
        except LeftOutError as error:
            self.close(f"TensorFlow {error}")
            return {}

        def run(count: int) -> list[float]:
            if count == 0:
                return []
            time.sleep(PAUSE_SECONDS)  # until the threads of torch are idle
            seconds = process.each_step(count)
            time.sleep(PAUSE_SECONDS)
            return seconds

        return {TENSORFLOW: run}

    def close(self, why: str = "") -> None:
        self.why_not = why or self.why_not
        if self.process is not None:
            self.process.close()
            self.process = None


def measure(tables: Tables, tensorflow: TensorFlowTable, cell: Cell) -> dict[str, Any]:
    """Times of a cell; measured again if other processes were busy, which slows ours unevenly."""
    torch.set_num_threads(cell.threads)
    contenders = tables.contenders(cell)
    for _ in range(TRIES):
        both = contenders | tensorflow.contender(cell)
        others = OtherWork([tensorflow.process.process.pid] if tensorflow.process else [])
        try:
            seconds = take_turns(both)
        except LeftOutError as error:  # it died in the middle
            tensorflow.close(f"TensorFlow {error}")
            continue
        busy = round(others.cores(), 3)
        if busy <= BUSY_CORES:
            break
    return {
        **cell._asdict(),
        "seconds": seconds,
        "other_cores": busy,
        "left_out": tensorflow.why_not,
    }


class State:
    """Cells that are finished, one JSON line each, in a file named by commit and changes."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / f"{version()}.jsonl"

    def read(self) -> dict[Cell, dict[str, Any]]:
        found = {}
        if self.file.exists():
            for line in self.file.read_text().splitlines():
                with suppress(json.JSONDecodeError):  # empty, or the last one of a killed run
                    cell = json.loads(line)
                    found[Cell(*(cell[key] for key in Cell._fields))] = cell
        return found

    def append(self, cell: dict[str, Any]) -> None:
        with self.file.open("a") as file:
            file.write("\n" + json.dumps(cell))  # the last line may have no end


def version() -> str:
    """The commit, and a digest of what was changed since in the code that is measured."""
    here = Path(__file__).parent
    files = ("bench_surface.py", "surface_grid.py", "surface_steps.py", "plain_softmax.py", "peers")

    def git(*words: str) -> str:
        command = ["git", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=here)
        return done.stdout.strip()

    changes = git("diff", "HEAD", "--", ":/src", *files)
    digest = f"-{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else ""
    return (git("rev-parse", "--short", "HEAD") or "no-commit") + digest


def measure_all(cells: Iterable[Cell], state: State | None, end: float) -> list[dict[str, Any]]:
    """All cells, those of `state` without measuring; stops with words at `end` (monotonic)."""
    done = state.read() if state else {}
    if done:
        print(f"{len(done)} cells are in {state.file}")
    cells = list(cells)
    for dim, group in groupby(cells, key=lambda cell: cell.D):
        left = [cell for cell in group if cell not in done]
        if not left:
            continue
        tensorflow, tables = TensorFlowTable(dim), Tables(dim)
        try:
            for cell in left:
                if time.monotonic() > end:
                    raise SystemExit(
                        f"{len(done)} of {len(cells)} cells are finished: run again to continue."
                    )
                done[cell] = measure(tables, tensorflow, cell)
                if state:
                    state.append(done[cell])
                print_cell(cell, done[cell])
        finally:
            tensorflow.close()
        del tables
        gc.collect()  # before the next ones are built
    return [done[cell] for cell in cells]


def print_cell(cell: Cell, found: dict[str, Any]) -> None:
    seconds = found["seconds"]
    times = "".join(
        f"{name} {1000 * statistics.median(values):.3g} ms, " for name, values in seconds.items()
    )
    words = (
        f"{cell}, {cell.threads} thread{'s' if cell.threads > 1 else ''}: {times}"
        f"plain / r=1 {ratio(seconds[PLAIN], seconds[ONE])}, "
        f"plain / r={R} {ratio(seconds[PLAIN], seconds[TWO])}, "
        f"r={R} / r=1 {ratio(seconds[TWO], seconds[ONE])}, "
        f"r=1 / floor {ratio(seconds[ONE], seconds[FLOOR])}"
    )
    words += f"; left out: {found['left_out']}" if found["left_out"] else ""
    busy = found["other_cores"]
    print(words + (f"; others kept {busy} cores busy" if busy > BUSY_CORES else ""), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after these")
    parser.add_argument("--dims", type=int, nargs="+", choices=DIMS, help="only these; no record")
    given = parser.parse_args(arguments())
    end = time.monotonic() + 60 * given.minutes
    torch.sparse.check_sparse_tensor_invariants.disable()  # otherwise Adagrad prints a warning
    state = None if quick() else State(Path(tempfile.gettempdir()) / "tapas-surface")
    cells = [cell for cell in grid(quick()) if cell.D in (given.dims or DIMS)]
    results = {"cells": measure_all(cells, state, end)}
    torch.set_num_threads(THREADS[0])
    for threads in THREADS[1:]:
        for target in verdicts(surface_of(results, threads)):
            print(f"with {threads} thread: {target}")
    if given.dims and state:
        print(*verdicts(surface_of(results, THREADS[0])), sep="\n")
        print(f"no record of some dimensions only; their cells are in {state.file}")
        return
    write_record(
        "surface",
        {"C": C, "seen": SEEN, "r": R, "learning_rate": LEARNING_RATE},
        results,
        targets=verdicts(surface_of(results, THREADS[0])),
    )
    if state:
        state.file.unlink()  # the next run measures anew


if __name__ == "__main__":
    main()
