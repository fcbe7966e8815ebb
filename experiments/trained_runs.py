"""Studies whose runs are those of `tapas train`, each in a folder until its result is written."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from tapas.cli.options import cache_folder
from tapas.cli.progress import run_progress
from tapas.comparison.ledger import Keyed, Ledger, Result
from tapas.comparison.process_pool import run_missing
from tapas.training.config import JSON, build_config, names_in
from tapas.training.run import resume, train
from tapas.training.run_folder import RECORD, RunFolder, open_run

Tables = dict[str, dict[str, JSON]]


@dataclass(frozen=True, slots=True)
class Place:
    """Folders: of the files of the sets, of prepared logs, and of runs without a result yet."""

    data: Path
    cache: Path
    runs: Path

    @classmethod
    def of(cls, name: str, data: Path, cache: Path | None) -> "Place":
        """Those of the study `name`; `cache` is the folder given by the user."""
        home = cache_folder(cache)
        return cls(data, home, home.parent / f"{name}-runs")


def trained(key: str, told: Sequence[Tables], place: Place) -> tuple[RunFolder, float | None]:
    """Train the run `key` with one thread, or continue it if it was killed.

    It is told `told`, and chooses other settings from its log. Returns the run and the seconds
    that it took, None if it was continued.
    """
    torch.set_num_threads(1)
    folder, start = place.runs / key, time.monotonic()
    if (folder / RECORD).exists():
        resume(folder)
        return open_run(folder), None
    train(build_config(*told), folder, cache=place.cache, given=names_in(*told))
    return open_run(folder), round(time.monotonic() - start, 1)


def run_study(
    name: str,
    runs: Sequence[Keyed],
    execute: Callable[..., Result],
    ledger: Ledger,
    place: Place,
    *,
    workers: int,
) -> None:
    """`execute(run, place=place)` the `runs` that the ledger lacks, several at once.

    Their folders are removed once the ledger has the results.
    """
    _remove_finished(ledger, place)
    with run_progress() as follow:
        run_missing(ledger, runs, partial(execute, place=place), follow(name), workers=workers)
    _remove_finished(ledger, place)


def _remove_finished(ledger: Ledger, place: Place) -> None:
    for folder in place.runs.iterdir() if place.runs.is_dir() else ():
        if folder.name in ledger.results:
            (folder / RECORD).unlink(missing_ok=True)  # first: what is left is no run
            shutil.rmtree(folder)
