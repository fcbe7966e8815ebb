"""The events that a model may know at the points of an evaluation, as a table for other systems."""

from typing import Any

import numpy as np
import polars as pl

from tapas.data.event_log import EventLog
from tapas.data.splits import EvalPoints, Split
from tapas.data.times import DATETIME


def known_events(
    log: EventLog, split: Split, points: EvalPoints, *, split_name: str
) -> dict[str, Any]:
    """Columns user, item, time and judged of all events before the points of a split.

    These are the training events, for "test" those of validation, and the history of every
    held-out user. `judged` is true for the users of `points`. Rows are sorted by user and time.
    """
    ends = split.train_end.copy()
    if split_name == "test":
        ends[split.validation.user] = np.maximum(
            ends[split.validation.user], split.validation.limit
        )
    held_out = split.test if split_name == "test" else split.validation
    ends[held_out.user] = np.maximum(ends[held_out.user], held_out.point)
    users = np.repeat(np.arange(log.num_users), np.diff(log.offsets))
    event = np.flatnonzero(np.arange(log.num_events) < ends[users])
    judged = np.zeros(log.num_users, dtype=bool)
    judged[points.user] = True
    times = pl.Series(np.asarray(log.times[event]))
    return {
        "user": log.user_keys.keys(users[event]),
        "item": log.item_keys.keys(log.items[event]),
        "time": times.cast(pl.Datetime("us")) if log.report["time_kind"] == DATETIME else times,
        "judged": judged[users[event]],
    }
