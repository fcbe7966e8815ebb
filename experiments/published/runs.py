"""One training run on a public set, judged as its published tables are."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.published.sets import SETS, Sessions
from experiments.trained_runs import Place, Tables, trained
from tapas.comparison.ledger import Result, short_key
from tapas.comparison.settings import source_commit
from tapas.data.event_log import EventLog
from tapas.data.splits import Split, next_items_at, split_log
from tapas.errors import choice
from tapas.evaluation.baselines import (
    COUNTING,
    FAVOURITES,
    FOLLOWERS,
    POPULAR,
    CoOccurrence,
    MostPopular,
    UserMostFrequent,
    rank_by_counting,
    title_of,
)
from tapas.evaluation.evaluate import held_out
from tapas.evaluation.ranked_lists import ranked_lists
from tapas.evaluation.scores import LIST_LENGTH, RankedLists, score_together
from tapas.training.model import SequenceModel
from tapas.training.run_evaluation import list_options, load_model
from tapas.training.run_folder import RunFolder

DEFAULT, SOFTMAX, FULL = "default", "softmax", "full"
NUM_SAMPLES = 256  # of the sampled methods, as eSASRec's
HISTORIES_AT_ONCE = 512
_SOFTMAX_ONLY: dict[str, Any] = {"copy": False, "follow": False}
METHODS: dict[str, Tables] = {
    DEFAULT: {},
    FULL: {"head": {"method": "full"}, "model": _SOFTMAX_ONLY},
    "tapas": {
        "head": {"method": "tapas", "num_samples": NUM_SAMPLES},
        "model": _SOFTMAX_ONLY,
    },
    "sampled": {
        "head": {"method": "sampled", "num_samples": NUM_SAMPLES},
        "model": _SOFTMAX_ONLY,
    },
}
SHOWN = ("recall@5", "ndcg@5", "recall@10", "ndcg@10", "recall@20", "ndcg@20", "mrr@20", "map@20")


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedRun:
    """What decides the outcome: a set, a method, a seed, and the version of the recipe.

    `recipe` is raised whenever what `tapas train` chooses changes, so that old results are not
    taken for new ones.
    """

    set: str
    method: str
    seed: int
    recipe: int

    def __post_init__(self) -> None:
        choice("set", self.set, SETS)
        choice("method", self.method, METHODS)

    def key(self) -> str:
        return short_key(asdict(self))


def execute(run: PublishedRun, place: Place) -> Result:
    """Train, or continue a run that was killed, and judge."""
    mine = SETS[run.set]
    if mine.test_file:
        mine.check_test_points(place.data)
    told: list[Tables] = [
        {"log": {"files": [str(mine.log(place.data, place.cache))]}},
        mine.settings,
        METHODS[run.method],
        {"loop": {"seed": run.seed}},
    ]
    found, seconds = trained(run.key(), told, place)
    model, step = load_model(found)
    judge = judge_sessions if mine.test_file else judge_users
    return {
        "key": run.key(),
        "run": asdict(run),
        "commit": source_commit(),
        "torch": torch.__version__,
        "seconds": seconds,  # beside whatever else the machine did: no measurement
        "steps": found.config.loop.steps,
        "best_step": step,
        "config": {
            "head": found.config.head.as_table(),
            "model": asdict(found.config.model),
            "batch": found.config.loop.batch,
        },
        **judge(run, place, found, model),
    }


def judge_users(
    run: PublishedRun, place: Place, found: RunFolder, model: SequenceModel
) -> dict[str, Any]:
    """Metrics of the last event of each user: of the model, its softmax alone, and counting."""
    log, options = found.log, list_options(found)
    split = split_log(log, found.config.split)
    points, _ = held_out(log, split, options, num_targets=1)
    target = next_items_at(log, points, 1)  # also items that lists leave out
    lists: dict[str, RankedLists] = {
        DEFAULT: ranked_lists(model, log, points, target, options, with_loss=False)
    }
    if model.mixture is not None:
        model.mixture = None
        lists[SOFTMAX] = ranked_lists(model, log, points, target, options, with_loss=False)
        for name in COUNTING:
            counted = rank_by_counting(name, log, split, points, exclude_seen=options.exclude_seen)
            lists[title_of(name)] = counted, None
    return scored(lists, torch.from_numpy(target), torch.from_numpy(split.train_counts))


def judge_sessions(
    run: PublishedRun, place: Place, found: RunFolder, model: SequenceModel
) -> dict[str, Any]:
    """Metrics at all points of the test file, which may be several of a session."""
    histories, targets = SETS[run.set].test_points(place.data)
    split = split_log(found.log, found.config.split)
    keys = found.log.item_keys.keys(np.arange(found.log.num_items))
    ids = {key: number for number, key in enumerate(keys)}
    known = [[ids[item] for item in history if item in ids] for history in histories]
    target = torch.tensor([ids[item] for item in targets])[:, None]
    read = [history[-found.config.model.reads :] for history in known]
    lists: dict[str, RankedLists] = {DEFAULT: (rank_histories(model, read), None)}
    if model.mixture is not None:
        model.mixture = None
        lists[SOFTMAX] = rank_histories(model, read), None
        lists |= count_histories(known, found.log, split)
    return scored(lists, target, torch.from_numpy(split.train_counts))


@torch.no_grad()
def rank_histories(model: SequenceModel, histories: Sessions) -> Tensor:
    """The best 20 items after each history of ids, (P, 20)."""
    found = []
    for first in range(0, len(histories), HISTORIES_AT_ONCE):
        some = histories[first : first + HISTORIES_AT_ONCE]
        lengths = torch.tensor([len(history) for history in some])
        items = torch.zeros(len(some), int(lengths.max()), dtype=torch.int64)
        for row, history in zip(items, some, strict=True):
            row[: len(history)] = torch.tensor(history)
        found.append(model.predict(items, lengths).topk(LIST_LENGTH)[1])
    return torch.cat(found)


def count_histories(histories: Sessions, log: EventLog, split: Split) -> dict[str, RankedLists]:
    """Lists of each baseline after `histories`, which are not counted: sessions of their own."""
    flat = np.array([item for history in histories for item in history], dtype=log.items.dtype)
    ends = np.cumsum([len(history) for history in histories])
    items = np.concatenate([log.items, flat])
    offsets = np.concatenate([np.asarray(log.offsets), len(log.items) + ends])
    begins = offsets[len(log.offsets) - 1 : -1]
    times = np.concatenate([log.times, np.arange(len(flat))])  # one item a basket
    arrays = (items, offsets, split.train_counts)
    train_end = np.concatenate([split.train_end, begins])
    rankers = {
        POPULAR: MostPopular(*arrays),
        FAVOURITES: UserMostFrequent(*arrays),
        FOLLOWERS: CoOccurrence(*arrays, times=times, train_end=train_end),
    }
    users = np.arange(len(log.offsets) - 1, len(offsets) - 1)
    found: dict[str, RankedLists] = {}
    for name, ranker in rankers.items():
        ranked = ranker.rank(users, offsets[users + 1], LIST_LENGTH)
        found[title_of(name)] = torch.from_numpy(ranked), None
    return found


def scored(lists: dict[str, RankedLists], target: Tensor, counts: Tensor) -> dict[str, Any]:
    """Metrics of each of `lists`, with intervals over points, and leads in MAP@20."""
    scores, lead = score_together(lists, target, train_counts=counts)
    return {
        "points": scores[DEFAULT].num_examples,
        "scores": {
            name: {
                **{metric: _rounded(asdict(each.metrics[metric])) for metric in SHOWN},
                "coverage": each.coverage,
            }
            for name, each in scores.items()
        },
        "lead": {name: _rounded(asdict(interval)) for name, interval in lead.items()},
    }


def _rounded(interval: dict[str, float]) -> list[float]:
    """Mean, low and high."""
    return [round(interval[name], 6) for name in ("mean", "low", "high")]
