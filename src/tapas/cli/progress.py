"""Progress bars on stderr, shown on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

Advance = Callable[[int, int, str], None]  # (done, total, note)


@contextmanager
def progress_bar(what: str, unit: str, *, shown: bool = True) -> Iterator[Advance]:
    """A bar with the rate and the time left; yields the function that advances it."""
    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        refresh_per_second=4,
        transient=True,
        disable=not (shown and sys.stderr.isatty()),
    )
    with bars:
        task = bars.add_task(what, total=None, rate="", note="", visible=False)

        def advance(done: int, total: int, note: str) -> None:
            speed = bars.tasks[0].speed
            rate = f"{speed:.3g} {unit}/s" if speed else ""
            bars.update(task, completed=done, total=total, rate=rate, note=note, visible=True)

        yield advance


@contextmanager
def run_progress() -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """Yields `follow`: follow(stage)(done, total) shows a bar of finished runs for each stage."""
    bars = Bars(
        TextColumn("{task.description:<22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )

    def follow(stage: str) -> Callable[[int, int], None]:
        task = bars.add_task(stage, total=None)

        def advance(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total)

        return advance

    with bars:
        yield follow
