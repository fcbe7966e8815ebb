"""How every benchmark measures: contenders interleaved in one run, medians with spread.

Absolute times drift on shared machines; ratios inside one run do not. A record holds the raw
repeats, the commit and the versions, so that a number can be argued with.
"""

import json
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy
import torch

RECORDS = Path(__file__).parent / "records"


def interleave(
    contenders: dict[str, Callable[[], object]], *, repeats: int, warmup: int = 3
) -> dict[str, list[float]]:
    """Seconds of `repeats` calls of each contender, taken in turns after `warmup` rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(warmup + repeats):
        for name, call in contenders.items():
            start = time.perf_counter()
            call()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def spread(seconds: list[float]) -> str:
    """Median and quartiles in milliseconds."""
    low, middle, high = (1000 * q for q in statistics.quantiles(seconds, n=4))
    return f"{middle:.2f} ms [{low:.2f}, {high:.2f}]"


def ratio(numerator: list[float], denominator: list[float]) -> str:
    """Ratio of medians, with the quartiles of the ratios turn by turn."""
    turns = [a / b for a, b in zip(numerator, denominator, strict=True)]
    low, _, high = statistics.quantiles(turns, n=4)
    middle = statistics.median(numerator) / statistics.median(denominator)
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def resident_bytes() -> int:
    return _status("VmRSS")


def peak_bytes(call: Callable[[], object]) -> int:
    """How far resident memory rose above its level before `call`, at its highest (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the earlier peak
    before = resident_bytes()
    call()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    line = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(line.group(1)) * 1024 if line else 0


def write_record(theme: str, settings: dict[str, object], results: dict[str, object]) -> None:
    """`records/<date>_<theme>_<cpu>.json`: everything needed to argue with the numbers."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    name = re.sub(r"[^A-Za-z0-9]+", "-", cpu.group(1) if cpu else platform.machine()).strip("-")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    record = {
        "theme": theme,
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
        "results": results,
    }
    RECORDS.mkdir(exist_ok=True)
    file = RECORDS / f"{date.today()}_{theme}_{torch.get_num_threads()}x{name}.json"
    file.write_text(json.dumps(record, indent=1) + "\n")
    print(f"\nrecord: benchmarks/records/{file.name}")
