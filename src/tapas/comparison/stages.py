"""The stages of a comparison. Each adds to a ledger, so that it can be stopped and continued.

out/
  settings.json  the settings, the log, the machine
  pace.jsonl     seconds of a step of each contender, alone on the machine
  runs.jsonl     trials on validation points, final runs and references on test points

A line with "skipped" says why something was not run, one with "diverged" that it failed.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from tapas.comparison.budget import RunBudget
from tapas.comparison.config import CompareConfig
from tapas.comparison.ledger import Ledger
from tapas.comparison.pace import measure_paces, pace_runs, paces
from tapas.comparison.process_pool import run_missing
from tapas.comparison.runs import execute, open_log
from tapas.comparison.settings import SETTINGS, check_settings
from tapas.data.event_log import EventLog
from tapas.data.splits import check_users
from tapas.training.run_folder import exclusive

PACE, RUNS = "pace.jsonl", "runs.jsonl"
Follow = Callable[[str], Callable[[int, int], None]]  # of a stage: done, in all


def compare(
    config: CompareConfig,
    out: Path,
    *,
    cache: Path,
    status: Callable[[str], None] = lambda words: None,
    progress: Follow = lambda stage: lambda done, total: None,
    workers: int = 1,
) -> None:
    """Run what is missing in `out`; returns when the comparison is complete.

    Paces are measured one at a time. All other runs use `workers` processes, which changes no
    result, since paces fix the number of steps of each run.
    """
    threads = torch.get_num_threads()
    out.mkdir(parents=True, exist_ok=True)
    status("Reading the log.")
    opened = open_log(config, cache)
    if warning := check_users(opened.log, opened.split):
        status(warning)
    config = dataclasses.replace(config, split=opened.split.config)  # "auto" is resolved
    check_settings(out / SETTINGS, config, opened.log, opened.split)
    try:
        with exclusive(out, SETTINGS):
            _compare(config, out, opened.log, cache, status, progress, workers)
    finally:
        torch.set_num_threads(threads)


def _compare(
    config: CompareConfig,
    out: Path,
    log: EventLog,
    cache: Path,
    status: Callable[[str], None],
    progress: Follow,
    workers: int,
) -> None:
    num_samples = config.num_samples(log.num_items)

    measured, ledger = Ledger(out / PACE), Ledger(out / RUNS)
    ledger.check_keys()
    wanted = pace_runs(config, num_samples)
    measure_paces(measured, wanted, config, cache, progress("step times"))
    budget = RunBudget(config, num_samples, paces(measured, wanted))

    go = partial(execute, config=config, cache=cache)
    for run, words in budget.too_slow().values():
        status(f"Method {run.contender}: {words}")
        if run not in ledger:
            ledger.add({"key": run.key(), "run": dataclasses.asdict(run), "skipped": words})
    run_missing(ledger, budget.references(), go, progress("baselines"), workers=workers)
    run_missing(ledger, budget.searches(), go, progress("trials"), workers=workers)
    run_missing(ledger, budget.finals(ledger), go, progress("final runs"), workers=workers)
