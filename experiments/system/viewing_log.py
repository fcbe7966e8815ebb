"""A synthetic log of what users watched, with the known properties of the paper's log.

The k most popular of C items take

    P(rank < k)  =  (k / C)^b        b = log 0.6 / log 0.2

of the events: the top 20 % take 60 %, however many items there are. An event is a place u in
[0, 1) and its item floor(C u^(1/b)), so that no table is needed.

What a user watches next depends on what it watched before. Every event belongs to one of G
interests, and the next one, with chance `habit`, to the same. [0, 1) is cut into TEETH * G
equal pieces, dealt to the interests in turn like the teeth of combs; an event is at any place
on the comb of its interest. An item of the tail is smaller than a tooth and has one interest, or
two; a very popular one is wider than many teeth and has all. Interests are equally frequent, so
that u is uniform and the law above holds for all events, exactly.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tapas.data.local_files import literal
from tapas.errors import UsageError
from tapas.shapes import check_positive

TOP, TAKES = 0.2, 0.6  # of the items, of the events
POWER = math.log(TAKES) / math.log(TOP)  # b
TEETH = 100
SHORTEST = 2  # events of a user: one to read, one to predict


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewingLogConfig:
    num_users: int = 200_000
    num_items: int = 500_000
    mean_length: int = 30  # events of a user; 2 + Poisson
    num_interests: int = 1_000
    habit: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_users", "num_items", "num_interests"):
            check_positive(name, getattr(self, name))
        if self.mean_length < SHORTEST:
            raise UsageError(f"mean_length must be at least {SHORTEST}, got {self.mean_length!r}.")
        if self.num_interests > self.num_items:
            raise UsageError(
                f"num_interests is {self.num_interests}, but there are only {self.num_items} items."
            )
        if not 0 <= self.habit <= 1:
            raise UsageError(f"habit must be between 0 and 1, got {self.habit!r}.")


def write_viewing_log(path: Path, config: ViewingLogConfig) -> None:
    """Parquet with columns user, item and time; items are numbered by popularity from 0.

    Every item is in the log: those that nobody watched are dealt to further users, who watch
    nothing else. They are few where events are many: with the defaults, below 0.1 % of them.
    """
    draw = np.random.default_rng(config.seed)
    length = SHORTEST + draw.poisson(config.mean_length - SHORTEST, size=config.num_users)
    start = np.cumsum(length) - length
    num_events = int(length.sum())
    place = _places(config, draw, start, num_events)
    item = (config.num_items * place ** (1 / POWER)).astype(np.int64)
    np.minimum(item, config.num_items - 1, out=item)  # a place just below 1 may be rounded to C
    left = draw.permutation(
        np.flatnonzero(np.bincount(item, minlength=config.num_items) == 0)
    ).astype(np.int64)
    late, moment = np.divmod(np.arange(len(left)), config.mean_length)
    user = np.repeat(np.arange(config.num_users), length)
    time = np.arange(num_events) - np.repeat(start, length)
    pl.DataFrame(
        {
            "user": np.concatenate([user, config.num_users + late]),
            "item": np.concatenate([item, left]),
            "time": np.concatenate([time, moment]),
        }
    ).write_parquet(literal(path))


def _places(
    config: ViewingLogConfig,
    draw: np.random.Generator,
    start: NDArray[np.int64],
    num_events: int,
) -> NDArray[np.float64]:
    """u of every event (N,); the first one of each user is at `start`."""
    begins = draw.random(num_events) >= config.habit
    begins[start] = True
    last_begin = np.maximum.accumulate(np.where(begins, np.arange(num_events), 0))
    interest = draw.integers(config.num_interests, size=num_events)[last_begin]
    tooth = draw.integers(TEETH, size=num_events)
    inside = draw.random(num_events)
    places: NDArray[np.float64] = (tooth * config.num_interests + interest + inside) / (
        TEETH * config.num_interests
    )
    return places
