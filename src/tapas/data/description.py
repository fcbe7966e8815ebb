"""Numbers and sentences that describe a log, how it was read and how it is split."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from tapas.data.event_log import EventLog
from tapas.data.log_options import quoted_value
from tapas.data.splits import NONE, Split
from tapas.data.times import DATETIME, FILE_ORDER, TEXT_POSITION
from tapas.escapes import shell_word
from tapas.phrases import counted

MANY = 0.01  # skipped rows: from this share on it is told
MAX_UNUSED = 12  # columns that are named
WANTED_EVENTS = ("purchase", "buy", "order", "transaction", "play", "listen", "watch", "kauf")
EPOCH_SECONDS = (315_532_800, 4_102_444_800)  # 1980 to 2100: numbers that are probably seconds


@dataclass(frozen=True, slots=True)
class Description:
    """Counts and shares of a log; `remarks` are sentences about what will hinder training."""

    num_events: int
    num_users: int
    num_items: int
    num_baskets: int
    first_time: str
    last_time: str
    time_kind: str  # one of `tapas.data.times`
    events_per_user: tuple[int, int, int]  # 10 %, median, 90 %
    items_per_basket: float  # mean
    seen_once: float  # share of the items
    top_fifth: float  # share of the events that are of the most frequent fifth of the items
    repeats: float  # share of the events whose item the user had before
    remarks: tuple[str, ...]


def describe_reading(report: Mapping[str, Any]) -> list[str]:
    """Sentences on how a log was read: guessed columns, skipped rows, merged items."""
    columns, how = report["columns"], dict.fromkeys(report["guessed"], ", guessed")
    how |= dict.fromkeys(report.get("found_by_type", []), ", found by type")
    named = [
        f"{column} ({part}{how.get(part, '')})"
        for part, column in columns.items()
        if column is not None
    ]
    words = [f"Columns: {', '.join(named)}."]
    if report.get("unused"):  # missing in logs prepared by older versions, as all that get reads
        words.append(f"Not used: {_cut_list(report['unused'])}.")
    if report.get("where"):
        words.append(
            f"Chosen by --where {' '.join(map(repr, report['where']))}: "
            f"{report['chosen_rows']:,} of {counted(report['rows'], 'row')}."
        )
    if report["bad_rows"]:
        words.append(_describe_bad_rows(report))
    if report["repeated_events"]:
        summed = "; their weights are added up" if report.get("weights") else ""
        words.append(
            f"Left out {counted(report['repeated_events'], 'duplicate')}: same user, item and "
            f"time{summed}."
        )
    if report.get("weights"):
        low, mean, high = report["weights"]
        words.append(
            f"Events weigh {low:.4g} to {high:.4g}, {mean:.4g} on average, in training; metrics "
            "and baselines count all alike."
        )
    if report["rare_items"]:
        done = {"drop": "dropped", "fold": "merged into one class", "keep": "kept"}
        words.append(
            f"{counted(report['rare_items'], 'rare item')} with "
            f"{counted(report['rare_events'], 'event')}: {done[report['rare']]}."
        )
    return words + [f"{note[0].upper()}{note[1:]}." for note in report["notes"]]


def _describe_bad_rows(report: Mapping[str, Any]) -> str:
    names = {role: role for role in ("user", "item", "text", "group")}
    names |= {"time": "valid time", "weight": "valid weight"}
    kinds = report.get("bad_kinds", {})  # logs prepared by older versions have none
    counts = [f"{num:,} without {names[kind]}" for kind, num in kinds.items() if kind in names]
    if kinds.get("broken"):
        counts.append(f"{kinds['broken']:,} broken")
    told = f": {', '.join(counts)}" if counts else ""
    share = report["bad_rows"] / report["rows"]
    of_all = f", {share:.0%} of all" if share >= MANY else ""
    return (
        f"Skipped {counted(report['bad_rows'], 'row')}{of_all}{told} (first: "
        f"{report['bad_examples'][0]})."
    )


def describe_split(log: EventLog, split: Split) -> list[str]:
    """Sentences on what is held out, and what a model cannot learn from the rest."""
    report, kind = split.report, split.config.kind
    if kind == "last":
        held_out = counted(int(sum(split.config.shares)), "event").removeprefix("1 ")
        how = f"by the last {held_out} of each user"
    elif kind == NONE:
        return [f"Nothing is held out; training: {counted(report['train_events'], 'event')}."]
    else:
        how = {"time": "by time", "group": "by user"}[kind]
    if split.cuts is not None:
        zone = " UTC" if log.report["time_kind"] == DATETIME else ""
        how += f" at {_short_time(log, split.cuts[0])} and {_short_time(log, split.cuts[1])}{zone}"
    if split.reason:
        how += f", because {split.reason}"
    words = [
        f"Split {how}; training: {counted(report['train_events'], 'event')}; validation: "
        f"{counted(report['validation_users'], 'user')}; test: "
        f"{counted(report['test_users'], 'user')}."
    ]
    if report["unseen_items"]:
        words.append(
            f"{counted(report['unseen_items'], 'item')} "
            f"{'is' if report['unseen_items'] == 1 else 'are'} not in the training events; "
            f"{report['test_unseen_targets']:,} of {report['test_events']:,} test events are of "
            "such items and count as misses."
        )
    if report["users_without_history"]:
        words.append(
            f"{counted(report['users_without_history'], 'user')} without events before the cut "
            "cannot be evaluated."
        )
    return words


def describe_period(log: EventLog) -> str:
    """From when to when the events are; epoch seconds and milliseconds as dates, too."""
    kind = log.report["time_kind"]
    first, last = int(log.times.min()), int(log.times.max())
    if kind == FILE_ORDER:
        return "no times: events are in file order"
    if kind == TEXT_POSITION:
        return "no times: words are in the order of the text"
    if kind == DATETIME:
        return f"from {_short_time(log, first)} to {_short_time(log, last)} UTC"
    told = f"from {first} to {last}"
    per_second = epoch_unit(log)
    if per_second is None:
        return told
    dates = [f"{datetime.fromtimestamp(time / per_second, UTC):%Y-%m-%d}" for time in (first, last)]
    unit = {1: "seconds", 1000: "milliseconds"}[per_second]
    return f"{told} (if epoch {unit}: {dates[0]} to {dates[1]} UTC)"


def epoch_unit(log: EventLog) -> int | None:
    """1 or 1000 if the times of `log`, numbers, are probably seconds or milliseconds since 1970."""
    first, last = int(log.times.min()), int(log.times.max())
    for per_second in (1, 1000):
        if all(EPOCH_SECONDS[0] <= time / per_second <= EPOCH_SECONDS[1] for time in (first, last)):
            return per_second
    return None


def describe(log: EventLog) -> Description:
    """Count what is in `log`."""
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
        remarks.append("There is only one user: is --user the right column?")
    if num_baskets == log.num_users:
        remarks.append(
            "All events of a user have the same time, so there is no next item to learn: is --time "
            "the right column?"
        )
    for column, kinds in log.report.get("event_types", {}).items():  # type: ignore[attr-defined]
        remarks.append(_describe_event_types(column, kinds))
    return Description(
        num_events=log.num_events,
        num_users=log.num_users,
        num_items=log.num_items,
        num_baskets=num_baskets,
        first_time=log.format_time(int(log.times.min())),
        last_time=log.format_time(int(log.times.max())),
        time_kind=str(log.report["time_kind"]),
        events_per_user=(int(low), int(middle), int(high)),
        items_per_basket=log.num_events / num_baskets,
        seen_once=float((counts == 1).mean()),
        top_fifth=float(counts[: max(1, len(counts) // 5)].sum() / total),
        repeats=_repeats(log),
        remarks=tuple(remarks),
    )


def _describe_event_types(column: str, counts: Mapping[str, int]) -> str:
    shown = ", ".join(f"{value} {number:,}" for value, number in list(counts.items())[:5])
    values = [v for word in WANTED_EVENTS for v in counts if v.lower().startswith(word)]
    example = shell_word(f"{column}={quoted_value(next(iter(values or counts)))}")
    return (
        f"All kinds of {column} count alike ({shown}{', ...' if len(counts) > 5 else ''}): read "
        f"some of them with --where {example}."
    )


def _repeats(log: EventLog) -> float:
    """Share of events that are not the first of their user and item; a million users at a time."""
    distinct = 0
    step = 1_000_000
    for first in range(0, log.num_users, step):
        last = min(first + step, log.num_users)
        start, stop = int(log.offsets[first]), int(log.offsets[last])
        user = np.repeat(np.arange(last - first), np.diff(log.offsets[first : last + 1]))
        pair = user.astype(np.int64) * log.num_items + log.items[start:stop]
        distinct += len(np.unique(pair))
    return 1 - distinct / max(1, log.num_events)


def _cut_list(names: list[str]) -> str:
    shown = [name or "(no name)" for name in names[:MAX_UNUSED]]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more columns" if rest else "")


def _short_time(log: EventLog, time: int) -> str:
    """Without fractions of a second."""
    return log.format_time(int(time)).partition(".")[0]
