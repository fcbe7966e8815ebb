"""How fast is a log prepared?  20 million events, 500,000 users, 300,000 items.

The floor is what polars alone needs to read the same file and sort it by user and time, with
nothing coded, checked or written. Contenders take turns, each in a new process, so that its peak
memory can be measured. Targets: 2 million events a second on two cores, and a peak below 3 GiB.
Times include no imports.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
from measuring import (
    Target,
    arguments,
    peak_bytes,
    quartiles,
    quick,
    ratio,
    resident_bytes,
    spread,
    write_record,
)

from tapas.data import LogSource, prepare_log
from tapas.data.local_files import literal

EVENTS, USERS, ITEMS, REPEATS = 20_000_000, 500_000, 300_000, 3
YEARS_SECONDS = 3 * 365 * 86_400


def write_events(file: Path, num_events: int) -> None:
    """Long-tailed items (log-uniform), uniform users and times to the second, in no order."""
    draw = np.random.default_rng(0)
    item = np.exp(draw.random(num_events) * math.log(ITEMS)).astype(np.int64)
    user = draw.integers(USERS, size=num_events)
    seconds = draw.integers(YEARS_SECONDS, size=num_events) + 1_600_000_000
    pl.DataFrame(
        {
            "user_id": user * 13 + 10**10,
            "item_id": item * 7919 + 10**9,  # too sparse for a plain array
            "timestamp": pl.Series(seconds * 1_000_000).cast(pl.Datetime("us")),
        }
    ).write_parquet(literal(file))


def prepare(file: Path, cache: Path) -> None:
    prepare_log(LogSource(files=(str(file),)), cache)


def floor(file: Path, cache: Path) -> None:
    pl.read_parquet(literal(file), glob=False).sort("user_id", "timestamp")


CONTENDERS: dict[str, Callable[[Path, Path], None]] = {"floor": floor, "prepare_log": prepare}


def measure(name: str, file: Path, cache: Path) -> dict[str, float]:
    """Measure in this process: seconds of a first and a second call, and peak resident memory."""
    seconds = []

    def call() -> None:
        start = time.perf_counter()
        CONTENDERS[name](file, cache)
        seconds.append(time.perf_counter() - start)

    before = resident_bytes()
    peak = before + peak_bytes(call)
    if name == "prepare_log":
        call()
    return {"seconds": seconds[0], "again_seconds": seconds[-1], "peak_bytes": peak}


def targets(runs: dict[str, list[dict[str, float]]], num_events: int) -> list[Target]:
    rates = [num_events / run["seconds"] for run in runs["prepare_log"]]
    low, high = quartiles(rates)
    peaks = [run["peak_bytes"] / 2**30 for run in runs["prepare_log"]]
    return [
        Target(
            measure="events prepared in a second",
            target=2_000_000,
            kind="at least",
            reading=statistics.median(rates),
            low=low,
            high=high,
            unit="events/s",
        ),
        Target(
            measure="peak memory of preparing them",
            target=3,
            kind="at most",
            reading=max(peaks),
            unit="GiB",
        ),
    ]


def main() -> None:
    num_events = EVENTS // 20 if quick() else EVENTS
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log.parquet"
        write_events(file, num_events)
        for turn in range(REPEATS + 1):  # the first turn warms the file cache
            for name in CONTENDERS:
                cache = Path(folder) / f"cache-{turn}"
                command = [sys.executable, __file__, name, str(file), str(cache)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                if turn:
                    runs[name].append(json.loads(done.stdout))
        file_bytes = file.stat().st_size
    seconds = {name: [run["seconds"] for run in turns] for name, turns in runs.items()}
    for name, turns in runs.items():
        rate = num_events / statistics.median(seconds[name])
        peak = max(run["peak_bytes"] for run in turns)
        print(f"{name:<13}{spread(seconds[name])}  {rate:,.0f} events/s  {peak / 2**30:.2f} GiB")
    print(f"prepare_log / floor: {ratio(seconds['prepare_log'], seconds['floor'])}")
    print(f"second call: {spread([run['again_seconds'] for run in runs['prepare_log']])}")
    write_record(
        "ingest",
        {
            "events": num_events,
            "users": USERS,
            "items": ITEMS,
            "file_bytes": file_bytes,
            "polars": pl.__version__,
            "load_average": os.getloadavg(),  # other processes may have run
        },
        {"runs": runs},
        targets=targets(runs, num_events),
    )


if __name__ == "__main__":
    if arguments():  # one contender, in this process
        contender, log_file, cache_folder = arguments()
        print(json.dumps(measure(contender, Path(log_file), Path(cache_folder))))
    else:
        main()
