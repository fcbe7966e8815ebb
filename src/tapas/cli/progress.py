"""A progress bar with rate and time left, on stderr, on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

Move = Callable[[int, int, str], None]  # done so far, of how many, and a few words


@contextmanager
def progress_bar(what: str, unit: str) -> Iterator[Move]:
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
        disable=not sys.stderr.isatty(),
    )
    with bars:
        task = bars.add_task(what, total=None, rate="", note="", visible=False)

        def move(done: int, total: int, note: str) -> None:
            speed = bars.tasks[0].speed
            rate = f"{speed:.3g} {unit}/s" if speed else ""
            bars.update(task, completed=done, total=total, rate=rate, note=note, visible=True)

        yield move
