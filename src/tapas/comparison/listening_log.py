"""A made-up log of people who hear serials in order and songs again and again.

Three things decide what a listener hears next:

    order       each listener follows a few serials at once and hears their episodes in order; which
                of the serials comes next is chance, so the last event alone does not tell
    taste       a serial that is over is replaced by one that the listener has not heard, of one of
                three genres that the listener likes; a few serials of a genre are in great demand
    repetition  between episodes come the songs of the listener's playlist, round after round

The best possible lists are known: `rank_by_truth` continues each history many times by the same
rules.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.data.event_log import EventLog
from tapas.data.local_files import literal
from tapas.data.splits import EvalPoints
from tapas.errors import UsageError
from tapas.evaluation.scores import LIST_LENGTH
from tapas.shapes import check_positive

Ids = NDArray[np.int64]

LIKING = (0.6, 0.3, 0.1)  # chances of a listener's three genres
SKIP = (0.7, 0.2, 0.1)  # chances that 0, 1 or 2 songs of the playlist are skipped
SHORTEST_SERIAL, LONGEST_SERIAL = 5, 12  # episodes
SHORTEST_PLAYLIST, LONGEST_PLAYLIST = 4, 8  # songs
START = 1_735_689_600  # 2025-01-01 00:00 UTC
YEAR = 365 * 86_400  # seconds
MOST_TRIES = 20  # draws of a serial that was not heard before
FUTURES = 200  # continuations of each history that tell the best list

GENRES = (
    "crime", "history", "comedy", "space", "romance", "horror", "travel", "nature", "family",
    "science", "sports", "spies", "fantasy", "medicine", "war", "sea", "law", "school", "ghosts",
    "money", "theatre", "food", "politics", "westerns",
)  # fmt: skip
ADJECTIVES = (
    "Silent", "Golden", "Broken", "Hidden", "Distant", "Frozen", "Burning", "Little", "Last",
    "Crooked", "Scarlet", "Hollow", "Wandering", "Midnight", "Paper", "Iron", "Glass", "Winter",
    "Summer", "Northern", "Southern", "Secret", "Lonely", "Painted", "Velvet", "Copper", "Stolen",
    "Second", "Bitter", "Gentle", "Quiet", "Restless", "Salty", "Silver", "Wooden", "Tangled",
    "Empty", "Borrowed", "Laughing", "Sleeping", "Forgotten", "Electric",
)  # fmt: skip
NOUNS = (
    "Harbour", "Garden", "Letter", "Bridge", "Orchard", "Lantern", "River", "Mountain", "Station",
    "Island", "Mirror", "Clock", "Window", "Forest", "Market", "Tower", "Valley", "Train",
    "Library", "Circus", "Castle", "Road", "Ocean", "Village", "Moon", "Sister", "Captain",
    "Doctor", "Stranger", "Teacher", "Painter", "Sparrow", "Fox", "Wolf", "Whale", "Horse", "Crow",
    "Rose", "Willow", "Apple", "Crown", "Coat", "Violin", "Piano", "Suitcase", "Map", "Key", "Kite",
    "Storm", "Fire", "Snow", "Shadow", "Summer House", "Desert", "Ferry", "Mill", "Attic",
    "Well", "Kitchen", "Neighbour",
)  # fmt: skip
BEGINNINGS = (
    "Waiting for", "Dancing with", "Leaving", "Dreaming of", "Back to", "Goodbye to", "Calling",
    "Running from", "Under", "Beyond", "Hello to", "Singing to", "Lost without", "Never", "Always",
    "Follow", "Remember", "Chasing", "Waltz of", "Ballad of", "Blues for", "Lullaby of", "Tango of",
    "March of", "Once upon", "Nights of", "Mornings by", "Walking past", "Falling for",
    "Home is", "Whistle for", "Slow down,", "Wake up,", "Tell it to", "Thinking of",
    "All about", "Far from", "Close to", "Ode to", "Rain over", "Sunrise on", "Letters from",
    "Stay by", "Meet me at", "Hands off", "Counting on", "Farewell to", "Twice around",
    "Looking at", "Looking through",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ListeningLogConfig:
    num_listeners: int = 8_000
    serials_per_genre: int = 100
    num_songs: int = 3_000
    serials_at_once: int = 3
    song_share: float = 0.35  # of all events
    serial_exponent: float = 1.3  # of Zipf's law for the serials of a genre
    song_exponent: float = 0.7
    fewest_events: int = 60  # of a listener
    most_events: int = 220
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (
            "num_listeners", "serials_per_genre", "num_songs", "serials_at_once", "fewest_events",
            "most_events",
        ):  # fmt: skip
            check_positive(name, getattr(self, name))
        for name, largest in (
            ("serials_per_genre", len(ADJECTIVES) * len(NOUNS) // len(GENRES)),
            ("num_songs", len(BEGINNINGS) * len(NOUNS)),
        ):
            if getattr(self, name) > largest:
                raise UsageError(
                    f"{name} is {getattr(self, name)}, but there are names for {largest} only."
                )
        if self.fewest_events > self.most_events:
            raise UsageError(
                f"fewest_events is {self.fewest_events}, more than most_events, {self.most_events}."
            )
        if not 0 <= self.song_share <= 1:
            raise UsageError(f"song_share must be between 0 and 1, got {self.song_share!r}.")


@dataclass(slots=True)
class State:
    """Where some listeners are; N rows, of which several may be one listener."""

    who: Ids  # (N,)
    serial: Ids  # (N, S) the serials that they follow
    episode: Ids  # (N, S) the next episode of each, from 0
    turn: Ids  # (N,) the next song of the playlist
    heard: NDArray[np.bool_]  # (N, serials) begun so far

    def rows(self, index: Ids) -> "State":
        """A copy of some rows."""
        return State(*(getattr(self, name)[index] for name in State.__slots__))


class Listeners:
    """The catalogue, the listeners, and how they go on; all drawn by the seed of `config`.

    Item i is an episode for i < `num_episodes`, else the song i - num_episodes. The episodes of a
    serial are consecutive.
    """

    def __init__(self, config: ListeningLogConfig):
        self.config = config
        self.draw = draw = np.random.default_rng(config.seed)
        size, num_serials = config.num_listeners, len(GENRES) * config.serials_per_genre
        self.length = draw.integers(SHORTEST_SERIAL, LONGEST_SERIAL + 1, size=num_serials)
        self.first = np.cumsum(self.length) - self.length
        self.num_episodes = int(self.length.sum())
        self.genres = np.argsort(draw.random((size, len(GENRES))), axis=1)[:, : len(LIKING)]
        shape = (size, LONGEST_PLAYLIST)
        self.songs = _zipf(draw, config.num_songs, config.song_exponent, shape)
        self.playlist_length = draw.integers(SHORTEST_PLAYLIST, LONGEST_PLAYLIST + 1, size=size)
        self.num_events = draw.integers(config.fewest_events, config.most_events + 1, size=size)

    def start(self) -> State:
        """All listeners, each in the middle of some serials and of the playlist."""
        size, draw = self.config.num_listeners, self.draw
        heard = np.zeros((size, len(self.length)), dtype=bool)
        serial = np.empty((size, self.config.serials_at_once), dtype=np.int64)
        for slot in range(self.config.serials_at_once):
            serial[:, slot] = self._new_serials(np.arange(size), heard, draw)
            heard[np.arange(size), serial[:, slot]] = True
        episode = (draw.random(serial.shape) * self.length[serial]).astype(np.int64)
        turn = draw.integers(0, self.playlist_length)
        return State(np.arange(size), serial, episode, turn, heard)

    def play(self, state: State, draw: np.random.Generator) -> Ids:
        """The item that each of `state` hears next, (N,). Changes `state`, except `heard`."""
        size = len(state.who)
        row = np.arange(size)
        turn = (state.turn + _choose(draw, SKIP, size)) % self.playlist_length[state.who]
        slot = draw.integers(self.config.serials_at_once, size=size)
        is_song = draw.random(size) < self.config.song_share
        serial, episode = state.serial[row, slot], state.episode[row, slot]
        song = self.num_episodes + self.songs[state.who, turn]
        item = np.where(is_song, song, self.first[serial] + episode)
        state.turn = np.where(is_song, turn + 1, state.turn)
        state.episode[row, slot] += ~is_song
        over = np.flatnonzero(state.episode[row, slot] == self.length[serial])
        state.serial[over, slot[over]] = self._new_serials(state.who[over], state.heard[over], draw)
        state.episode[over, slot[over]] = 0
        return item

    def _new_serials(self, who: Ids, heard: NDArray[np.bool_], draw: np.random.Generator) -> Ids:
        """A serial for each of `who` (N,), if possible not `heard` (N, serials) before."""
        serial, left = np.zeros(len(who), dtype=np.int64), np.arange(len(who))
        per_genre, exponent = self.config.serials_per_genre, self.config.serial_exponent
        for _ in range(MOST_TRIES):
            genre = self.genres[who[left], _choose(draw, LIKING, len(left))]
            serial[left] = genre * per_genre + _zipf(draw, per_genre, exponent, len(left))
            left = left[heard[left, serial[left]]]
        return serial

    def names(self) -> list[str]:
        """Each item in words; all are different."""
        order = np.random.default_rng(0)
        titles = [f"The {first} {second}" for first, second in product(ADJECTIVES, NOUNS)]
        songs = [f"song: {first} the {second}" for first, second in product(BEGINNINGS, NOUNS)]
        order.shuffle(titles)
        order.shuffle(songs)
        names = []
        for serial, length in enumerate(self.length):
            title = f"{titles[serial]} ({GENRES[serial // self.config.serials_per_genre]})"
            names += [f"{title}, episode {number}" for number in range(1, length + 1)]
        return names + songs[: self.config.num_songs]


def describe_listening_log(config: ListeningLogConfig) -> str:
    """Three sentences for somebody who sees the log for the first time."""
    return (
        f"This log is made up: {config.num_listeners:,} listeners each follow "
        f"{config.serials_at_once} serials at a time, episode by episode, and chance decides which "
        "of them comes next. When a serial is over, its listener begins another one of a favourite "
        "genre, most often one that many people hear. In between, the songs of the listener's "
        "playlist come back round after round."
    )


def write_listening_log(path: Path, config: ListeningLogConfig) -> None:
    """Parquet with the columns user, item (in words) and time (in 2025)."""
    listeners = Listeners(config)
    state, shape = listeners.start(), (config.num_listeners, config.most_events)
    item = np.empty(shape, dtype=np.int64)
    for event in range(config.most_events):
        item[:, event] = _play_and_remember(listeners, state)
    real = np.arange(config.most_events) < listeners.num_events[:, None]
    second = np.where(real, listeners.draw.integers(YEAR, size=shape), YEAR)
    second.sort(axis=1)
    second += np.arange(config.most_events)  # no two events of a listener at one time
    user = np.broadcast_to(state.who[:, None], shape)
    words = pl.Series(listeners.names()).gather(item[real])
    time = pl.from_epoch(pl.Series(START + second[real]), time_unit="s")
    frame = pl.DataFrame({"user": user[real], "item": words, "time": time})
    frame.write_parquet(literal(path))


def _play_and_remember(listeners: Listeners, state: State) -> Ids:
    item = listeners.play(state, listeners.draw)
    state.heard[state.who[:, None], state.serial] = True
    return item


def rank_by_truth(
    config: ListeningLogConfig, log: EventLog, points: EvalPoints, num_targets: int
) -> Tensor:
    """The items (P, 20) most likely to be among the next `num_targets`, given all that is hidden.

    The hidden state of each listener at its point is known, and the listener goes on from there
    `FUTURES` times.
    """
    listeners = Listeners(config)
    number = {name: item for item, name in enumerate(listeners.names())}
    names = log.item_keys.keys(np.arange(log.num_items))
    item_id = np.full(len(number), -1)
    item_id[[number[str(name)] for name in names]] = np.arange(log.num_items)
    who = np.array([int(key) for key in log.user_keys.keys(points.user)])
    place = points.point - np.asarray(log.offsets)[points.user]
    ranked = np.full((len(points), LIST_LENGTH), -1, dtype=np.int64)
    state, draw = listeners.start(), np.random.default_rng((config.seed, 1))  # of the futures
    for event in range(int(place.max()) + 1):
        here = np.flatnonzero(place == event)
        if len(here):
            ranked[here] = _likeliest(listeners, state.rows(who[here]), draw, item_id, num_targets)
        _play_and_remember(listeners, state)
    return torch.from_numpy(ranked)


def _likeliest(
    listeners: Listeners, state: State, draw: np.random.Generator, item_id: Ids, num_targets: int
) -> Ids:
    """The items (N, 20) that are most often among the next `num_targets` of each of `state`."""
    size, num_items = len(state.who), len(item_id)
    row = np.repeat(np.arange(size), FUTURES)
    futures = state.rows(row)
    heard = np.stack([row * num_items + listeners.play(futures, draw) for _ in range(num_targets)])
    code, count = np.unique(heard, return_counts=True)
    row, item = np.divmod(code, num_items)
    listed = item_id[item] >= 0  # what the log never shows cannot be listed
    row, item, count = row[listed], item[listed], count[listed]
    order = np.lexsort((item, -count, row))
    row, item = row[order], item[order]
    rank = np.arange(len(row)) - np.searchsorted(row, row)
    best = np.full((size, LIST_LENGTH), -1, dtype=np.int64)
    first = rank < LIST_LENGTH
    best[row[first], rank[first]] = item_id[item[first]]
    return best


def _choose(draw: np.random.Generator, chances: tuple[float, ...], size: int) -> Ids:
    """Numbers 0, 1, ... with these chances."""
    return np.searchsorted(np.cumsum(chances[:-1]), draw.random(size), side="right")


def _zipf(
    draw: np.random.Generator, most: int, exponent: float, shape: int | tuple[int, ...]
) -> Ids:
    """Numbers from 0 to most-1 with chances falling like 1 / (number + 1)^exponent."""
    chance = 1 / np.arange(1, most + 1) ** exponent
    edges = np.cumsum(chance)[:-1] / chance.sum()
    return np.searchsorted(edges, draw.random(shape), side="right")
