"""Runs of random weights and uniform items, for questions of speed and memory alone."""

from pathlib import Path

import numpy as np
import polars as pl

from tapas.checkpoints.model import contents_of
from tapas.data.event_log import EventLog, write_log
from tapas.data.splits import split_log
from tapas.data.vocabulary import Vocabulary
from tapas.tables.ranks import ONE_PROCESS
from tapas.training.build import TrainingData, build_model
from tapas.training.config import build_config
from tapas.training.run_folder import create_run

LENGTH = 20  # events of a user


def make_log(folder: Path, items: int, events: int) -> EventLog:
    """`events` events of uniform items, by users with `LENGTH` events each."""
    drawn = np.random.default_rng(0).integers(0, items, events, dtype=np.int32)
    offsets = np.arange(0, events + 1, LENGTH)
    arrays = {"items": drawn, "times": np.arange(events), "offsets": offsets}
    keys = {"item": np.bincount(drawn, minlength=items), "user": np.diff(offsets)}
    vocabularies = {
        kind: Vocabulary(pl.Series(np.arange(len(counts))), counts, kind=kind)
        for kind, counts in keys.items()
    }
    folder.mkdir(parents=True)
    write_log(folder, arrays, vocabularies, {"items": items, "time_kind": "number"})
    return EventLog.open(folder)


def make_run(folder: Path, items: int, events: int, **model: object) -> Path:
    """A run with one checkpoint of random weights; `model` are its settings."""
    tables = {"log": {"files": ["none"]}, "model": model, "split": {"kind": "last"}}
    config, log = build_config(tables), make_log(folder / "log", items, events)
    split = split_log(log, config.split)
    data = TrainingData(None, log, split.train_end)
    built = build_model(config, split.train_counts, ONE_PROCESS, data=data)
    run = create_run(folder / "run", config, log)
    run.checkpoints.save(1, contents_of(built), {}, best=True)
    return run.path
