"""Time of a call by operation: torch operations and native kernels."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

import tapas.native as native

ROWS = 12
KERNELS = (
    "log_sum",
    "gradients",
    "mean_share",
    "batch_score",
    "update",
    "mix",
    "alias",
    "distinct",
)


@contextmanager
def _named(kernels: Sequence[str]) -> Iterator[None]:
    """Show native kernels as operations; torch's profiler does not see them."""
    plain = {name: getattr(native, name) for name in kernels}

    def named(name: str) -> Callable[..., object]:
        def call(*given: object, **options: object) -> object:
            with torch.profiler.record_function(f"native {name}"):
                return plain[name](*given, **options)

        return call

    try:
        for name in kernels:
            setattr(native, name, named(name))
        yield
    finally:
        for name, function in plain.items():
            setattr(native, name, function)


def profile_summary(call: Callable[[], object]) -> list[dict[str, object]]:
    """The operations that one `call` spends most time in, children not counted."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        start = time.perf_counter()
        with _named(KERNELS):
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
