"""The stages of a comparison, each over a ledger: stop it anywhere, and it goes on there.

out/
  settings.json  what was asked, the log, the machine
  pace.jsonl     seconds of a step of each contender, alone on the machine
  runs.jsonl     trials on validation points, final runs and references on test points

A line with "skipped" says why something was not run, one with "diverged" that it failed.
"""

import dataclasses
import json
import os
import platform
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tapas.atomic_file import whole_file
from tapas.comparison.budget import Plan
from tapas.comparison.config import CompareConfig
from tapas.comparison.contenders import by_name
from tapas.comparison.ledger import Ledger
from tapas.comparison.pace import measure_paces, pace_runs, paces
from tapas.comparison.process_pool import finish
from tapas.comparison.runs import execute, open_scene
from tapas.comparison.synthetic_log import SyntheticLogConfig
from tapas.data.event_log import EventLog
from tapas.data.source import LogSource
from tapas.data.splits import SplitConfig
from tapas.errors import DataError, UsageError
from tapas.training.config import HeadConfig, ModelConfig, OptimizerConfig
from tapas.training.run_folder import only_one
from tapas.version import __version__

SETTINGS, PACE, RUNS = "settings.json", "pace.jsonl", "runs.jsonl"
DEFINITIONS = "definitions"  # of all trials: results of another version are not taken for these
SECTIONS = {
    "log": LogSource,
    "made": SyntheticLogConfig,
    "split": SplitConfig,
    "model": ModelConfig,
    "optimizer": OptimizerConfig,
}
MACHINE = "machine"  # the part of the settings that may differ when a comparison goes on
Follow = Callable[[str], Callable[[int, int], None]]  # of a stage: done, in all


def compare(
    config: CompareConfig,
    out: Path,
    *,
    cache: Path,
    talk: Callable[[str], None] = lambda words: None,
    progress: Follow = lambda stage: lambda done, total: None,
    workers: int = 1,
) -> None:
    """Do what is missing in `out`; returns when all of its files are there.

    Paces are measured one at a time; all else goes `workers` side by side,
    which changes no result, as the number of steps of a run is decided by the paces.
    """
    threads = torch.get_num_threads()
    out.mkdir(parents=True, exist_ok=True)
    talk("reading the log")
    log = open_scene(config, cache).log
    check_settings(out / SETTINGS, config, log)
    try:
        with only_one(out, SETTINGS):
            _compare(config, out, log, cache, talk, progress, workers)
    finally:
        torch.set_num_threads(threads)


def _compare(
    config: CompareConfig,
    out: Path,
    log: EventLog,
    cache: Path,
    talk: Callable[[str], None],
    progress: Follow,
    workers: int,
) -> None:
    num_samples = config.num_samples(log.num_items)

    measured, wanted = Ledger(out / PACE), pace_runs(config, num_samples)
    measure_paces(measured, wanted, config, cache, progress("pace"))
    plan = Plan(config, num_samples, paces(measured, wanted))

    ledger, go = Ledger(out / RUNS), partial(execute, config=config, cache=cache)
    for run, words in plan.too_slow().values():
        talk(f"{run.contender}: {words}")
        if run not in ledger:
            ledger.add({"key": run.key(), "run": dataclasses.asdict(run), "skipped": words})
    finish(ledger, plan.references(), go, progress("references"), workers=workers)
    finish(ledger, plan.searches(), go, progress("search"), workers=workers)
    finish(ledger, plan.finals(ledger), go, progress("seeds"), workers=workers)


def settings(config: CompareConfig, log: EventLog) -> dict[str, Any]:
    """All that decides results, plain enough for JSON, and the machine; no paths of files."""
    found = question(config, config.num_samples(log.num_items))
    found["sizes"] = {"events": log.num_events, "items": log.num_items, "users": log.num_users}
    found[MACHINE] = {
        "cores": os.cpu_count(),
        "tapas": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": _commit(),
    }
    return found


def question(config: CompareConfig, num_samples: int) -> dict[str, Any]:
    """What was asked, and each setting that is tried for each contender."""
    found = dataclasses.asdict(config)
    if config.log is not None:
        found["log"]["files"] = [Path(file).name for file in config.log.files]
    found["num_samples"] = num_samples
    found[DEFINITIONS] = {
        each.name: [
            {"rows_lr": trial.rows_lr, **each.head(num_samples, trial.knob).as_table()}
            for trial in each.trials(config.trials)
        ]
        for each in by_name(config.contenders)
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def check_settings(path: Path, config: CompareConfig, log: EventLog) -> None:
    """Write them the first time; results of other settings are never taken for these."""
    mine = settings(config, log)
    if not path.exists():
        with whole_file(path) as unfinished:
            unfinished.write_text(json.dumps(mine, indent=1) + "\n")
        return
    try:
        before = json.loads(path.read_text())
    except ValueError:
        before = None
    if not isinstance(before, dict) or not mine.keys() & before.keys():
        raise DataError(
            f"{path} cannot be read as the settings of the results beside it. Restore it, or move "
            "the folder away."
        )
    other = differences(before, mine)
    if other:
        if len(other) > 1:  # which follow from the others
            other = [name for name in other if name != DEFINITIONS]
        raise UsageError(
            f"the results in {path.parent} were made with another {', '.join(other)}. Choose "
            "another folder with --out, or move them away."
        )


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Names of settings `now` that were others `before`, the machine aside.

    A name that `before` does not have stands for its default: results stay valid when an option
    is added that they did not use.
    """
    before = _completed(before, CompareConfig)
    for name, kind in SECTIONS.items():
        if isinstance(before.get(name), dict):
            before[name] = _completed(before[name], kind)
    # what is no table of trials, or names what no method has, differs as it stands
    with suppress(UsageError, KeyError, TypeError, AttributeError):
        before[DEFINITIONS] = {
            contender: [_completed_trial(trial) for trial in trials]
            for contender, trials in before[DEFINITIONS].items()
        }
    return [name for name in now if name != MACHINE and before.get(name) != now[name]]


def _completed(table: dict[str, Any], kind: Any) -> dict[str, Any]:
    """`table` of a `kind` of settings, with the defaults of names that it does not have."""
    given = {f.name: f.default for f in dataclasses.fields(kind)}
    defaults = {n: v for n, v in given.items() if v is None or isinstance(v, str | int | float)}
    return defaults | table


def _completed_trial(trial: dict[str, Any]) -> dict[str, Any]:
    head = HeadConfig.of(**{name: value for name, value in trial.items() if name != "rows_lr"})
    return {"rows_lr": trial["rows_lr"], **head.as_table()}


def _commit() -> str | None:
    """Of the source tree that this runs from, if it is one."""
    tree = Path(__file__).parents[3]
    if not (tree / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=tree, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
