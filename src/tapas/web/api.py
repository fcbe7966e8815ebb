"""The answers to programs: POST /recommend and /similar, GET /items/{key}, /healthz, /metrics."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from itertools import accumulate, islice

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from tapas.data.vocabulary import Vocabulary
from tapas.errors import TapasError, UsageError
from tapas.phrases import counted
from tapas.web.batches import Batches
from tapas.web.measurements import Measurements
from tapas.web.models import Models
from tapas.web.schema import (
    MOST_EVENTS,
    Error,
    Health,
    ItemFacts,
    ItemList,
    Key,
    ListedItem,
    Recommend,
    Recommended,
    ServedModelFacts,
    Similar,
    SimilarItem,
    SimilarItems,
    SimilarList,
)
from tapas.web.served_model import NONE, Ids, Query, Ranked, ServedModel

TOGETHER = 512  # histories that are ranked at a time
MOST_WAITING = 8_192  # histories
NEIGHBOURS = 20  # of an item
DIGITS = 6  # of a number in an answer
WIDE_LIST = 100  # longer lists are not made together with short ones
JSON = "application/json"


class RequestError(Exception):
    """What is wrong with a request: the status of the answer, and a sentence."""

    def __init__(self, status: int, words: str):
        super().__init__(words)
        self.status, self.words = status, words


class ListsJob(Struct, frozen=True):
    """A request for lists."""

    model: ServedModel
    request: Recommend
    k: int


class SimilarJob(Struct, frozen=True):
    model: ServedModel
    request: Similar
    k: int


Job = ListsJob | SimilarJob
Past = tuple[Ids, NDArray[np.integer] | None]  # items, and their times if they are known


def as_json(content: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type=JSON)


def as_error(status: int, words: str) -> Response:
    return as_json(Error(words), status)


class Api:
    """The end points."""

    def __init__(self, models: Models, executor: Executor, measurements: Measurements):
        self.models, self.measurements = models, measurements
        self.stopping = False
        self._batches: Batches[Job, bytes] = Batches(
            self._work,
            executor,
            most_together=TOGETHER,
            most_waiting=MOST_WAITING,
            on_batch=measurements.batch.observe,
        )
        self._recommend = msgspec.json.Decoder(Recommend)
        self._similar = msgspec.json.Decoder(Similar)

    async def recommend(self, body: bytes) -> bytes:
        asked = self._recommend.decode(body)
        users, histories = asked.users or None, asked.histories or None
        if (users is None) == (histories is None):
            raise RequestError(422, "give one of users and histories.")
        if histories is not None and sum(map(len, histories)) > MOST_EVENTS:
            raise RequestError(422, f"histories have more than {MOST_EVENTS:,} items in all.")
        model = self._find(asked.model)
        k = self._length(asked.k, model)
        size = len(users or histories or ())
        return await self._batches.submit(ListsJob(model, asked, k), size)

    async def similar(self, body: bytes) -> bytes:
        asked = self._similar.decode(body)
        model = self._find(asked.model)
        k = self._length(asked.k, model, others=True)
        return await self._batches.submit(SimilarJob(model, asked, k), len(asked.items))

    async def item(self, request: Request) -> Response:
        model = self._find(request.query_params.get("model"))
        key = request.path_params["key"]
        k = max(1, min(NEIGHBOURS, model.num_items - 1))
        try:
            job = SimilarJob(model, Similar(items=[key]), k)
            found = msgspec.json.decode(await self._batches.submit(job, 1), type=SimilarItems)
            similar = found.lists[0].items
        except UsageError:  # the method has no vectors
            similar = []
        keys, table = model.model.item_keys, model.table
        id = int(keys.known_ids([key])[0])
        return as_json(
            ItemFacts(
                item=keys.key(id),
                name=None if table is None else table.name(id),
                count=int(model.training_counts[id]),
                rank=model.rank_by_frequency(id),
                columns={} if table is None else table.values(id),
                similar=similar,
            )
        )

    async def health(self, request: Request) -> Response:
        models = [ServedModelFacts(each.name, each.step, each.num_items) for each in self.models]
        state = Health("stopping" if self.stopping else "ok", models)
        return as_json(state, 503 if self.stopping else 200)

    async def metrics(self, request: Request) -> Response:
        text = self.measurements.as_text(self.models)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def _find(self, name: object) -> ServedModel:
        try:
            return self.models.find(name if isinstance(name, str) else None)
        except LookupError as error:
            raise RequestError(404, str(error.args[0])) from None

    @staticmethod
    def _length(k: object, model: ServedModel, *, others: bool = False) -> int:
        try:
            return model.model.check_k(k if isinstance(k, int) else None, others=others)
        except UsageError as error:
            raise RequestError(422, str(error)) from None

    def _work(self, jobs: Sequence[Job]) -> list[bytes | Exception]:
        """The answers to `jobs`, those of a kind together; in the thread that computes."""
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for number, job in enumerate(jobs):
            kind: tuple[object, ...] = (type(job), id(job.model), job.k > WIDE_LIST)
            if isinstance(job, ListsJob):
                kind += (bool(job.request.allow),)
            groups[kind].append(number)
        answers: list[bytes | Exception] = [RequestError(500, "")] * len(jobs)
        for numbers in groups.values():
            found = answer_together([jobs[number] for number in numbers])
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer
        return answers


def answer_together(jobs: Sequence[Job]) -> list[bytes | Exception]:
    """Answers to jobs of one kind and model; if they fail together, each has another try alone."""
    try:
        if isinstance(jobs[0], SimilarJob):
            return _similar([job for job in jobs if isinstance(job, SimilarJob)])
        return _lists([job for job in jobs if isinstance(job, ListsJob)])
    except Exception as error:
        if len(jobs) == 1:
            return [error]
        return [answer for job in jobs for answer in answer_together([job])]


def _lists(jobs: Sequence[ListsJob]) -> list[bytes | Exception]:
    model = jobs[0].model
    prepared: list[_Prepared | Exception] = []
    for job, found in zip(jobs, _resolved(jobs), strict=True):
        try:
            prepared.append(_prepare(job, found))
        except (RequestError, TapasError) as error:
            prepared.append(error)
    ready = [each for each in prepared if isinstance(each, _Prepared)]
    queries = [query for each in ready for query in each.queries if query is not None]
    explain = any(each.job.request.explain for each in ready)
    ranked: Iterator[Ranked] = iter(())
    if queries:
        k = max(each.job.k for each in ready)
        ranked = iter(model.rank(queries, k, explain=explain))
    lists = [[None if query is None else next(ranked) for query in each.queries] for each in ready]
    answers = iter(_encoded(model, ready, lists))
    return [each if isinstance(each, Exception) else next(answers) for each in prepared]


class _Resolved(Struct, frozen=True):
    """The ids of the keys of a request, -1 for unknown ones."""

    users: Ids
    histories: list[Ids]
    allow: Ids
    deny: Ids
    all_known: bool  # no item has id -1


class _Prepared(Struct, frozen=True):
    """What is to be ranked for a request: None where nothing is known to predict from."""

    job: ListsJob
    found: _Resolved
    queries: list[Query | None]
    unknown: list[list[Key]]  # items of each history
    unknown_items: list[Key]  # of allow and deny


def _resolved(jobs: Sequence[ListsJob]) -> list[_Resolved]:
    """Look up the keys of all jobs at once."""
    model = jobs[0].model.model
    item_lists: list[Sequence[Key]] = []
    user_lists: list[Sequence[Key]] = []
    for job in jobs:
        asked = job.request
        user_lists.append(asked.users or [])
        item_lists += [*(asked.histories or []), asked.allow or [], asked.deny or []]
    items, all_known = _ids_of(item_lists, model.item_keys)
    each_items = iter(items)
    users: Sequence[Ids] = [NONE] * len(jobs)
    if model.log is not None:
        users, _ = _ids_of(user_lists, model.log.user_keys)
    found = []
    for job, mine in zip(jobs, users, strict=True):
        histories = [next(each_items) for _ in job.request.histories or []]
        allow, deny = next(each_items), next(each_items)
        found.append(_Resolved(mine, histories, allow, deny, all_known))
    return found


def _ids_of(lists: Sequence[Sequence[Key]], known: Vocabulary) -> tuple[list[Ids], bool]:
    """The ids of the keys in `lists`, -1 for unknown ones, and whether there are none of these."""
    flat = known.known_ids([key for keys in lists for key in keys])
    ends = accumulate(map(len, lists))
    ids = [flat[end - len(keys) : end] for keys, end in zip(lists, ends, strict=True)]
    return ids, not len(flat) or bool(flat.min() >= 0)


def _prepare(job: ListsJob, found: _Resolved) -> _Prepared:
    asked, model = job.request, job.model.model
    exclude_seen = model.exclude_seen
    if isinstance(asked.exclude_seen, bool):
        exclude_seen = asked.exclude_seen
    allow = None
    if asked.allow:
        if model.score != "probability":
            raise RequestError(422, "allow needs a model with probabilities, which this is not.")
        allow = found.allow[found.allow >= 0]
        if not len(allow):
            raise RequestError(422, f"no item of allow is known, such as {_shown(asked.allow[0])}.")
    deny = found.deny[found.deny >= 0] if len(found.deny) else NONE
    unknown_items = [
        *_unknown(asked.allow or (), found.allow),
        *_unknown(asked.deny or (), found.deny),
    ]
    unknown: list[list[Key]]
    if asked.users:
        past, unknown = _pasts_of_users(job, found.users), [[]] * len(asked.users)
    else:
        past, unknown = _histories(job, found)
    queries: list[Query | None] = []
    for items, times in past:
        exclude = np.unique(items) if exclude_seen else NONE
        if len(deny):
            exclude = np.union1d(exclude, deny)
        queries.append(Query(items, times, exclude, allow) if len(items) else None)
    return _Prepared(job, found, queries, unknown, unknown_items)


def _histories(job: ListsJob, found: _Resolved) -> tuple[list[Past], list[list[Key]]]:
    """The histories of a request, and the unknown items of each."""
    keys = job.request.histories or []
    past: list[Past] = [(ids, None) for ids in found.histories]
    unknown: list[list[Key]] = [[]] * len(keys)
    if not found.all_known:
        past = [(job.model.as_history(ids), None) for ids in found.histories]
        unknown = [_unknown(mine, ids) for mine, ids in zip(keys, found.histories, strict=True)]
    empty = [number for number, (ids, _) in enumerate(past) if not len(ids)]
    if empty and job.request.cold == "error":
        mine = keys[empty[0]]
        what = "is empty" if not mine else f"has no known item, only {_shown(mine[0])}"
        raise RequestError(
            422,
            f"history {empty[0]} {what}{' and others' if len(mine) > 1 else ''}, so there is "
            'nothing to predict from. With "cold": "popular" it gets the most popular items.',
        )
    return past, unknown


def _pasts_of_users(job: ListsJob, ids: Ids) -> list[Past]:
    """All events of the users and their times; nothing of unknown ones, if these may be cold."""
    asked, log = job.request, job.model.model.log
    keys = asked.users or []
    if log is None:
        raise RequestError(
            422, f"{job.model.name} is an export, which has no users. Give histories."
        )
    unknown = _unknown(keys, ids)
    if unknown and asked.cold == "error":
        others = f" {counted(len(unknown), 'user')} of the request are unknown."
        raise RequestError(
            404,
            f"unknown user {_shown(unknown[0])}.{log.user_keys.suggestion(unknown[0])}"
            f"{others if len(unknown) > 1 else ''} "
            'With "cold": "popular" they get the most popular items.',
        )
    offsets = log.offsets
    found: list[Past] = []
    for id in ids.tolist():
        start, stop = (int(offsets[id]), int(offsets[id + 1])) if id >= 0 else (0, 0)
        found.append((np.asarray(log.items[start:stop], dtype=np.int64), log.times[start:stop]))
    return found


def _unknown(keys: Sequence[Key], ids: Ids) -> list[Key]:
    if not len(ids) or ids.min() >= 0:
        return []
    return [keys[number] for number in np.flatnonzero(ids < 0).tolist()]


def _shown(key: Key) -> str:
    """A key in an error, cut if it is long."""
    text = str(key)
    return f"'{text if len(text) <= 60 else text[:57] + '...'}'"


def _encoded(
    model: ServedModel, ready: Sequence[_Prepared], lists: Sequence[Sequence[Ranked | None]]
) -> list[bytes]:
    """Answers as JSON; lists may be longer than asked."""
    flat = [one for each in lists for one in each if one is not None]
    keys: list[Key] = []
    if flat:
        keys = model.model.item_keys.gather(np.concatenate([each.ids for each in flat])).to_list()
    rounded = np.concatenate([each.scores for each in flat]) if flat else np.empty(0)
    scores = _round(rounded).tolist()
    named = model.model.score == "probability"
    position, answers = 0, []
    for each, mine in zip(ready, lists, strict=True):
        found = []
        popular = _popular(model, each) if any(ranked is None for ranked in mine) else []
        for number, (ranked, unknown) in enumerate(zip(mine, each.unknown, strict=True)):
            if ranked is None:
                one = ItemList(popular, popular=True)
            else:
                stop = min(each.job.k, len(ranked.ids))
                part = slice(position, position + stop)
                if named:
                    one = ItemList(list(map(ListedItem, keys[part], scores[part])))
                else:
                    pairs = zip(keys[part], scores[part], strict=True)
                    one = ItemList([ListedItem(key, score=score) for key, score in pairs])
                if each.job.request.explain and ranked.parts is not None:
                    for item, row in zip(one.items, _round(ranked.parts), strict=False):
                        item.parts = dict(zip(ranked.part_names, row.tolist(), strict=True))
                position += len(ranked.ids)
            if each.job.request.users:
                one.user = each.job.request.users[number]
            if unknown:
                one.unknown_items = unknown
            found.append(one)
        answer = Recommended(model.name, model.step, found)
        answer.approximate = model.is_approximate and not each.job.request.allow
        if each.unknown_items:
            answer.unknown_items = each.unknown_items
        answers.append(msgspec.json.encode(answer))
    return answers


def _popular(model: ServedModel, prepared: _Prepared) -> list[ListedItem]:
    """The most popular items of training that a request may list, with their share of all events"""
    asked, found, k = prepared.job.request, prepared.found, prepared.job.k
    most = model.num_items if asked.allow else k + len(found.deny)
    ids, shares = model.model.popular(most)
    keep = ~np.isin(ids, found.deny)
    if asked.allow:
        keep &= np.isin(ids, found.allow)
    ids, shares = ids[keep][:k], shares[keep][:k]
    keys = model.model.item_keys.gather(ids).to_list()
    scores = _round(shares).tolist()
    return [ListedItem(key, probability=share) for key, share in zip(keys, scores, strict=True)]


def _round(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """`values` with a few digits, however small they are."""
    exact = values.astype(np.float64)
    with np.errstate(divide="ignore"):
        power = np.floor(np.log10(np.abs(exact)))
    power = np.where(np.isfinite(power), power, 0.0).clip(min=-300)  # or the scale is infinite
    scale = 10.0 ** (DIGITS - 1 - power)
    return np.round(exact * scale) / scale


def _similar(jobs: Sequence[SimilarJob]) -> list[bytes | Exception]:
    model = jobs[0].model
    keys = model.model.item_keys
    ids, _ = _ids_of([job.request.items for job in jobs], keys)
    known = [mine for mine in ids if (mine >= 0).all()]
    lists: Iterator[SimilarList] = iter(())
    if known:
        lists = _neighbours(model, np.concatenate(known), max(job.k for job in jobs))
    answers: list[bytes | Exception] = []
    for job, mine in zip(jobs, ids, strict=True):
        if unknown := _unknown(job.request.items, mine):
            words = f"unknown item {_shown(unknown[0])}.{keys.suggestion(unknown[0])}"
            answers.append(RequestError(404, words))
            continue
        found = list(islice(lists, len(mine)))
        for each in found:
            del each.items[job.k :]
        answers.append(msgspec.json.encode(SimilarItems(model.name, model.step, found)))
    return answers


def _neighbours(model: ServedModel, ids: Ids, k: int) -> Iterator[SimilarList]:
    keys = model.model.item_keys
    for part in model.model.neighbours(ids, k):
        mine = keys.keys(ids[part.start : part.stop])
        for key, found, scores in zip(mine, part.ids, _round(part.scores), strict=True):
            real = found >= 0
            near = zip(keys.keys(found[real]), scores[real].tolist(), strict=True)
            yield SimilarList(key, [SimilarItem(*pair) for pair in near])
