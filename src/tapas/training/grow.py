"""Continuing a run with a newer log: learned rows stay, new items get new rows.

Known items keep their ids and, bit for bit, their rows and optimizer state. New items get the
next ids, and their rows start as in a fresh run. The new run starts at step 0 with the learned
model and trains for as many epochs on its log as the old one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from tapas.checkpoints.describe import CHECKPOINTS
from tapas.checkpoints.grow import NewRows, with_classes
from tapas.data.description import describe_reading, describe_split
from tapas.data.event_log import EventLog
from tapas.data.prepare import prepare_log
from tapas.data.splits import Split, split_log
from tapas.errors import UsageError
from tapas.heads import FlatHead
from tapas.training.build import (
    bias_from_counts,
    build_row_optimizer,
    resolve_config,
    with_defaults,
)
from tapas.training.config import TrainConfig
from tapas.training.run_folder import RunFolder, best_step, check_free, create_run
from tapas.training.trainer import TrainerState


@dataclass(frozen=True, slots=True)
class Growth:
    """How the items of a run changed."""

    checkpoint: Path  # of the old run, from which the new one starts
    num_known: int
    num_new: int
    num_missing: int  # known items that are not in the new log


def grow_run(
    run: RunFolder,
    files: Sequence[str],
    out: Path,
    *,
    cache: Path,
    step: int | None = None,
    columns: Mapping[str, Any] | None = None,
    status: Callable[[str], None] = lambda words: None,
) -> Growth:
    """Create the run `out` from `run` with the log in `files`, read with the same options.

    It starts from the checkpoint of `step`, by default the best, or the newest if none is marked
    as best. `columns` gives the columns (user, item, time, weight) that have other names in the
    new log. Raises UsageError if the method cannot grow or no known item is in the new log.
    """
    check_can_grow(run.config)
    check_free(out)
    step = best_step(run.checkpoints) if step is None else step
    checkpoint = run.checkpoints.find(step)[1]
    again = dict.fromkeys(cast("list[str]", run.log.report["guessed"]))  # guessed once more
    changes: dict[str, Any] = {**again, **(columns or {})}
    source = replace(run.config.log, files=tuple(files), **changes)
    log = prepare_log(source, cache, status=status, known=run.log)
    resolved = source.resolved(cast("dict[str, Any]", log.report["columns"]))
    num_known = run.log.num_items
    missing = int((log.item_keys.counts[:num_known] == 0).sum())
    if missing == num_known:
        raise UsageError(
            f"none of the {num_known:,} items of {run.path} is in the new log. Check that both "
            "logs write item keys in the same way, or train a new run with `tapas train`."
        )
    split = split_log(log, run.config.split)
    for words in (*describe_reading(log.report), *describe_split(log, split)):
        status(words)
    new = replace(new_rows(run.config), bias=bias_from_counts(split.train_counts)[num_known:])
    grown = with_classes(checkpoint, log.num_items, new, least=0)
    grown.record["numbers"]["model.head"]["step"] = 0
    grown.record.update(step=0, best=False, state={"progress": asdict(TrainerState())})
    create_run(
        out,
        _as_many_passes(replace(run.config, log=resolved), run.log, log, split),
        log,
        num_threads=run.num_threads,
        fill=lambda folder: grown.write(folder / CHECKPOINTS / "step-00000000"),
    )
    return Growth(checkpoint, num_known, log.num_items - num_known, missing)


def new_rows(config: TrainConfig) -> NewRows:
    """How the rows of new classes start in a run with `config`."""
    return NewRows(optimizer=build_row_optimizer(config.optimizer))


def check_can_grow(config: TrainConfig) -> None:
    """Raise UsageError if the method has state besides its rows that depends on the classes."""
    kind, method = config.head.kind, config.head.method
    if not issubclass(kind, FlatHead):
        what = "arranges its classes by their frequencies in the old log"
    elif kind.learns_state:
        what = "learns state for the classes of the old log besides its rows"
    else:
        return
    raise UsageError(
        f"the method '{method}' {what}: such a run cannot grow. Train a new run on the new log "
        "with `tapas train`."
    )


def _as_many_passes(
    config: TrainConfig, old: EventLog, new: EventLog, new_split: Split
) -> TrainConfig:
    """`config` with steps for as many epochs of `new` as it has for `old`."""
    before = resolve_config(config, old, split_log(old, config.split))[1]
    windows = resolve_config(config, new, new_split)[1]
    ratio = windows.steps_per_epoch / before.steps_per_epoch
    steps, every = config.loop.steps or 1, config.loop.evaluate_every or 1
    loop = replace(
        config.loop,
        steps=max(1, round(steps * ratio)),
        evaluate_every=max(1, round(every * ratio)),
    )
    return with_defaults(replace(config, loop=loop), new.num_items, windows)
