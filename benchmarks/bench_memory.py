"""Does a run need the memory that was planned?  `tapas train` on a made-up log, 500,000 items.

Each setting is a run of the command with two threads, an evaluation and a checkpoint; it prints the
peak of its process beside the plan. Target: the plan is within 15 % of the peak, for each encoder,
optimizer of rows and number type. Arguments are logs of your own to try beside it.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from measuring import Target, arguments, quick, write_record

from tapas.cli.plan import amount_of_memory
from tapas.data.local_files import literal

ITEMS, EVENTS, USERS = 500_000, 3_000_000, 40_000
SETTINGS = {
    "defaults": [],
    "bfloat16 rows": ["model.dtype=bfloat16"],
    "mean": ["model.encoder=mean"],
    "mean, history 200, shared inputs": [
        "model.encoder=mean", "model.history=200", "model.inputs=shared",
    ],
    "transformer": ["model.encoder=transformer"],
    "lazy-adam": ["optimizer.rows=lazy-adam"],
    "adagrad, bfloat16 rows": ["optimizer.rows=adagrad", "model.dtype=bfloat16"],
    "sgd": ["optimizer.rows=sgd"],
}  # fmt: skip
SAID = re.compile(r"Memory: (\S+ \S+) at most, (\S+ \S+) planned\.")


def write_log(path: Path) -> None:
    """Items with probability about 1 / (id + 1), each at least once."""
    draw = np.random.default_rng(0)
    items = np.expm1(draw.random(EVENTS) * np.log1p(ITEMS)).astype(np.int64).clip(max=ITEMS - 1)
    items[:ITEMS] = np.arange(ITEMS)
    users = draw.integers(USERS, size=EVENTS)
    times = np.sort(draw.integers(1_600_000_000, 1_700_000_000, size=EVENTS))
    pl.DataFrame({"user": users, "item": items, "time": times}).write_parquet(literal(path))


def measure(log: Path, settings: list[str], folder: Path) -> tuple[int, int]:
    """Peak and planned bytes of a run."""
    flags = [word for each in settings for word in ("--set", each)]
    done = subprocess.run(
        [sys.executable, "-m", "tapas", "train", str(log), "--out", str(folder / "run"), "--steps",
         "30", "--cache", str(folder.parent / "cache"), *flags],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = SAID.search(done.stderr)
    if found is None:
        raise SystemExit(f"{log.name}, {settings}: {done.stderr.strip().splitlines()[-1]}")
    return amount_of_memory(found[1]), amount_of_memory(found[2])


def main() -> None:
    results, targets = {}, []
    with tempfile.TemporaryDirectory() as name:
        made = Path(name) / "made-up.parquet"
        write_log(made)
        logs = [made, *map(Path, arguments())]
        for log in logs:
            for setting, words in list(SETTINGS.items())[: 2 if quick() else None]:
                with tempfile.TemporaryDirectory(dir=name) as folder:
                    peak, planned = measure(log, words, Path(folder))
                where = f"{log.stem}, {setting}"
                results[where] = {"peak_bytes": peak, "planned_bytes": planned}
                off = 100 * abs(peak / planned - 1)
                print(f"{where:<54}{peak / 1e6:6.0f} MB, planned {planned / 1e6:6.0f} MB")
                measure_name = f"peak of training against its plan, {where}"
                targets.append(
                    Target(measure=measure_name, target=15, kind="at most", reading=off, unit="%")
                )
    write_record("memory", {"items": ITEMS, "events": EVENTS}, {"runs": results}, targets=targets)


if __name__ == "__main__":
    main()
