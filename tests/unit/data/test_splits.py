"""Splits are checked event by event against plain loops."""

import numpy as np
import pytest
from error_text import raises_text
from hypothesis import assume, given
from hypothesis import strategies as st

from tapas import DataError
from tapas.data import EventLog, SplitConfig, next_items_at, split_log
from tapas.data.splits import check_users

LOGS = st.lists(  # for every user the times of the events
    st.lists(st.integers(0, 12), min_size=1, max_size=15), min_size=1, max_size=8
)


TIME, LAST = {"kind": "time"}, {"kind": "last"}


def build(users, time_kind="number") -> EventLog:
    times = [time for user in users for time in sorted(user)]
    arrays = {
        "items": np.arange(len(times), dtype=np.int32) * 7 % 11,
        "times": np.array(times, dtype=np.int64),
        "offsets": np.cumsum([0, *map(len, users)]),
    }
    return EventLog("nowhere", arrays, {"items": 11, "time_kind": time_kind})


def splits(users, **options):
    log = build(users)
    try:
        return log, split_log(log, SplitConfig(**options))
    except DataError:
        assume(False)


def check_split(log, split):
    """Properties of every kind of split."""
    seen = np.zeros(log.num_items, dtype=int)
    for u in range(log.num_users):
        start, end = log.offsets[u], log.offsets[u + 1]
        assert start <= split.train_end[u] <= end
        if start < split.train_end[u] < end:
            assert log.times[split.train_end[u] - 1] < log.times[split.train_end[u]]
        for item in log.items[start : split.train_end[u]]:
            seen[item] += 1
    assert split.train_counts.tolist() == seen.tolist()
    for points in (split.validation, split.test):
        assert points.user.tolist() == sorted(set(points.user.tolist()))
        for u, point, limit in zip(points.user, points.point, points.limit, strict=True):
            assert log.offsets[u] < point < limit <= log.offsets[u + 1]
            assert split.train_end[u] <= point
            assert log.times[point - 1] < log.times[point]
            assert limit == log.offsets[u + 1] or log.times[limit - 1] < log.times[limit]
    report = split.report
    for name, points in (("validation", split.validation), ("test", split.test)):
        targets = [
            int(log.items[i])
            for point, limit in zip(points.point, points.limit, strict=True)
            for i in range(point, limit)
        ]
        assert report[f"{name}_users"] == len(points)
        assert report[f"{name}_events"] == len(targets)
        assert report[f"{name}_unseen_targets"] == sum(seen[item] == 0 for item in targets)
    assert report["train_events"] == seen.sum()
    assert report["unseen_items"] == (seen == 0).sum()


def as_dict(points):
    columns = (points.user.tolist(), points.point.tolist(), points.limit.tolist())
    return {user: (point, limit) for user, point, limit in zip(*columns, strict=True)}


SHARES = st.sampled_from([0.0, 0.1, 0.2, 0.3])


@given(LOGS, SHARES, SHARES)
def test_a_split_by_time_never_looks_ahead(users, validation, test):
    log, split = splits(users, kind="time", validation=validation, test=test)
    check_split(log, split)
    first, second = split.cuts
    want = {"validation": {}, "test": {}}
    for u in range(log.num_users):
        start, end = int(log.offsets[u]), int(log.offsets[u + 1])
        before = [start + sum(t < cut for t in users[u]) for cut in (first, second)]
        assert split.train_end[u] == before[0]
        if start < before[0] < before[1]:
            want["validation"][u] = (before[0], before[1])
        if start < before[1] < end:
            want["test"][u] = (before[1], end)
    assert as_dict(split.validation) == want["validation"]
    assert as_dict(split.test) == want["test"]
    if not test:
        assert len(split.test) == 0


@given(LOGS, st.integers(0, 4), st.integers(0, 4))
def test_a_split_by_last_never_divides_a_basket(users, validation, test):
    log, split = splits(users, kind="last", validation=validation, test=test)
    check_split(log, split)
    for u, times in enumerate(users):
        times, start = sorted(times), int(log.offsets[u])
        bounds = [len(times)]
        for size in (test, validation):
            bound = max(0, bounds[-1] - size)
            while 0 < bound < len(times) and times[bound - 1] == times[bound]:
                bound -= 1
            bounds.append(bound)
        end, at_test, at_validation = bounds
        want = (start + at_test, start + end) if 0 < at_test < end else None
        assert as_dict(split.test).get(u) == want
        want = (start + at_validation, start + at_test) if 0 < at_validation < at_test else None
        assert as_dict(split.validation).get(u) == want
        assert split.train_end[u] == start + (at_validation or at_test or end)


@given(LOGS, SHARES, SHARES, st.integers(0, 3))
def test_a_split_by_group_holds_out_all_events_of_a_user(users, validation, test, seed):
    options = {"kind": "group", "validation": validation, "test": test, "seed": seed}
    log, split = splits(users, **options)
    check_split(log, split)
    held_out = split.train_end == log.offsets[:-1]
    assert (held_out | (split.train_end == log.offsets[1:])).all()
    num_held_out = sum(max(1, round(s * len(users))) if s else 0 for s in (validation, test))
    assert held_out.sum() == min(num_held_out, len(users))
    assert not set(split.validation.user) & set(split.test.user)
    for points in (split.validation, split.test):
        assert held_out[points.user].all()
        assert (points.limit == log.offsets[points.user + 1]).all()
    evaluated = {*split.validation.user.tolist(), *split.test.user.tolist()}
    with_two_baskets = {u for u in np.flatnonzero(held_out) if len(set(users[u])) > 1}
    assert evaluated == with_two_baskets
    again = split_log(log, SplitConfig(**options))
    assert as_dict(again.test) == as_dict(split.test)


def test_group_points_are_near_the_middle():
    log = build([range(300)] * 20)
    split = split_log(log, SplitConfig(kind="group", test=0.5))
    share = (split.test.point - log.offsets[split.test.user]) / 300
    assert ((share >= 0.33) & (share <= 0.67)).all()
    assert len(set(share.tolist())) > 1


def test_targets_are_padded():
    log = build([[1, 2, 3, 4, 5, 6, 7, 8]])
    split = split_log(log, SplitConfig(kind="last", validation=2, test=3))
    assert next_items_at(log, split.validation, 4).tolist() == [[*log.items[3:5].tolist(), -1, -1]]
    assert next_items_at(log, split.test, 2).tolist() == [log.items[5:7].tolist()]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"kind": "random"},
            "split kind must be one of auto, time, last, group, none, got 'random'.",
        ),
        (
            {"kind": "time", "test": 5},
            "test must be a share of the events, at least 0 and below 1, for a",
        ),
        ({"kind": "group", "validation": -0.1}, "validation must be a share of the users, at"),
        ({"kind": "last", "test": 0.1}, "test must be an integer, the number of events per user"),
        ({"kind": "last", "test": "x"}, "test must be an integer, the number of events per user"),
        (
            {"kind": "time", "test": 0.6, "validation": 0.4},
            "validation 0.4 and test 0.6 leave no training events",
        ),
    ],
)
def test_bad_values_are_refused(options, words):
    with raises_text(words):
        SplitConfig(**options)


@pytest.mark.parametrize(
    ("users", "options", "words"),
    [
        ([[3] * 9 + [4]], TIME, "no event is before the first cut, 3: too many events have the sa"),
        ([[3] * 9, [4] * 5], {}, "all events of each user have the same time, so there is no next"),
        (
            [[1, 2, 2, 2, 2]],
            {**TIME, "test": 0.3, "validation": 0.3},
            "both cuts fall on 2: too many",
        ),
        ([[1, 2], [3, 4]], {"kind": "last", "validation": 0, "test": 1}, "no user with two events"),
        (
            [[1, 2]],
            {**LAST, "validation": 5, "test": 5},
            "leaves no validation points: no user has both validation",
        ),
        (
            [[1, 2, 3], [9, 9]],
            {**TIME, "test": 0.4, "validation": 0},
            "no user has both test events and",
        ),
    ],
)
def test_an_empty_split_is_an_error(users, options, words):
    with raises_text(words, DataError):
        split_log(build(users), SplitConfig(**options))


def users_of(split):
    return split.config.kind, split.report["validation_users"], split.report["test_users"]


STEADY = [range(0, 20, 2)] * 30  # all users from the first to the last day
# each for a while, then no more
GONE = [range(20 * user, 20 * user + 9) for user in range(150)] + [range(0, 3000, 2)]


@pytest.mark.parametrize(
    ("users", "time_kind", "options", "kind", "reason"),
    [
        (STEADY, "number", {}, "time", ""),
        (STEADY, "file order", {}, "last", "the log has no times"),
        (STEADY * 10, "place in the text", {}, "group", ""),
        (STEADY, "place in the text", {"validation": 0.4, "test": 0.4}, "group", ""),
        (
            STEADY,
            "place in the text",
            {},
            "last",
            "a split by 'group' leaves 2 validation and 2 test users",
        ),
        (GONE, "number", {}, "last", "a split by 'time' leaves 1 validation and 1 test user"),
        ([[1, 1, 1, 2, 3]] * 9, "number", {"validation": 0}, "time", ""),
        ([[5] * 9 + [6, 7, 8]] * 30, "number", {"test": 0.01}, "time", ""),
    ],
)
def test_the_kind_of_a_split_is_chosen_by_what_the_log_has(users, time_kind, options, kind, reason):
    log = build(users, time_kind)
    split = split_log(log, SplitConfig(**options))
    assert (split.config.kind, split.reason) == (kind, reason)
    named = split_log(log, SplitConfig(kind=kind, **options))
    assert (named.config, named.report, named.reason) == (split.config, split.report, "")
    again = split_log(log, split.config)  # as a run folder has it
    assert again.report == split.report


def test_equal_times_are_split_by_the_last_events():
    users = [[0] * 5 + [1] + [2] * 40] * 12  # most events are of the last day
    log = build(users)
    split = split_log(log, SplitConfig())
    assert split.reason == "a split by 'time' leaves nothing to train, validate or test on"
    assert users_of(split) == ("last", 12, 12)


def test_leaving_one_out_is_the_default_of_last():
    split = split_log(build([range(9), range(3), range(2), range(1)]), SplitConfig(kind="last"))
    assert split.train_end.tolist() == [7, 10, 13, 15]  # too short: tested only, or not at all
    assert split.validation.user.tolist() == [0, 1]
    assert split.test.user.tolist() == [0, 1, 2]


def test_few_users_are_a_warning_with_the_split_that_has_more():
    thirty = build(STEADY)
    assert check_users(thirty, split_log(thirty, SplitConfig())) == (
        "Few users: the split by 'time' leaves 30 validation and 30 test users, so expect wide "
        "intervals."
    )
    gone = build(GONE)
    assert check_users(gone, split_log(gone, SplitConfig())) is None
    some = SplitConfig(kind="group", validation=0.1, test=0.1)
    assert check_users(gone, split_log(gone, some)) == (
        "Few users: the split by 'group' leaves 15 validation and 15 test users, so expect wide "
        "intervals. --split last leaves 151."
    )


@pytest.mark.parametrize(
    ("users", "config", "words"),
    [
        (
            STEADY[:9],
            {},
            "the split by 'time' leaves 9 validation and 9 test users, too few to judge a model "
            "by; expected at least 10 of each. Use a larger log.",
        ),
        (
            STEADY[:1],
            {"kind": "last", "validation": 0},
            "the split by 'last' leaves 1 test user, too few to judge a model by; expected at "
            "least 10 of each. Use a larger log.",
        ),
        (
            GONE,
            {"kind": "group"},
            "the split by 'group' leaves 8 validation and 8 test users, too few to judge a model "
            "by; expected at least 10 of each. Use --split last, which leaves 151.",
        ),
        (  # shares fit no other kind that a default could fall back to
            GONE,
            {"validation": 0.1, "test": 0.1},
            "the split by 'time' leaves 1 validation and 1 test user, too few to judge a model "
            "by; expected at least 10 of each. Use --split last, which leaves 151.",
        ),
    ],
)
def test_fewer_than_ten_users_are_an_error_with_the_split_that_has_enough(users, config, words):
    log = build(users)
    with raises_text(words, DataError):
        check_users(log, split_log(log, SplitConfig(**config)))
