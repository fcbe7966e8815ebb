"""Timing and records of all benchmarks: contenders take turns in one run, medians and quartiles.

Absolute times drift on shared machines; ratios inside one run do not. A record holds the raw
repeats, the commit and the versions, so that every number can be checked, and its targets.
`--quick` tries a benchmark out: few repeats, no record.
"""

import ctypes
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Literal

import numpy
import torch

RECORDS = Path(__file__).parent / "records"
QUICK_REPEATS = 3
sys.path.append(str(Path(__file__).parents[1]))  # for benchmarks that import experiments


def quick() -> bool:
    return "--quick" in sys.argv[1:]


def arguments() -> list[str]:
    """Command-line arguments without `--quick`."""
    return [word for word in sys.argv[1:] if word != "--quick"]


def interleave(
    contenders: Mapping[str, Callable[[], object]],
    *,
    repeats: int | Mapping[str, int],
    warmup: int = 3,
) -> dict[str, list[float]]:
    """Seconds of `repeats` calls of each contender, taken in turns after `warmup` rounds.

    A contender with fewer repeats than others drops out after its last one, and warms up at most
    as often as it is timed. The i-th values of all contenders are from the same turn.
    """
    rounds = {name: repeats if isinstance(repeats, int) else repeats[name] for name in contenders}
    if quick():
        rounds, warmup = {name: min(n, QUICK_REPEATS) for name, n in rounds.items()}, min(warmup, 1)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders.items())
    for turn in range(-warmup, max(rounds.values(), default=0)):
        order.append(order.pop(0))  # so that no contender always runs after the same one
        for name, call in order:
            if not -rounds[name] <= turn < rounds[name]:
                continue
            start = time.perf_counter()
            call()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def fastest(contenders: Mapping[str, Callable[[], object]], *, tries: int = 3) -> str:
    """The contender with the lowest minimum time, such as the best chunk size of a floor."""
    seconds = interleave(contenders, repeats=tries, warmup=1)
    return min(seconds, key=lambda name: min(seconds[name]))


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third quartile; of one or two values, the least and the largest."""
    if len(values) < 3:
        return min(values), max(values)
    low, _, high = statistics.quantiles(values, n=4)
    return low, high


def spread(seconds: Sequence[float]) -> str:
    """Median and quartiles in milliseconds."""
    low, high = quartiles(seconds)
    return f"{1000 * statistics.median(seconds):.2f} ms [{1000 * low:.2f}, {1000 * high:.2f}]"


def ratio_quartiles(
    numerator: Sequence[float], denominator: Sequence[float]
) -> tuple[float, float, float]:
    """Median and quartiles of the ratios of each turn in which both took part."""
    turns = [a / b for a, b in zip(numerator, denominator, strict=False)]
    return statistics.median(turns), *quartiles(turns)


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> str:
    """`ratio_quartiles` as text."""
    middle, low, high = ratio_quartiles(numerator, denominator)
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A target and the measured value, with quartiles if there are repeats."""

    measure: str
    target: float
    kind: Literal["at least", "at most"]
    reading: float
    low: float | None = None
    high: float | None = None
    unit: str = "×"

    @property
    def met(self) -> bool:
        if self.kind == "at least":
            return self.reading >= self.target
        return self.reading <= self.target

    @property
    def verdict(self) -> str:
        """Whether the target is met, and whether it lies between the quartiles."""
        word = "met" if self.met else "MISSED"
        if self.low is not None and self.high is not None and self.low < self.target < self.high:
            return f"{word}, within the spread"
        return word

    @property
    def wanted(self) -> str:
        return f"{self.kind} {rounded(self.target)} {self.unit}"

    @property
    def found(self) -> str:
        """The measured value with its quartiles."""
        text = f"{rounded(self.reading)} {self.unit}"
        if self.low is None or self.high is None:
            return text
        return f"{text} [{rounded(self.low)}, {rounded(self.high)}]"

    def __str__(self) -> str:
        return f"{self.measure}: {self.found}, {self.wanted}: {self.verdict}"


def ratio_target(
    measure: str,
    numerator: Sequence[float],
    denominator: Sequence[float],
    kind: Literal["at least", "at most"],
    target: float,
) -> Target:
    """A target for numerator / denominator, both timed in the same turns."""
    middle, low, high = ratio_quartiles(numerator, denominator)
    return Target(measure=measure, target=target, kind=kind, reading=middle, low=low, high=high)


def rounded(value: float) -> str:
    """Three significant digits, more only before the decimal point: 0.0213, 1.06, 12.3, 4,200."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"


def two_digits(value: float) -> str:
    """Two significant digits, for estimates: 7,000 for 7,014."""
    return f"{float(f'{value:.2g}'):,.0f}"


def resident_bytes() -> int:
    return _kilobytes("/proc/self/status", "VmRSS")


def available_bytes() -> int:
    """Memory that is available without swapping (Linux)."""
    return _kilobytes("/proc/meminfo", "MemAvailable")


def peak_bytes(call: Callable[[], object]) -> int:
    """Peak resident memory during `call`, above the level before it (Linux).

    Memory that earlier calls freed is first returned to the system: its reuse would not count.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the earlier peak
    before = resident_bytes()
    call()
    return _kilobytes("/proc/self/status", "VmHWM") - before


class OtherWork:
    """How many cores processes other than this one and `pids` have kept busy since (Linux)."""

    def __init__(self, pids: Sequence[int] = ()):
        self.files = [Path(f"/proc/{pid}/stat") for pid in (os.getpid(), *pids)]
        self.start, self.seconds = time.monotonic(), self._cpu_seconds()

    def cores(self) -> float:
        elapsed = time.monotonic() - self.start
        return max(0.0, self._cpu_seconds() - self.seconds) / elapsed

    def _cpu_seconds(self) -> float:
        """CPU time of the machine, stolen time included, without that of the known processes."""
        user, nice, system, _idle, _wait, *interrupts = map(
            int, Path("/proc/stat").read_text().split()[1:9]
        )
        ticks = user + nice + system + sum(interrupts)
        for file in self.files:
            fields = file.read_text().rpartition(")")[2].split()  # names may contain spaces
            ticks -= int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def _kilobytes(file: str, field: str) -> int:
    line = re.search(rf"{field}:\s+(\d+) kB", Path(file).read_text())
    return int(line.group(1)) * 1024 if line else 0


def write_record(
    theme: str,
    settings: Mapping[str, object],
    results: Mapping[str, object],
    *,
    targets: Sequence[Target] = (),
) -> None:
    """`records/<date>_<theme>_<cpu>.json`: everything needed to check the numbers.

    Prints whether targets are met. Older records of the same theme and cpu are removed: the
    history is in git.
    """
    print()
    for target in targets:
        print(target)
    if quick():
        print("no record: --quick is for trying out")
        return
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    name = re.sub(r"[^A-Za-z0-9]+", "-", cpu.group(1) if cpu else platform.machine()).strip("-")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    ).stdout.strip()
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", ":/src", ":/benchmarks/*.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    ).stdout.strip()
    commit += "-dirty" if changed else ""
    record = {
        "theme": theme,
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *arguments()]),
        "date": str(date.today()),
        "commit": commit,
        "cpu": name,
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        "settings": settings,
        "targets": [asdict(target) for target in targets],
        "results": results,
    }
    RECORDS.mkdir(exist_ok=True)
    file = RECORDS / f"{date.today()}_{theme}_{torch.get_num_threads()}x{name}.json"
    for old in RECORDS.glob(f"????-??-??_{theme}_*x{name}.json"):
        old.unlink()
    file.write_text(json.dumps(record, indent=1) + "\n")
    print(f"record: benchmarks/records/{file.name}")
