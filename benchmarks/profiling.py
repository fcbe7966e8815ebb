"""Time of a call by operation: torch operations and native kernels."""

import time
from collections.abc import Callable

import torch

ROWS = 12


def profile_summary(call: Callable[[], object]) -> list[dict[str, object]]:
    """The operations that one `call` spends most time in, children not counted."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
    rows = sorted(profile.key_averages(), key=lambda row: -row.self_cpu_time_total)
    total = 1e6 * seconds  # including time outside of operations
    return [
        {
            "operation": row.key,
            "calls": row.count,
            "self_seconds": row.self_cpu_time_total / 1e6,
            "share": row.self_cpu_time_total / total,
        }
        for row in rows[:ROWS]
    ]
