"""What was asked for, in words and as a command, from the settings beside the results."""

import dataclasses
import json
import shlex
from collections.abc import Mapping
from typing import Any

from tapas.comparison.config import CompareConfig, quick, synthetic
from tapas.comparison.contenders import CONTENDERS
from tapas.data.source import LogSource

Settings = Mapping[str, Any]
FLAGS = ("user", "item", "time", "text", "group", "min_count", "rare")  # of a log


def log_words(settings: Settings) -> str:
    """Which log, and how large it is."""
    log = settings.get("log")
    name = ", ".join(log["files"]) if log else "A made-up log, whose true distribution is known"
    sizes = settings.get("sizes")
    if not sizes:
        return f"{name}."
    return (
        f"{name}: {sizes['events']:,} events, {sizes['users']:,} users, {sizes['items']:,} "
        "items (the classes)."
    )


def budget_words(settings: Settings) -> str:
    """Who got how much."""
    number, seeds = len(settings["contenders"]), settings["seeds"]
    model = settings["model"]
    return (
        f"{_count(number, 'method')} with {duration(settings['budget_seconds'])} of training each: "
        f"half for {_count(settings['trials'], 'trial')}, half for {_count(seeds, 'seed')}. "
        f"Encoder {model['encoder']}, {model['dim']} dimensions; n = {settings['num_samples']:,}."
    )


def command_of(settings: Settings) -> str:
    """A command that asks for the same; files go by their names."""
    base = _base(settings)
    words = ["tapas", "compare"]
    if settings.get("log"):
        words += _log_words(settings["log"])
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
    return shlex.join(words)


def duration(seconds: float) -> str:
    """
    >>> duration(90), duration(600), duration(6300)
    ('90 s', '10 min', '1.8 h')
    """
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"


def _base(settings: Settings) -> dict[str, Any]:
    """What the command would take if nothing else were said."""
    if settings.get("log"):
        files = LogSource(files=tuple(settings["log"]["files"]))
        return _plain(CompareConfig(log=files))
    small = _plain(quick())
    return small if settings.get("made") == small["made"] else _plain(synthetic())


def _plain(config: CompareConfig) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return found


def _log_words(log: Mapping[str, Any]) -> list[str]:
    words = list(log["files"])
    start = LogSource(files=("log",))
    for name in FLAGS:
        if log.get(name) != getattr(start, name):
            words += [f"--{name.replace('_', '-')}", str(log[name])]
    return [*words, "--skip-bad-rows"] if log.get("skip_bad_rows") else words


def _flag_time(seconds: float) -> str:
    for unit, size in (("h", 3_600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
