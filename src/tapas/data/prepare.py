"""Preparation of a log, cached: an unchanged source is prepared only once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tapas.atomic_file import make_folder, remove_leftovers, unfinished_folder
from tapas.checksums import checksum
from tapas.data.cache import discard, mark_used
from tapas.data.event_log import (
    DESCRIPTION,
    FORMAT_VERSION,
    VOCABULARIES,
    EventLog,
    write_log,
)
from tapas.data.event_order import SortedEvents, in_file_order, sort_events
from tapas.data.raw_events import read_events
from tapas.data.source import LogSource
from tapas.data.times import FILE_ORDER
from tapas.data.vocabulary import Vocabulary
from tapas.data.weights import add_up
from tapas.errors import DataError, TapasError, UsageError

READING_RULES = 3  # increase when files are read in another way, so that cached logs are not used


def _silence(text: str) -> None:
    pass


def prepare_log(
    source: LogSource,
    cache: Path,
    *,
    status: Callable[[str], None] = _silence,
    known: EventLog | None = None,
) -> EventLog:
    """The log of `source`, sorted and memory-mapped, in a folder of `cache`.

    A source with unchanged files is opened without reading them again, unless the prepared log is
    damaged. A preparation that fails or is killed leaves no log behind. `status(text)` is called at
    the start of each stage. Items of the log `known` keep their ids and never count as rare; new
    items get the ids after them.

    Raises `UsageError` or `DataError` if the files cannot be read or `cache` cannot be written.
    """
    cache = Path(cache)
    remove_leftovers(cache)
    folder = cache / source.cache_key(_version(known))
    if folder.exists():
        mark_used(folder)
        try:
            return EventLog.open(folder)
        except TapasError as error:  # damaged
            status(f"Warning: {error} The log is prepared again.")
            discard(folder)
    arrays, vocabularies, report = _build(source, status, known)
    report["files"] = [str(path.resolve()) for path in source.paths()]
    num_bytes = sum(array.nbytes for array in arrays.values())
    try:
        make_folder(cache)
        status(
            f"Writing the prepared log, {num_bytes / 1e6:,.1f} MB, to {cache} (see `tapas cache`)."
        )
        with unfinished_folder(folder) as unfinished:
            write_log(unfinished, arrays, vocabularies, report)
    except (OSError, pl.exceptions.PolarsError) as error:
        if not (folder / DESCRIPTION).exists():  # or another process was faster
            words = getattr(error, "strerror", None) or error  # without unfinished paths
            raise UsageError(
                f"the prepared log could not be written to {cache}: {words}. It needs about "
                f"{num_bytes / 1e6:,.0f} MB; nothing unfinished was left behind. Free some space "
                "or name another folder."
            ) from error
    mark_used(folder)
    return EventLog.open(folder)


def _version(known: EventLog | None) -> tuple[int | str, ...]:
    """What determines a prepared log beside its source."""
    items = [] if known is None else [checksum(known.folder / VOCABULARIES["item"])["blake2b"]]
    return (FORMAT_VERSION, READING_RULES, *items)


def _build(
    source: LogSource, status: Callable[[str], None], known: EventLog | None
) -> tuple[dict[str, NDArray[Any]], dict[str, Vocabulary], dict[str, object]]:
    """Arrays, vocabularies and report of the log of `source`, in memory."""
    raw = read_events(source, status)
    user_keys, item_keys, report = raw.user.keys, raw.item.keys, raw.report
    status(f"Sorting {len(raw.time):,} events.")
    user, item, time, weight = raw.user.codes, raw.item.codes, raw.time, raw.weight
    del raw
    if source.ties == "file":
        time = in_file_order(time)
        report |= {"time_kind": FILE_ORDER, "ties": source.ties}
    events, num_repeated = sort_events(user, time, item)
    if weight is not None:
        distinct = (events.user, events.time, events.item)
        events.weight = add_up(weight, (user, time, item), distinct)
    del user, item, time, weight
    report["repeated_events"] = num_repeated
    if known is None:
        known_items = Vocabulary(item_keys.clear(), np.zeros(0, dtype=np.int64))
    else:
        known_items = known.item_keys
        item_keys = known_items.cast_keys(item_keys)
    item_keys = _handle_rare_items(source, events, item_keys, report, known_items)
    counts = np.bincount(events.item, minlength=item_keys.len())
    items, ids = known_items.extended(item_keys, counts)
    num_items = len(items)
    table = ids.astype(np.int32 if num_items < 2**31 else np.int64)
    starts = np.append(0, 1 + np.flatnonzero(events.user[1:] != events.user[:-1]))
    offsets = np.append(starts, len(events.user)).astype(np.int64)
    lengths = np.diff(offsets)
    arrays = {"items": table[events.item], "times": events.time, "offsets": offsets}
    if events.weight is not None:
        arrays["weights"] = events.weight.astype(np.float32)
        report["weights"] = [float(f(events.weight)) for f in (np.min, np.mean, np.max)]
    vocabularies = {
        "item": items,
        "user": Vocabulary(user_keys.gather(pl.Series(events.user[starts])), lengths, kind="user"),
    }
    report |= {
        "events": len(events.item),
        "users": len(lengths),
        "items": num_items,
        "users_with_one_event": int(np.count_nonzero(lengths == 1)),
        "longest": int(lengths.max()),
        "events_in_baskets": len(events.item) - _num_single_baskets(events.first),
        "first_time": int(events.time.min()),
        "last_time": int(events.time.max()),
    }
    report["notes"] = _notes(report)
    return arrays, vocabularies, report


def _handle_rare_items(
    source: LogSource,
    events: SortedEvents,
    keys: pl.Series,
    report: dict[str, object],
    known: Vocabulary,
) -> pl.Series:
    """Drop or fold the rare items of `events`, in place. Returns the keys of the new codes."""
    counts = np.bincount(events.item, minlength=keys.len())
    rare = (counts > 0) & (counts < source.min_count) & (known.find(keys) < 0)
    report |= {"rare": source.rare, "rare_items": int(np.count_nonzero(rare))}
    report["rare_events"] = int(counts[rare].sum())
    if source.rare == "keep" or not rare.any():
        return keys
    is_rare = rare[events.item]
    if source.rare == "drop":
        if is_rare.all():
            raise DataError(
                f"every item occurs less than {source.min_count} times (min_count), so dropping "
                "rare items leaves no events. Lower min_count; the most frequent item occurs "
                f"{counts.max()} times."
            )
        events.keep(~is_rare)
        return keys
    events.item[is_rare] = keys.len()
    rows = np.flatnonzero(is_rare)
    basket = np.cumsum(events.first)[rows]
    first = np.append(True, basket[1:] != basket[:-1])
    if events.weight is not None:
        summed = np.add.reduceat(events.weight[rows], np.flatnonzero(first))
        events.weight[rows[first]] = summed
    duplicate = np.zeros(len(events.item), dtype=np.bool_)
    duplicate[rows[~first]] = True
    events.keep(~duplicate)  # a basket is a set: the rare class occurs once
    return pl.concat([keys, pl.Series(keys.name, [None], dtype=keys.dtype)])


def _num_single_baskets(first: NDArray[np.bool_]) -> int:
    """Number of baskets with a single event."""
    return int(np.count_nonzero(np.diff(np.append(np.flatnonzero(first), len(first))) == 1))


def _notes(report: dict[str, object]) -> list[str]:
    """Remarks about the log that a user should read before training on it."""
    notes = list(map(str, cast(list[str], report["reading_notes"])))
    if report["users"] == 1:
        notes.append("there is only one user; name another user column if that is wrong")
    if report["longest"] == 1:
        notes.append("every user has a single event, so there is no next item to learn")
    if report["items"] == 1:
        notes.append("there is only one item, so there is nothing to predict")
    if report.get("ties") == "file":
        notes.append(
            "events of equal time are in the order of the file, which may tell what comes next"
        )
    elif report["time_kind"] == FILE_ORDER:
        notes.append("no time column: events are taken in the order of the file")
    return notes
