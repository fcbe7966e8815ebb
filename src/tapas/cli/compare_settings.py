"""From flags to the settings of a comparison; what is wrong is told before any work."""

from dataclasses import asdict
from typing import Any

from tapas.cli.settings_flag import Layer
from tapas.comparison.config import CompareConfig, quick, synthetic
from tapas.errors import UsageError
from tapas.training.config import JSON, build_config

SETTABLE = ("split", "model", "optimizer")


def build_comparison(
    log: dict[str, JSON], made_up: bool, is_quick: bool, given: dict[str, Any], layer: Layer
) -> CompareConfig:
    """The comparison that was asked for; what is wrong is told before any work."""
    if (made_up or is_quick) and log:
        raise UsageError(
            f"{'--synthetic' if made_up else '--quick'} makes a log of its own: leave out LOG and "
            "the options that say how to read it."
        )
    if not (made_up or is_quick or log.get("files")):
        raise UsageError(
            "no log given. Try `tapas compare purchases.parquet --budget 1m`, or --synthetic."
        )
    _check_settable(layer)
    if is_quick:
        base = quick()
    elif made_up:
        base = synthetic()
    else:
        base = None
    start: Layer = {"log": log or {"files": ["made-up"]}}
    if base is not None:
        start["model"] = _table(base.model)
        start["split"] = {"kind": base.split.kind}  # how much is held out follows from it
        start["loop"] = {"batch": base.batch}
    built = build_config(start, layer)
    given |= {name: getattr(built, name) for name in SETTABLE} | {"batch": built.loop.batch}
    if is_quick:
        return quick(**given)
    return synthetic(**given) if made_up else CompareConfig(log=built.log, **given)


def _table(section: Any) -> dict[str, JSON]:
    return {name: value for name, value in asdict(section).items() if value is not None}


def _check_settable(layer: Layer) -> None:
    for section, table in layer.items():
        for name in table:
            if section == "head":
                raise UsageError(
                    f"--set head.{name}: what a method is tried with is fixed in advance, see "
                    "`tapas compare --list`. Use --methods and --samples."
                )
            if (section, name) == ("optimizer", "rows_lr"):
                raise UsageError("optimizer.rows_lr is searched for every method. Leave it out.")
            if section not in SETTABLE and (section, name) != ("loop", "batch"):
                raise UsageError(
                    f"--set {section}.{name} has no place in a comparison. Known: loop.batch and "
                    f"the names of {', '.join(SETTABLE)}."
                )
