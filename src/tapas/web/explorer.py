"""The answers to the explorer, the page at /: users, their histories and lists, items, a map.

Keys are text here, since JavaScript has no exact integers of 64 bits.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from threading import Lock
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response
from torch import Tensor

from tapas.data.baskets import next_baskets
from tapas.data.description import epoch_unit
from tapas.data.event_log import EventLog
from tapas.data.splits import Split, split_log
from tapas.data.times import DATETIME, NUMBER
from tapas.errors import UsageError
from tapas.ragged import spans
from tapas.retrieval.recommender import Prediction
from tapas.training.build import TrainingData, build_mixture
from tapas.training.load import RunModel
from tapas.training.model import SequenceModel
from tapas.training.run_evaluation import check_same_points
from tapas.training.run_folder import RunFolder
from tapas.web.api import RequestError, as_json
from tapas.web.item_map import principal_components
from tapas.web.models import Models
from tapas.web.schema import MOST_ITEMS, Keys
from tapas.web.served_model import NONE, Ids, Query, ServedModel

LIST_LENGTH = 20
SHOWN_EVENTS = 200  # of a history
SHOWN_USERS = 20  # of an item
MOST_FOUND = 100  # of a search
MOST_ON_MAP = 5_000
OTHER_LOG = (
    "This model was trained on another log, or holds out other events: it may have seen what it is "
    "to find."
)

Found = dict[str, Any]


class Lists(msgspec.Struct, forbid_unknown_fields=True):
    """What the explorer sends to see lists for a history."""

    history: Keys
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the history of a user ends, and what they took next: events start:point:judged:limit.

    Lists are judged by the first few of the events that are held out, as by `tapas evaluate`.
    """

    start: int
    point: int
    judged: int
    limit: int
    held_out: str | None  # "test", "validation", or None: the history is all there is


class Judged(ServedModel):
    """A model whose counting parts count the training events only, as `tapas evaluate` has it.

    What a user took next must not have been counted where it is to be found.
    """

    def __init__(self, served: ServedModel, run_model: RunModel, split: Split):
        super().__init__(served.name, served.model, served.step)
        self.table = served.table
        self._sequence_model: SequenceModel = run_model.sequence_model
        run = run_model.run
        data = TrainingData(None, run.log, split.train_end)
        self._mixture = build_mixture(run.config.model, data)
        if self._mixture is not None and run_model.mixture is not None:
            self._mixture.load_state_dict(run_model.mixture.state_dict())

    def predict(self, items: Tensor, lengths: Tensor, age: Tensor) -> Prediction:
        found = self._sequence_model.predict(items, lengths, age)
        return replace(found, mixture=self._mixture)


class Explored:
    """What the explorer has worked out of the models that are served now."""

    def __init__(self, models: Sequence[ServedModel]):
        self.models = models
        self._counting = Lock()

    @cached_property
    def with_users(self) -> ServedModel:
        """The first model that knows users; RequestError if none does."""
        return self._with_users[0]

    @cached_property
    def _with_users(self) -> tuple[ServedModel, RunFolder]:
        for each in self.models:
            if isinstance(each.model, RunModel):
                return each, each.model.run
        raise RequestError(404, "the models are exports, which have no users. Type a history.")

    @property
    def log(self) -> EventLog:
        return self._with_users[1].log

    @cached_property
    def split(self) -> Split:
        return split_log(self.log, self._with_users[1].config.split)

    @property
    def judged(self) -> dict[str, ServedModel]:
        """The models by which held-out events can be found fairly, by name."""
        with self._counting:  # it takes seconds, and one thread is enough
            return self._judged

    @cached_property
    def _judged(self) -> dict[str, ServedModel]:
        _, first = self._with_users
        found: dict[str, ServedModel] = {}
        for each in self.models:
            if not isinstance(each.model, RunModel):
                continue
            try:
                check_same_points(first, each.model.run)
            except UsageError:
                continue
            found[each.name] = Judged(each, each.model, self.split)
        return found

    def followers(self, run: RunFolder, item: int) -> tuple[Ids, NDArray[np.float64]]:
        """Items of the baskets directly after those with `item`, in training, and their shares."""
        log = run.log
        end = (
            self.split.train_end if log is self.log else split_log(log, run.config.split).train_end
        )
        events = np.flatnonzero(np.asarray(log.items) == item)
        limits = np.asarray(end)[np.searchsorted(log.offsets, events, side="right") - 1]
        events, limits = events[events < limits], limits[events < limits]
        position, _ = spans(*next_baskets(log.times, events, limits))
        ids, times = np.unique(np.asarray(log.items)[position], return_counts=True)
        return ids.astype(np.int64), times / max(1, times.sum())

    @cached_property
    def maps(self) -> dict[str, tuple[Ids, NDArray[np.float64]]]:
        """Most frequent items and their places on the map, by model; filled when asked for."""
        return {}

    def cut(self, user: int) -> Cut:
        start, stop = (int(bound) for bound in self.log.offsets[user : user + 2])
        for name, points in (("test", self.split.test), ("validation", self.split.validation)):
            place = np.flatnonzero(points.user == user)
            if len(place):
                point, limit = int(points.point[place[0]]), int(points.limit[place[0]])
                num_targets = self._with_users[1].config.head.next_items
                return Cut(start, point, min(limit, point + num_targets), limit, name)
        return Cut(start, stop, stop, stop, None)


class Explorer:
    """The end points below /explorer.

    What takes long is done in threads of its own, what computes with the rows of a model in the
    thread of `compute`, which answers the API, too.
    """

    def __init__(self, models: Models, compute: Executor):
        self._models, self._compute = models, compute
        self._threads = ThreadPoolExecutor(2, "explorer")
        self._explored: Explored | None = None

    async def _reply(self, work: Callable[[], Found]) -> Response:
        loop = asyncio.get_running_loop()
        return as_json(await loop.run_in_executor(self._threads, work))

    @property
    def _now(self) -> Explored:
        """What was worked out, unless a model has been replaced since."""
        models, found = list(self._models), self._explored
        if found is None or any(a is not b for a, b in zip(models, found.models, strict=True)):
            found = self._explored = Explored(models)
        return found

    def forget(self) -> None:
        """Keep no model that was replaced, nor what was worked out of it."""
        self._explored = None

    def _prepare(self) -> None:
        """Count what judged lists need, before somebody has chosen a user."""
        with suppress(RequestError):  # there are no users
            _ = self._now.judged

    async def about(self, request: Request) -> Response:
        self._threads.submit(self._prepare)
        models = [
            {
                "name": each.name,
                "step": each.step,
                "score": each.model.score,
                "parts": _part_names(each),
                "items": each.num_items,
                "users": 0 if each.model.log is None else each.model.log.num_users,
                "exclude_seen": each.model.exclude_seen,
            }
            for each in self._models
        ]
        named = any(
            each.table is not None and each.table.names is not None for each in self._models
        )
        return as_json(
            {
                "models": models,
                "named": named,
                "limits": {"history": MOST_ITEMS},
            }
        )

    async def users(self, request: Request) -> Response:
        prefix, limit = request.query_params.get("prefix", ""), _limit(request)
        return await self._reply(lambda: self._users(prefix, limit))

    def _users(self, prefix: str, limit: int) -> Found:
        log = self._now.log
        ids = log.user_keys.starting_with(prefix, limit + 1)
        return {"users": _users_of(log, ids[:limit]), "more": len(ids) > limit}

    async def random_user(self, request: Request) -> Response:
        return await self._reply(self._random_user)

    def _random_user(self) -> Found:
        now = self._now
        log, points = now.log, now.split.test
        users = points.user if len(points) else np.arange(log.num_users)
        chosen = users[np.random.default_rng().integers(len(users))]
        return {"user": str(log.user_keys.key(int(chosen)))}

    async def user(self, request: Request) -> Response:
        key = request.query_params.get("key", "")
        return await self._reply(lambda: self._user(key))

    def _user(self, key: str) -> Found:
        now = self._now
        log, first = now.log, now.with_users
        user = int(log.user_keys.known_ids([key])[0])
        if user < 0:
            raise RequestError(404, f"unknown user '{key[:60]}'.{log.user_keys.suggestion(key)}")
        cut = now.cut(user)
        items = np.asarray(log.items[cut.start : cut.point], dtype=np.int64)
        times = np.asarray(log.times[cut.start : cut.point])
        after = np.asarray(log.items[cut.point : cut.judged], dtype=np.int64)
        lists = []
        for each in self._models:
            model, note = each, None
            if cut.held_out is not None:
                model = now.judged.get(each.name, each)
                note = OTHER_LOG if model is each and each is not first else None
            mine, mine_times, wanted = items, times, after
            if each.model.log is not log:
                mine, mine_times, wanted = _translated(first, each, items, times, after)
            lists.append(self._list(model, mine, mine_times, wanted, note))
        since = max(cut.start, cut.point - SHOWN_EVENTS)
        return {
            "user": str(log.user_keys.key(user)),
            "held_out": cut.held_out,
            "events": cut.point - cut.start,
            "history": self._events(first, log, since, cut.point),
            "next": self._events(first, log, cut.point, cut.judged),
            "later": cut.limit - cut.judged,
            "lists": lists,
        }

    def _list(
        self,
        model: ServedModel,
        items: Ids,
        times: NDArray[np.integer] | None,
        wanted: Ids,
        note: str | None = None,
    ) -> Found:
        """The list of a model after a history of ids, those in `wanted` marked."""
        found: Found = {"model": model.name, "score": model.model.score, "note": note}
        if not len(items):
            return found | {"hits": 0, "items": [], "note": "It knows no item of the history."}
        exclude = np.unique(items) if model.model.exclude_seen else NONE
        k = min(LIST_LENGTH, model.num_items)
        query = Query(items, times, exclude)
        (ranked,) = self._compute.submit(model.rank, [query], k, explain=True).result()
        listed = []
        rows = [] if ranked.parts is None else ranked.parts.tolist()
        keys = model.model.item_keys.keys(ranked.ids)
        hits = np.isin(ranked.ids, wanted).tolist()
        for key, id, score, parts, hit in zip(
            keys, ranked.ids.tolist(), ranked.scores.tolist(), rows, hits, strict=True
        ):
            shares = dict(zip(ranked.part_names, parts, strict=True))
            part = max(shares, key=lambda name: shares[name]) if len(shares) > 1 else None
            listed.append(
                {
                    **self._named(model, key, id),
                    "score": score,
                    "part": part,
                    "parts": shares,
                    "hit": hit,
                }
            )
        return found | {"hits": sum(hits), "items": listed}

    async def items(self, request: Request) -> Response:
        query, limit = request.query_params.get("query", ""), _limit(request)
        return await self._reply(lambda: self._search(query, limit))

    def _search(self, query: str, limit: int) -> Found:
        """Items by key or name: those of the first model, then those that only others know."""
        items: dict[str, Found] = {}
        for model in self._models:
            keys, table = model.model.item_keys, model.table
            found = keys.starting_with(query, limit + 1).tolist()
            if table is not None:
                found += [id for id in table.search(query, limit + 1) if id not in found]
            for id in found:
                named = self._named(model, keys.key(id), id)
                items.setdefault(named["item"], {**named, "count": int(model.training_counts[id])})
        return {"items": list(items.values())[:limit], "more": len(items) > limit}

    async def item(self, request: Request) -> Response:
        key = request.query_params.get("key", "")
        return await self._reply(lambda: self._item(key))

    def _item(self, key: str) -> Found:
        model, id = self._find_item(key)
        if model is None:
            suggestion = self._models.first.model.item_keys.suggestion(key)
            raise RequestError(404, f"unknown item '{key[:60]}'.{suggestion}")
        users, num_users = self._users_of_item(key)
        return {
            **self._named(model, model.model.item_keys.key(id), id),
            "count": int(model.training_counts[id]),
            "rank": model.rank_by_frequency(id),
            "of": model.num_items,
            "columns": {} if model.table is None else model.table.values(id),
            "similar": [found for each in self._models if (found := self._near(each, key))],
            **self._followers(key),
            "users": users,
            "num_users": num_users,
        }

    def _find_item(self, key: str | int) -> tuple[ServedModel | None, int]:
        """The first model that knows an item, and its id there."""
        for model in self._models:
            id = int(model.model.item_keys.known_ids([key])[0])
            if id >= 0:
                return model, id
        return None, -1

    def _near(self, model: ServedModel, key: str) -> Found | None:
        """The neighbours of an item; None if the model does not know it or has no vectors."""
        keys = model.model.item_keys
        ids = keys.known_ids([key])
        if ids[0] < 0 or model.num_items < 2:
            return None
        k = min(LIST_LENGTH, model.num_items - 1)
        try:
            (part,) = self._compute.submit(lambda: list(model.model.neighbours(ids, k))).result()
        except UsageError:
            return None
        found = zip(
            keys.keys(part.ids[0]), part.ids[0].tolist(), part.scores[0].tolist(), strict=True
        )
        items = [{**self._named(model, each, id), "score": score} for each, id, score in found]
        return {"model": model.name, "items": items}

    def _followers(self, key: str) -> Found:
        """What came directly after an item in training, most often first."""
        for model in self._models:
            if isinstance(model.model, RunModel):
                run = model.model.run
                id = int(run.log.item_keys.known_ids([key])[0])
                if id >= 0:
                    ids, share = self._now.followers(run, id)
                    return {"followers": self._shares(model, ids, share), "weighted": False}
        for model in self._models:
            mixture = model.model.mixture
            id = int(model.model.item_keys.known_ids([key])[0])
            if id >= 0 and mixture is not None and mixture.follow is not None:
                found, counts = mixture.follow.transitions.rows(torch.tensor([[id]]))
                real = found[0, 0] >= 0
                ids, share = found[0, 0][real].numpy(), counts[0, 0][real].numpy()
                return {
                    "followers": self._shares(model, ids, share / max(share.sum(), 1e-9)),
                    "weighted": True,
                }
        return {"followers": None, "weighted": False}

    def _shares(self, model: ServedModel, ids: Ids, share: NDArray[np.float64]) -> list[Found]:
        best = np.argsort(-share, kind="stable")[:LIST_LENGTH]
        keys = model.model.item_keys.keys(ids[best])
        found = zip(keys, ids[best].tolist(), share[best].tolist(), strict=True)
        return [{**self._named(model, key, each), "share": share} for key, each, share in found]

    def _users_of_item(self, key: str) -> tuple[list[Found], int]:
        """Users who took an item, those who did so most often, and how many there are."""
        try:
            log = self._now.log
        except RequestError:
            return [], 0
        id = int(log.item_keys.known_ids([key])[0])
        events = np.flatnonzero(np.asarray(log.items) == id)
        users, times = np.unique(
            np.searchsorted(log.offsets, events, side="right") - 1, return_counts=True
        )
        most = np.argsort(-times, kind="stable")[:SHOWN_USERS]
        shown = zip(_users_of(log, users[most]), times[most].tolist(), strict=True)
        return [{**user, "times": number} for user, number in shown], len(users)

    async def lists(self, request: Request) -> Response:
        asked = msgspec.json.decode(await request.body(), type=Lists)
        return await self._reply(lambda: self._lists(asked))

    def _lists(self, asked: Lists) -> Found:
        try:
            models = list(self._models) if asked.model is None else [self._models.find(asked.model)]
        except LookupError as error:
            raise RequestError(404, str(error.args[0])) from None
        lists = []
        named: list[Found | None] = [None] * len(asked.history)  # by the first that knows an item
        for model in models:
            ids = model.model.item_keys.known_ids(asked.history)
            lists.append(self._list(model, model.as_history(ids), None, NONE))
            for place in np.flatnonzero(ids >= 0).tolist():
                key, id = asked.history[place], int(ids[place])
                named[place] = named[place] or self._named(model, key, id)
        pairs = list(zip(asked.history, named, strict=True))
        return {
            "lists": lists,
            "history": [found for _, found in pairs if found is not None],
            "unknown": [str(key) for key, found in pairs if found is None],
        }

    async def map(self, request: Request) -> Response:
        name = request.query_params.get("model")
        return await self._reply(lambda: self._map(name))

    def _map(self, name: str | None) -> Found:
        try:
            model = self._models.find(name)
        except LookupError as error:
            raise RequestError(404, str(error.args[0])) from None
        maps = self._now.maps
        if model.name not in maps:
            ids, _ = model.model.popular(MOST_ON_MAP)
            try:
                vectors = model.model.class_vectors()[torch.from_numpy(ids)]
            except UsageError as error:
                raise RequestError(404, str(error)) from None
            maps[model.name] = ids, principal_components(vectors.detach().cpu()).numpy()
        ids, places = maps[model.name]
        table = model.table
        names = None if table is None or table.names is None else [table.names[id] for id in ids]
        columns = {} if table is None else table.groups
        return {
            "items": list(map(str, model.model.item_keys.keys(ids))),
            "names": names,
            "x": np.round(places[:, 0], 4).tolist(),
            "y": np.round(places[:, 1], 4).tolist(),
            "counts": model.training_counts[ids].tolist(),
            "columns": {name: [column[id] for id in ids] for name, column in columns.items()},
        }

    def _named(self, model: ServedModel, key: str | int, id: int) -> Found:
        table = model.table
        found: Found = {"item": str(key), "name": None if table is None else table.name(id)}
        if id == model.model.item_keys.rare_id:
            found["rare"] = True  # many items, which has no page
        return found

    def _events(self, model: ServedModel, log: EventLog, start: int, stop: int) -> list[Found]:
        ids = np.asarray(log.items[start:stop], dtype=np.int64)
        times = _times_in_words(log, start, stop)
        keys = log.item_keys.keys(ids)
        return [
            {**self._named(model, key, id), "time": time}
            for key, id, time in zip(keys, ids.tolist(), times, strict=True)
        ]


def _times_in_words(log: EventLog, start: int, stop: int) -> list[str | None]:
    """When events were; numbers that are probably seconds or milliseconds since 1970 as dates."""
    kind, times = log.report["time_kind"], np.asarray(log.times[start:stop]).tolist()
    if kind not in (DATETIME, NUMBER):
        return [None] * len(times)
    unit = epoch_unit(log) if kind == NUMBER else None
    if unit is None:
        return [log.format_time(time) for time in times]
    return [f"{datetime.fromtimestamp(time / unit, UTC):%Y-%m-%d %H:%M:%S}" for time in times]


def _part_names(model: ServedModel) -> list[str]:
    mixture = model.model.mixture
    return ["softmax", *(() if mixture is None else mixture.names)]


def _users_of(log: EventLog, ids: Ids) -> list[Found]:
    events = np.asarray(log.offsets[1:])[ids] - np.asarray(log.offsets[:-1])[ids]
    keys = log.user_keys.keys(ids)
    return [{"user": str(key), "events": n} for key, n in zip(keys, events.tolist(), strict=True)]


def _translated(
    first: ServedModel, model: ServedModel, items: Ids, times: NDArray[np.integer], after: Ids
) -> tuple[Ids, NDArray[np.integer], Ids]:
    """Ids of `first` as those of another model, which may not know all items."""
    keys, known = first.model.item_keys, model.model.item_keys
    if known.same_keys(keys):
        return items, times, after
    mine = known.known_ids([str(key) for key in keys.keys(items)])
    wanted = known.known_ids([str(key) for key in keys.keys(after)])
    kept = times if known.rare_id is not None else times[mine >= 0]
    return model.as_history(mine), kept, wanted[wanted >= 0]


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", str(LIST_LENGTH))
    if len(text) > 9 or not text.isdecimal() or not 1 <= int(text) <= MOST_FOUND:
        raise RequestError(422, f"limit must be from 1 to {MOST_FOUND}, got '{text[:60]}'.")
    return int(text)
