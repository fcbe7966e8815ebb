"""settings.json of a comparison: written, checked, and described as text and as a command."""

import dataclasses
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from tapas.atomic_file import atomic_write
from tapas.comparison.config import CompareConfig, quick, synthetic
from tapas.comparison.contenders import CONTENDERS, NEXT_ITEMS, by_name
from tapas.comparison.synthetic_log import SyntheticLogConfig
from tapas.data.event_log import EventLog
from tapas.data.source import LogSource, command_options
from tapas.data.splits import AUTO, Split, SplitConfig
from tapas.durations import duration
from tapas.errors import DataError, UsageError
from tapas.escapes import shell_join
from tapas.evaluation.points import describe_points
from tapas.json_toml import parse_json
from tapas.phrases import counted
from tapas.regular_file import read_given
from tapas.training.config import RENAMED, HeadConfig, ModelConfig, OptimizerConfig
from tapas.version import __version__

SETTINGS = "settings.json"
DEFINITIONS = "definitions"  # of all trials: results of another version are not taken for these
SECTIONS = {
    "log": LogSource,
    "made": SyntheticLogConfig,
    "split": SplitConfig,
    "model": ModelConfig,
    "optimizer": OptimizerConfig,
}
POINTS = "points_per_user"  # "one", the first behind the cut; left out: several, anywhere behind it
MACHINE = "machine"  # the part of the settings that may differ when a comparison goes on
NEEDED = ("contenders", "seeds", "trials", "budget_seconds", "num_samples", "batch", "split",
          "model", "optimizer")  # fmt: skip
RESTORE = "Restore it, or move"
Settings = Mapping[str, Any]


def settings(config: CompareConfig, log: EventLog, split: Split) -> dict[str, Any]:
    """Everything that results depend on, and the machine, as JSON values without file paths."""
    found = question(config, config.num_samples(log.num_items))
    found["sizes"] = {"events": log.num_events, "items": log.num_items, "users": log.num_users,
                      "test_users": len(split.test)}  # fmt: skip
    found[MACHINE] = {
        "cores": os.cpu_count(),
        "tapas": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": source_commit(),
    }
    return found


def question(config: CompareConfig, num_samples: int) -> dict[str, Any]:
    """The configuration, and all settings tried for each contender."""
    found = dataclasses.asdict(config)
    if config.log is not None:
        found["log"]["files"] = [Path(file).name for file in config.log.files]
    found["num_samples"] = num_samples
    found[POINTS] = "one"
    found[DEFINITIONS] = {
        each.name: [
            {"rows_lr": trial.rows_lr, **each.head(num_samples, trial.knob).as_table()}
            for trial in each.trials(config.trials)
        ]
        for each in by_name(config.contenders)
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def check_settings(path: Path, config: CompareConfig, log: EventLog, split: Split) -> None:
    """Write the settings the first time; later, raise if they differ."""
    mine = settings(config, log, split)
    keep_settings(path, mine)
    found = read_comparison_settings(path)
    if POINTS not in found:
        raise UsageError(
            f"the results in {path.parent} are of an earlier version, which judged at several "
            "points of each user; today's would not be comparable. Choose another folder with "
            "--out; --draw still draws the old results."
        )
    other = differences(found, mine)
    if len(other) > 1:  # which follow from the others
        other = [name for name in other if name != DEFINITIONS]
    refuse_others(other, f"in {path.parent}")


def keep_settings(path: Path, settings: Settings) -> None:
    """Write `settings` unless `path` exists."""
    if not path.exists():
        with atomic_write(path) as unfinished:
            unfinished.write_text(json.dumps(settings, indent=1) + "\n")


def read_comparison_settings(path: Path) -> dict[str, Any]:
    found = read_settings(path, needed=NEEDED, away="the folder")
    names, seeds = found["contenders"], found["seeds"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{path}: contenders is no list of methods. {RESTORE} the folder away.")
    if type(seeds) is not int or seeds < 1:
        raise DataError(f"{path}: seeds is no number above 0. {RESTORE} the folder away.")
    return found


def read_settings(path: Path, *, needed: Sequence[str] = (), away: str) -> dict[str, Any]:
    """The table in `path`; `away` is what else to move away if it cannot be read."""
    try:
        found = parse_json(read_given(path))
    except UsageError:
        raise
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(name in found for name in needed):
        raise DataError(
            f"{path} cannot be read as the settings of the results beside it. {RESTORE} {away} "
            "away."
        )
    for section, names in RENAMED.items():
        if isinstance(found.get(section), dict):
            found[section] = {names.get(name, name): v for name, v in found[section].items()}
    return found


def refuse_others(other: Sequence[str], where: str) -> None:
    if other:
        raise UsageError(
            f"the results {where} were made with another {', '.join(other)}. Choose another folder "
            "with --out, or move them away."
        )


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Names of settings that differ between `before` and `now`, except the machine.

    A name missing in `before` has its default, so that results stay valid when an option is
    added.
    """
    before = _completed(before, CompareConfig)
    for name, kind in SECTIONS.items():
        if isinstance(before.get(name), dict):
            before[name] = _completed(before[name], kind)
    # trials that cannot be read stay as they are, so that they count as a difference
    with suppress(UsageError, KeyError, TypeError, AttributeError):
        before[DEFINITIONS] = {
            contender: [_completed_trial(trial) for trial in trials]
            for contender, trials in before[DEFINITIONS].items()
        }
    return [name for name in now if name != MACHINE and before.get(name) != now[name]]


def _completed(table: dict[str, Any], kind: Any) -> dict[str, Any]:
    """`table` of a `kind` of settings, with the defaults of names that it does not have."""
    given = {f.name: f.default for f in dataclasses.fields(kind)}
    plain = {n: v for n, v in given.items() if v is None or isinstance(v, str | int | float)}
    empty = {n: list[Any]() for n, v in given.items() if v == ()}  # as JSON has it
    return plain | empty | table


def _completed_trial(trial: dict[str, Any]) -> dict[str, Any]:
    head = HeadConfig.of(**{name: value for name, value in trial.items() if name != "rows_lr"})
    return {"rows_lr": trial["rows_lr"], **head.as_table()}


def source_commit() -> str | None:
    """The commit of the source tree, if there is one."""
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


def describe_log(settings: Settings) -> str:
    """Which log, and how large it is."""
    log = settings.get("log")
    name = ", ".join(log["files"]) if log else "A synthetic log, whose true distribution is known"
    sizes = settings.get("sizes")
    if not sizes:
        return f"{name}."
    return (
        f"{name}: {sizes['events']:,} events, {sizes['users']:,} users, {sizes['items']:,} "
        "items (the classes)."
    )


def describe_budget(settings: Settings) -> str:
    """Number of methods, their training time, and the model."""
    number, seeds = len(settings["contenders"]), settings["seeds"]
    model = settings["model"]
    return (
        f"{counted(number, 'method')} with {duration(settings['budget_seconds'])} of training "
        f"each: half for {counted(settings['trials'], 'trial')}, half for "
        f"{counted(seeds, 'seed')}. "
        f"Encoder {model['encoder']}, {model['dim']} dimensions; n = {settings['num_samples']:,}."
    )


def describe_test_points(settings: Settings, num_points: int) -> str:
    """The points at which all methods are scored; `num_points` is their number."""
    sizes = settings.get("sizes", {})
    if settings.get(POINTS) == "one":
        split = settings["split"]
        most = min(NEXT_ITEMS, split["test"]) if split["kind"] == "last" else NEXT_ITEMS
        return describe_points(num_points, sizes["test_users"], most, sizes["items"])
    return (
        f"{num_points:,} points, several of each test user, anywhere behind the cut; the next "
        f"{NEXT_ITEMS} items of each are to be found. (An earlier version judged so. Today "
        "`tapas compare` and `tapas evaluate` judge at one point of each user, the first behind "
        "the cut: the command would give other numbers.)"
    )


def command_of(settings: Settings) -> str:
    """The command line of this comparison, with file names instead of paths."""
    base = _base(settings)
    words = ["tapas", "compare"]
    if settings.get("log"):
        words += command_options(settings["log"])
    else:
        words.append("--quick" if base == _plain(quick()) else "--synthetic")
    names = settings["contenders"]
    words += ["--methods", "all" if names == list(CONTENDERS) else ",".join(names)]
    words += ["--budget", _flag_time(settings["budget_seconds"])]
    for flag, name in (("num-samples", "samples"), ("seeds", "seeds"), ("trials", "trials")):
        if settings.get(name) != base[name]:
            words += [f"--{flag}", str(settings[name])]
    for section in ("split", "model", "optimizer"):
        for name, value in settings[section].items():
            if value != base[section].get(name):
                words += ["--set", f"{section}.{name}={value}"]
    if settings["batch"] != base["batch"]:
        words += ["--set", f"loop.batch={settings['batch']}"]
    return shell_join(words)


def _base(settings: Settings) -> dict[str, Any]:
    """The defaults of the command."""
    if settings.get("log"):
        files = LogSource(files=tuple(settings["log"]["files"]))
        kind = AUTO if settings["split"]["kind"] == AUTO else "time"
        return _plain(CompareConfig(log=files, split=SplitConfig(kind=kind)))
    small = _plain(quick())
    return small if settings.get("made") == small["made"] else _plain(synthetic())


def _plain(config: CompareConfig) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return found


def _flag_time(seconds: float) -> str:
    for unit, size in (("h", 3_600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"
