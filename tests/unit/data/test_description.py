"""Descriptions of a log: numbers against plain loops, sentences word for word."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapas.data import EventLog, SplitConfig, split_log
from tapas.data.description import describe, describe_period, describe_reading, describe_split
from tapas.data.log_options import parse_condition, quoted_value

NUM_ITEMS = 6
LOGS = st.lists(  # for every user the (time, item) of the events
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, NUM_ITEMS - 1)), min_size=1, max_size=9
    ),
    min_size=1,
    max_size=7,
)  # fmt: skip


def build(users, **report):
    events = [event for user in users for event in sorted(user)]
    items = np.array([item for _, item in events], dtype=np.int32)
    arrays = {
        "items": items,
        "times": np.array([time for time, _ in events], dtype=np.int64),
        "offsets": np.cumsum([0, *map(len, users)]),
    }
    log = EventLog("nowhere", arrays, {"items": NUM_ITEMS, "time_kind": "number", **report})
    counts = -np.sort(-np.bincount(items, minlength=NUM_ITEMS))
    log.__dict__["item_keys"] = SimpleNamespace(counts=counts)
    return log


@given(LOGS)
def test_every_number_is_what_a_loop_counts(users):
    found = describe(build(users))
    events = [event for user in users for event in user]
    counts = Counter(item for _, item in events)
    assert found.num_events == len(events)
    assert (found.num_users, found.num_items) == (len(users), NUM_ITEMS)
    num_baskets = sum(len({time for time, _ in user}) for user in users)
    assert found.num_baskets == num_baskets
    assert found.items_per_basket == pytest.approx(len(events) / num_baskets)
    assert found.first_time == str(min(time for time, _ in events))
    assert found.last_time == str(max(time for time, _ in events))
    assert found.seen_once == pytest.approx(sum(n == 1 for n in counts.values()) / NUM_ITEMS)
    assert found.top_fifth == pytest.approx(max(counts.values()) / len(events))
    repeats = sum(len(user) - len({item for _, item in user}) for user in users)
    assert found.repeats == pytest.approx(repeats / len(events))
    low, middle, high = found.events_per_user
    assert min(map(len, users)) <= low <= middle <= high <= max(map(len, users))


def test_what_will_hinder_training_is_said():
    one = describe(build([[(0, 1), (0, 2)]]))
    assert one.remarks == (
        "There is only one user: is --user the right column?",
        "All events of a user have the same time, so there is no next item to learn: is --time "
        "the right column?",
    )
    assert describe(build([[(0, 1), (1, 2)], [(0, 1)]])).remarks == ()


def test_a_column_of_event_types_suggests_a_condition():
    kinds = {"view": 9000, "cart": 70, "purchase": 5, "d": 4, "e": 3, "f": 2}
    log = build([[(0, 1), (1, 2)], [(0, 1)]], event_types={"event type": kinds})
    assert describe(log).remarks[0] == (
        "All kinds of event type count alike (view 9,000, cart 70, purchase 5, d 4, e 3, ...): "
        "read some of them with --where 'event type=purchase'."
    )


@given(st.text(min_size=1))
def test_a_suggested_condition_names_that_one_value(value):
    assert parse_condition(f"event={quoted_value(value)}").values == (value,)


def test_how_a_log_was_read_is_said():
    report = {
        "columns": {"user": "who", "item": "sku", "time": "t"},
        "guessed": ["item"],
        "rows": 10_000,
        "bad_rows": 1200,
        "bad_examples": ["a.csv, row 3: sku is empty", "..."],
        "bad_kinds": {"user": 300, "item": 898, "time": 2, "broken": 1},
        "repeated_events": 7,
        "rare": "fold",
        "rare_items": 5,
        "rare_events": 9,
        "notes": ["there is only one item"],
    }
    new = {"found_by_type": ["time"], "guessed": ["item", "time"], "where": ["a=1", "b>2"],
           "rows": 9, "chosen_rows": 5, "unused": [f"x{n}" for n in range(14)]}  # fmt: skip
    assert describe_reading(report | new)[:3] == [
        "Columns: who (user), sku (item, guessed), t (time, found by type).",
        "Not used: x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11 and 2 more columns.",
        "Chosen by --where 'a=1' 'b>2': 5 of 9 rows.",
    ]
    assert describe_reading(report | {"unused": ["", "price"]})[1] == "Not used: (no name), price."
    assert describe_reading(report) == [
        "Columns: who (user), sku (item, guessed), t (time).",
        "Skipped 1,200 rows, 12% of all: 300 without user, 898 without item, 2 without valid time, "
        "1 broken (first: a.csv, row 3: sku is empty).",
        "Left out 7 duplicates: same user, item and time.",
        "5 rare items with 9 events: merged into one class.",
        "There is only one item.",
    ]
    columns = {"user": "who", "item": "sku", "time": None}
    nothing = {"guessed": [], "bad_rows": 0, "repeated_events": 0, "notes": []}
    assert describe_reading(report | nothing | {"columns": columns, "rare": "drop"}) == [
        "Columns: who (user), sku (item).",
        "5 rare items with 9 events: dropped.",
    ]
    assert len(describe_reading(report | nothing | {"rare_items": 0})) == 1


def test_bad_rows_of_an_older_prepared_log_have_no_kinds():
    report = {"columns": {"user": "who"}, "guessed": [], "rows": 101, "bad_rows": 1,
              "repeated_events": 0, "bad_examples": ["x.csv, row 3: sku is empty"], "rare_items": 0,
              "notes": []}  # fmt: skip
    assert describe_reading(report)[1] == "Skipped 1 row (first: x.csv, row 3: sku is empty)."


@pytest.mark.parametrize(
    ("kind", "times", "words"),
    [
        ("file order", (0, 1), "no times: events are in file order"),
        ("place in the text", (0, 1), "no times: words are in the order of the text"),
        ("number", (3, 9), "from 3 to 9"),
        ("number", (1_700_000_000, 1_700_100_000),
         "from 1700000000 to 1700100000 (if epoch seconds: 2023-11-14 to 2023-11-16 UTC)"),
        ("number", (1_700_000_000_000, 1_700_100_000_000),
         "from 1700000000000 to 1700100000000 (if epoch milliseconds: 2023-11-14 to 2023-11-16 "
         "UTC)"),
        ("datetime", (86_400_000_000, 90_000_500_000),
         "from 1970-01-02 to 1970-01-02 01:00:00 UTC"),
    ],
)  # fmt: skip
def test_a_period_is_in_dates_where_there_are_dates(kind, times, words):
    assert describe_period(build([[(time, 1) for time in times]], time_kind=kind)) == words


def test_a_split_says_what_it_holds_out_and_what_cannot_be_learned():
    users = [[(t, t % 3) for t in range(8)], [(t, 1) for t in range(7)] + [(9, 5)], [(9, 2)]]
    log = build(users)
    split = split_log(log, SplitConfig(kind="time", validation=0.2, test=0.15))
    assert describe_split(log, split) == [
        "Split by time at 5 and 7; training: 10 events; validation: 2 users; test: 2 users.",
        "3 items are not in the training events; 1 of 2 test events are of such items and "
        "count as misses.",
        "1 user without events before the cut cannot be evaluated.",
    ]
