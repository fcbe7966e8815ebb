"""What is in a log, in numbers to look at before training on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapas.data.event_log import EventLog
from tapas.data.splits import Split


@dataclass(frozen=True, slots=True)
class Description:
    """Counts and shares; `remarks` say what will hinder training, in words."""

    num_events: int
    num_users: int
    num_items: int
    num_baskets: int
    first_time: str
    last_time: str
    events_per_user: tuple[int, int, int]  # 10 %, median, 90 %
    items_per_basket: float  # mean
    seen_once: float  # share of the items
    top_fifth: float  # share of the events that the most frequent fifth of the items holds
    repeats: float  # share of the events whose user has taken the item before
    remarks: tuple[str, ...]


def reading_words(report: Mapping[str, Any]) -> list[str]:
    """How a log was read, in sentences: what was guessed, left out or put together."""
    columns, guessed = report["columns"], report["guessed"]
    named = [
        f"{column} ({part}{', guessed' if part in guessed else ''})"
        for part, column in columns.items()
        if column is not None
    ]
    words = [f"Columns: {', '.join(named)}."]
    if report["bad_rows"]:
        words.append(f"{report['bad_rows']:,} bad rows were skipped: {report['bad_examples'][0]}")
    if report["repeated_events"]:
        words.append(
            f"{report['repeated_events']:,} events repeated another of the same user, item and "
            "time, and were left out."
        )
    if report["rare_items"]:
        done = {"drop": "dropped", "fold": "folded into one class", "keep": "kept"}
        words.append(
            f"{report['rare_items']:,} rare items with {report['rare_events']:,} events were "
            f"{done[report['rare']]}."
        )
    return words + [f"{note[0].upper()}{note[1:]}." for note in report["notes"]]


def split_words(log: EventLog, split: Split) -> list[str]:
    """What is held out and what cannot be learned, in sentences."""
    report, kind = split.report, split.config.kind
    how = {"time": "by time", "last": "by the last events of each user", "group": "by user"}[kind]
    if split.cuts is not None:
        how += f", cut at {log.format_time(split.cuts[0])} and {log.format_time(split.cuts[1])}"
    words = [
        f"Split {how}: {report['train_events']:,} events to train on, "
        f"{report['validation_users']:,} users to choose by, {report['test_users']:,} to judge by."
    ]
    if report["unseen_items"]:
        words.append(
            f"{report['unseen_items']:,} items are never seen in training; "
            f"{report['test_unseen_targets']:,} of {report['test_events']:,} test events are such, "
            "and stay among the targets."
        )
    if report["users_without_history"]:
        words.append(
            f"{report['users_without_history']:,} users have no history before the cut and are "
            "not judged."
        )
    return words


def describe(log: EventLog) -> Description:
    lengths = np.diff(log.offsets)
    new_basket = np.ones(log.num_events, dtype=bool)
    np.not_equal(log.times[1:], log.times[:-1], out=new_basket[1:])
    new_basket[log.offsets[:-1]] = True
    num_baskets = int(new_basket.sum())
    counts = -np.sort(-log.item_keys.counts)
    total = max(1, int(counts.sum()))
    low, middle, high = np.percentile(lengths, [10, 50, 90], method="nearest")
    remarks = []
    if log.num_users == 1:
        remarks.append("There is one user only: is --user the right column?")
    if num_baskets == log.num_users:
        remarks.append(
            "Every user has all events at one time: there is no next item to learn. Is --time the "
            "right column?"
        )
    if log.num_items < 10_000:
        remarks.append(
            f"With {log.num_items:,} items a full softmax is exact and fast enough; TAPAS pays "
            "from about 50,000 on."
        )
    return Description(
        num_events=log.num_events,
        num_users=log.num_users,
        num_items=log.num_items,
        num_baskets=num_baskets,
        first_time=log.format_time(int(log.times.min())),
        last_time=log.format_time(int(log.times.max())),
        events_per_user=(int(low), int(middle), int(high)),
        items_per_basket=log.num_events / num_baskets,
        seen_once=float((counts == 1).mean()),
        top_fifth=float(counts[: max(1, len(counts) // 5)].sum() / total),
        repeats=_repeats(log),
        remarks=tuple(remarks),
    )


def _repeats(log: EventLog) -> float:
    """Share of events that are not the first of their (user, item); a million users at a time."""
    distinct = 0
    step = 1_000_000
    for first in range(0, log.num_users, step):
        last = min(first + step, log.num_users)
        start, stop = int(log.offsets[first]), int(log.offsets[last])
        user = np.repeat(np.arange(last - first), np.diff(log.offsets[first : last + 1]))
        pair = user.astype(np.int64) * log.num_items + log.items[start:stop]
        distinct += len(np.unique(pair))
    return 1 - distinct / max(1, log.num_events)
