"""Training, validation and test splits of a log. A basket is never divided.

"time"   train < first cut <= validation < second cut <= test, for all users
"last"   the last events of each user are held out
"group"  all events of some users are held out; evaluation starts near their middle
"none"   nothing is held out: for a model that is not judged
"auto"   "time", or "group" for text; "last" without times, or where these leave too few users
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tapas.data.baskets import basket_bounds
from tapas.data.event_log import EventLog
from tapas.data.times import FILE_ORDER, TEXT_POSITION
from tapas.errors import DataError, UsageError
from tapas.rng import check_seed, stream
from tapas.shapes import number

DEFAULTS: dict[str, tuple[float, float]] = {
    "time": (0.1, 0.1),
    "last": (1, 1),
    "group": (0.05,) * 2,
}
AUTO, NONE = "auto", "none"
NAMES = ("validation", "test")
KINDS = ", ".join((AUTO, *DEFAULTS, NONE))
FEW_USERS, TOO_FEW_USERS = 100, 10  # of validation or test: a warning, an error


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitConfig:
    """How to hold events out.

    `validation` and `test` are shares of all events for "time", numbers of events per user for
    "last", and shares of the users for "group"; 0 holds nothing out. With "last", a user who has
    no events left before the held-out ones is not evaluated, and all events are for training.
    `split_log` chooses the kind for "auto".
    """

    kind: str = AUTO
    validation: float | None = None  # None: 0.1 for "time", 1 for "last", 0.05 for "group"
    test: float | None = None
    seed: int = 0  # for "group": chooses the held-out users and where their histories end

    def __post_init__(self) -> None:
        check_seed(self.seed, "split.seed")
        if self.kind == AUTO:
            return  # numbers are checked once the kind is known
        if self.kind == NONE:
            for name in NAMES:
                object.__setattr__(self, name, 0)
            return
        if self.kind not in DEFAULTS:
            raise UsageError(f"split kind must be one of {KINDS}, got {self.kind!r}.")
        for name, default in zip(NAMES, DEFAULTS[self.kind], strict=True):
            value = getattr(self, name)
            if value is None:
                object.__setattr__(self, name, default)
            elif self.kind == "last":
                if not (number(value) >= 0 and float(value).is_integer()):
                    raise UsageError(
                        f"{name} must be an integer, the number of events per user, for a split by "
                        f"'last'; got {value!r}."
                    )
                object.__setattr__(self, name, int(value))
            elif not 0 <= number(value) < 1:
                what = "events" if self.kind == "time" else "users"
                raise UsageError(
                    f"{name} must be a share of the {what}, at least 0 and below 1, for a split by "
                    f"'{self.kind}'; got {value!r}."
                )
        if self.kind != "last" and self.shares[0] + self.shares[1] >= 1:
            raise UsageError(
                f"validation {self.validation} and test {self.test} leave no training events: "
                "their sum must be below 1."
            )

    @property
    def shares(self) -> tuple[float, float]:
        """`validation` and `test` as floats."""
        return float(self.validation or 0), float(self.test or 0)


@dataclass(frozen=True, slots=True)
class EvalPoints:
    """Points at which models are evaluated.

    The history of a point is events[offsets[user]:point], its targets are events[point:limit];
    both have at least one event. All arrays are (P,) int64. Points can be sliced and indexed.
    """

    user: NDArray[np.int64]
    point: NDArray[np.int64]
    limit: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.user)

    def __getitem__(self, index: slice | NDArray[np.int64]) -> "EvalPoints":
        return EvalPoints(self.user[index], self.point[index], self.limit[index])


@dataclass(frozen=True, slots=True)
class Split:
    """The splits of a log.

    The training events of user u are events[offsets[u]:train_end[u]], possibly none.
    """

    config: SplitConfig
    train_end: NDArray[np.int64]  # (U,) positions in the log
    train_counts: NDArray[np.int64]  # (C,) training events of each item
    validation: EvalPoints
    test: EvalPoints
    cuts: tuple[int, int] | None  # the two times of a split by "time"
    report: dict[str, int]  # numbers of users, events and unseen items of each split
    reason: str = ""  # why "auto" became this kind, if it is not what one expects

    @property
    def fewest_users(self) -> int:
        """Users of validation or of test, whichever has fewer; a split of share 0 aside."""
        sizes = zip(self.config.shares, (self.validation, self.test), strict=True)
        return min((len(points) for share, points in sizes if share), default=0)


def split_log(log: EventLog, config: SplitConfig) -> Split:
    """Split `log` according to `config`; the `config` of the result has no "auto".

    Raises `DataError` if a split that was asked for is empty or no user has two training events.
    """
    if config.kind != AUTO:
        try:
            return _split(log, config)
        except DataError as error:
            if best := best_split(log, config.kind):
                raise DataError(f"{error} --split {best[0]} leaves {best[1]:,} users.") from None
            raise
    kind = log.report["time_kind"]
    if kind == FILE_ORDER:
        return _split(log, replace(config, kind="last"), "the log has no times")
    return _split_or_last(log, config, "group" if kind == TEXT_POSITION else "time")


def _split_or_last(log: EventLog, config: SplitConfig, kind: str) -> Split:
    """A split of `kind`, unless it leaves too few users and the last events of each leave more."""
    found, failed = None, None
    try:
        found = _split(log, replace(config, kind=kind))
        if found.fewest_users >= TOO_FEW_USERS:
            return found
        reason = f"a split by '{kind}' leaves {_describe_users(found)}"
    except DataError as error:
        failed = error
        reason = f"a split by '{kind}' leaves nothing to train, validate or test on"
    try:
        last = _split(log, replace(config, kind="last"), reason)
    except (DataError, UsageError) as error:  # numbers may have been given, and be shares
        if found is None:
            raise failed or error from None
        return found
    return found if found and found.fewest_users >= last.fewest_users else last


def check_users(log: EventLog, split: Split) -> str | None:
    """A warning if `split` has few users to validate or test on; DataError if too few."""
    fewest = split.fewest_users
    if fewest >= FEW_USERS:
        return None
    words = f"the split by '{split.config.kind}' leaves {_describe_users(split)}"
    best = best_split(log, split.config.kind, more_than=max(fewest, TOO_FEW_USERS - 1))
    if fewest >= TOO_FEW_USERS:
        cure = f" --split {best[0]} leaves {best[1]:,}." if best else ""
        return f"Few users: {words}, so expect wide intervals.{cure}"
    cure = f"Use --split {best[0]}, which leaves {best[1]:,}" if best else "Use a larger log"
    raise DataError(
        f"{words}, too few to judge a model by; expected at least {TOO_FEW_USERS} of each. {cure}."
    )


def best_split(log: EventLog, kind: str, *, more_than: int = 0) -> tuple[str, int] | None:
    """The kind other than `kind` that leaves most users, if `more_than` that, and how many.

    These are the users of validation or of test, whichever has fewer.
    """
    found = {}
    has_times = log.report["time_kind"] not in (FILE_ORDER, TEXT_POSITION)
    for other in DEFAULTS if has_times else ("last", "group"):
        if other != kind:
            with suppress(DataError):
                found[other] = _split(log, SplitConfig(kind=other)).fewest_users
    best = max(found, key=lambda other: found[other], default=kind)
    return (best, found[best]) if found.get(best, 0) > more_than else None


def _describe_users(split: Split) -> str:
    """For example "9 validation and 12 test users"."""
    held_out = [n for n, share in zip(NAMES, split.config.shares, strict=True) if share]
    numbers = [split.report[f"{name}_users"] for name in held_out]
    told = " and ".join(f"{n:,} {name}" for n, name in zip(numbers, held_out, strict=True))
    return f"{told} {'user' if numbers[-1] == 1 else 'users'}"


def _split(log: EventLog, config: SplitConfig, reason: str = "") -> Split:
    log.check_values()
    lengths = np.diff(log.offsets)
    if int(lengths.max()) == 1:
        raise DataError(
            "every user has a single event, so there is no next item to learn. Check that the "
            "user column identifies users, not events."
        )
    if not (np.diff(log.times) != 0)[_same_user(log)].any():
        raise DataError(
            "all events of each user have the same time, so there is no next item to learn. Name "
            "another time column with --time, or remove this one to use the order of the file."
        )
    split_by = {"time": _by_time, "last": _by_last, "group": _by_group, NONE: _by_none}[config.kind]
    train_end, validation, test, cuts = split_by(log, config)
    start = np.asarray(log.offsets[:-1])
    if int((train_end - start).max()) < 2:
        raise DataError(
            f"the split by '{config.kind}' leaves no user with two events to train on. "
            "Hold out less, or use another kind of split."
        )
    for name, share, points in zip(NAMES, config.shares, (validation, test), strict=True):
        if share and not len(points):
            raise DataError(
                f"the split by '{config.kind}' leaves no {name} points: no user has both {name} "
                f"events and events before them. Set {name} to another value, or use another "
                "kind of split."
            )
    trained = np.arange(log.num_events) < np.repeat(train_end, lengths)
    train_counts = np.bincount(log.items[trained], minlength=log.num_items)
    report = _report(log, train_end, train_counts, validation, test)
    return Split(config, train_end, train_counts, validation, test, cuts, report, reason)


def next_items_at(log: EventLog, points: EvalPoints, k: int) -> NDArray[np.int64]:
    """The next `k` items at each point, (P, k), padded with -1."""
    event = points.point[:, None] + np.arange(k)
    inside = event < points.limit[:, None]
    return np.where(inside, log.items[np.where(inside, event, 0)], -1).astype(np.int64)


# end of training of each user, validation points, test points, the cuts of a split by time
SplitPoints = tuple[NDArray[np.int64], EvalPoints, EvalPoints, tuple[int, int] | None]


def _by_time(log: EventLog, config: SplitConfig) -> SplitPoints:
    validation, test = config.shares
    num_events = log.num_events
    first = min(num_events - 1, round(num_events * (1 - validation - test)))
    second = min(num_events - 1, round(num_events * (1 - test)))
    sorted_there = np.partition(log.times, (first, second))
    cuts = int(sorted_there[first]), int(sorted_there[second])
    beyond = int(log.times.max()) + 1  # a split of share 0 starts after the last event
    cuts = (cuts[0] if validation or test else beyond, cuts[1] if test else beyond)
    if cuts[0] == int(log.times.min()):
        raise DataError(
            f"no event is before the first cut, {log.format_time(cuts[0])}: too many events "
            "have the same time. Split by 'last' or 'group', or name another time column."
        )
    if validation and test and cuts[0] == cuts[1]:
        raise DataError(
            f"both cuts fall on {log.format_time(cuts[0])}: too many events have the same time, "
            "and validation is empty. Hold out more, or split by 'last' or 'group'."
        )
    start, end = log.offsets[:-1], np.asarray(log.offsets[1:])
    ends = []
    for cut in cuts:
        earlier = np.append(0, np.cumsum(log.times < cut))
        ends.append(start + earlier[log.offsets[1:]] - earlier[log.offsets[:-1]])
    return (
        ends[0],
        _points(log, ends[0], ends[1]) if validation else _points(log, end, end),
        _points(log, ends[1], end),
        cuts,
    )


def _by_last(log: EventLog, config: SplitConfig) -> SplitPoints:
    """Training ends at the first held-out event; users too short for that are all training."""
    basket_start = basket_bounds(log.times, log.offsets)[0]
    start, end = np.asarray(log.offsets[:-1]), np.asarray(log.offsets[1:])
    num_validation, num_test = map(int, config.shares)
    test = _at_basket_start(basket_start, start, end, end - num_test)
    validation = _at_basket_start(basket_start, start, end, test - num_validation)
    train_end = np.where(validation > start, validation, np.where(test > start, test, end))
    return train_end, _points(log, validation, test), _points(log, test, end), None


def _by_group(log: EventLog, config: SplitConfig) -> SplitPoints:
    """Held-out users have no training events; all events of the others are training events."""
    num_users = log.num_users
    generator = stream(config.seed, "held-out users")
    rank = np.empty(num_users, dtype=np.int64)  # of each user in a random order
    rank[_permutation(num_users, generator)] = np.arange(num_users)
    num_validation, num_test = (max(1, round(s * num_users)) if s else 0 for s in config.shares)
    is_test = rank < num_test
    is_validation = ~is_test & (rank < num_test + num_validation)
    start, end = np.asarray(log.offsets[:-1]), np.asarray(log.offsets[1:])
    basket_start = basket_bounds(log.times, log.offsets)[0]
    near_middle = 1 / 3 + _uniform(num_users, stream(config.seed, "points")) / 3
    point = _at_basket_start(
        basket_start, start, end, start + ((end - start) * near_middle).astype(np.int64)
    )
    point = np.where(point == start, _second_basket(log, basket_start), point)
    no_point = end
    return (
        np.where(is_test | is_validation, start, end),
        _points(log, np.where(is_validation, point, no_point), end),
        _points(log, np.where(is_test, point, no_point), end),
        None,
    )


def _by_none(log: EventLog, config: SplitConfig) -> SplitPoints:
    end = np.asarray(log.offsets[1:])
    nobody = _points(log, end, end)
    return end, nobody, nobody, None


def _same_user(log: EventLog) -> NDArray[np.bool_]:
    """True where an event and the next one are of the same user, (N - 1,)."""
    same = np.ones(log.num_events - 1, dtype=np.bool_)
    same[np.asarray(log.offsets[1:-1]) - 1] = False
    return same


def _points(log: EventLog, point: NDArray[np.int64], limit: NDArray[np.int64]) -> EvalPoints:
    """The points of the users who have both a history and targets."""
    user = np.flatnonzero((point > log.offsets[:-1]) & (point < limit))
    return EvalPoints(user, np.asarray(point[user]), np.asarray(limit[user]))


def _at_basket_start(
    basket_start: NDArray[np.int64], start: NDArray[Any], end: NDArray[Any], position: NDArray[Any]
) -> NDArray[np.int64]:
    """`position` (U,) moved back to the start of its basket, at least the user's first event."""
    position = np.maximum(position, start)
    return np.where(position < end, basket_start[np.minimum(position, end - 1)], end)


def _second_basket(log: EventLog, basket_start: NDArray[np.int64]) -> NDArray[np.int64]:
    """The start of each user's second basket, or the end of the user's events: (U,)."""
    in_first = np.append(
        0, np.cumsum(basket_start == np.repeat(log.offsets[:-1], np.diff(log.offsets)))
    )
    return np.asarray(log.offsets[:-1] + in_first[log.offsets[1:]] - in_first[log.offsets[:-1]])


def _permutation(size: int, generator: torch.Generator) -> NDArray[np.int64]:
    return np.argsort(_uniform(size, generator), kind="stable")


def _uniform(size: int, generator: torch.Generator) -> NDArray[np.float64]:
    drawn: NDArray[np.float64] = torch.rand(size, generator=generator, dtype=torch.float64).numpy()
    return drawn


def _report(
    log: EventLog,
    train_end: NDArray[np.int64],
    train_counts: NDArray[np.int64],
    validation: EvalPoints,
    test: EvalPoints,
) -> dict[str, int]:
    train_lengths = train_end - log.offsets[:-1]
    report = {
        "train_users": int(np.count_nonzero(train_lengths)),
        "train_events": int(train_lengths.sum()),
        "unseen_items": int(np.count_nonzero(train_counts == 0)),
    }
    for name, points in (("validation", validation), ("test", test)):
        sizes = points.limit - points.point
        events = np.repeat(points.point - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
        report[f"{name}_users"] = len(points)
        report[f"{name}_events"] = int(sizes.sum())
        report[f"{name}_unseen_targets"] = int(
            np.count_nonzero(train_counts[log.items[events]] == 0)
        )
    evaluated = np.zeros(log.num_users, dtype=np.bool_)
    evaluated[validation.user] = evaluated[test.user] = True
    report["users_without_history"] = int(
        np.count_nonzero(~evaluated & (train_end < log.offsets[1:]))
    )
    return report
