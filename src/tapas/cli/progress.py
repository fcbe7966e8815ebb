"""Progress on stderr: bars on a terminal, lines of status elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from tapas.cli.terminal import console, status
from tapas.escapes import printable
from tapas.training.trainer import Progress

Advance = Callable[[int, int, str], None]  # (done, total, note)


@contextmanager
def progress_bar(what: str, unit: str, *, shown: bool = True) -> Iterator[Advance]:
    """A bar with the rate and the time left; yields the function that advances it."""
    bars = Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console(err=True),
        refresh_per_second=4,
        transient=True,
        disable=not (shown and sys.stderr.isatty()),
    )
    with bars:
        task = bars.add_task(printable(what), total=None, rate="", note="", visible=False)

        def advance(done: int, total: int, note: str) -> None:
            speed = bars.tasks[0].speed
            rate = f"{speed:.3g} {unit}/s" if speed else ""
            bars.update(
                task, completed=done, total=total, rate=rate, note=printable(note), visible=True
            )

        yield advance


class EvaluationLines:
    """A line for each evaluation of a training run, unless stderr is a terminal, with its bar."""

    def __init__(self, status: Callable[[str], None]):
        self._status = status
        self._start: tuple[int, float] | None = None  # step and time

    def show(self, tick: Progress) -> None:
        if self._start is None:
            self._start = tick.step, time.monotonic()
        if tick.evaluated is not None and not sys.stderr.isatty():
            step, since = self._start
            done = max(1, tick.step - step)
            left = (time.monotonic() - since) / done * (tick.steps - tick.step)
            self._status(describe_evaluation(tick, left))


def describe_evaluation(tick: Progress, seconds_left: float) -> str:
    """Such as "step 300 of 2,000 · loss 6.31 · validation MAP@20 0.0412 (best) · 4 min left"."""
    parts = [
        f"step {tick.step:,} of {tick.steps:,}",
        f"loss {short_loss(tick.loss, 2)}",
        f"validation MAP@20 {tick.evaluated:.4f}{' (best)' if tick.is_best else ''}",
    ]
    if tick.step < tick.steps:
        parts.append(f"{duration(seconds_left)} left")
    return " · ".join(parts)


def short_loss(loss: float, digits: int) -> str:
    """`loss` with `digits` after the point, or as 3.329e+23 if training has gone astray."""
    return f"{loss:.{digits}f}" if abs(loss) < 1e6 else f"{loss:.4g}"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, such as "40 s", "4 min" or "2.5 h"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


class StageLines:
    """Lines about the runs of one stage, such as "trials: 8 of 84 runs · 3 min left".

    One at the first call, which says how many are done already, then one for each tenth.
    """

    def __init__(self, stage: str, status: Callable[[str], None]):
        self._stage, self._status = stage, status
        self._start: tuple[int, float] | None = None  # runs done, and time
        self._shown = 0  # tenths

    def advance(self, done: int, total: int) -> None:
        tenths = 10 * done // total
        words = f"{self._stage}: {done:,} of {total:,} runs"
        if self._start is None:
            self._start = done, time.monotonic()
            self._status(words)
        elif tenths > self._shown:
            before, since = self._start
            left = (time.monotonic() - since) / (done - before) * (total - done)
            self._status(f"{words} · {duration(left)} left" if done < total else words)
        self._shown = tenths


@contextmanager
def run_progress() -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """Yields `follow`: follow(stage)(done, total) shows the finished runs of each stage.

    A bar on a terminal, and lines elsewhere.
    """
    if not sys.stderr.isatty():
        yield lambda stage: StageLines(stage, status).advance
        return
    bars = Bars(
        TextColumn("{task.description:<22}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console(err=True),
    )

    def follow(stage: str) -> Callable[[int, int], None]:
        task = bars.add_task(printable(stage), total=None)

        def advance(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total)

        return advance

    with bars:
        yield follow
