"""A finished run, judged: the model beside three baselines, on what training never saw."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tapas.checkpoints.model import load_model_state, read_checkpoint
from tapas.data.splits import Points, split_log, targets_of
from tapas.errors import UsageError, pick
from tapas.evaluation.baselines import CoOccurrence, MostPopular, OwnMostFrequent
from tapas.evaluation.ranked_lists import findable, rank_points
from tapas.evaluation.scores import TOP, Interval, Scores, compare, judge, measure
from tapas.training.build import TrainingData, build_model
from tapas.training.model import SequenceModel
from tapas.training.parallel import Team
from tapas.training.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class Assessment:
    """Scores of the model (first) and of each baseline on the same examples."""

    part: str  # "test" or "validation"
    step: int
    exclude_seen: bool
    num_targets: int  # items to be found for each example, at most
    scores: dict[str, Scores]
    lead: dict[str, Interval]  # MAP@20 of the model minus that of each baseline, in pairs
    split: dict[str, Any]  # how many events and users, and what training never saw


def load_model(
    run: RunFolder, step: int | None = None, team: Team | None = None
) -> tuple[SequenceModel, int]:
    """The model of `run` at checkpoint `step`; None is the best, or the newest if none is.

    Each rank of a `team` loads its part of the rows.
    """
    team = team or Team()
    split = split_log(run.log, run.config.split)
    if not run.checkpoints.steps():
        raise UsageError(
            f"{run.path} has no checkpoint yet. `tapas train --resume {run.path}` makes one."
        )
    data = TrainingData(None, run.log, split.train_end)
    model = build_model(run.config, split.train_counts, team, data=data)
    step = run.checkpoints.best() if step is None else step
    checkpoint = read_checkpoint(run.checkpoints, model, step, team.ranks)
    load_model_state(model, checkpoint)
    return model.eval(), checkpoint.step


def assess(
    run: RunFolder,
    *,
    part: str = "test",
    step: int | None = None,
    exclude_seen: bool | None = None,
    most: int | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    team: Team | None = None,
) -> Assessment:
    """Exact, over all items. `exclude_seen` None is what the run was trained to be judged by.

    The ranks of a `team` share rows and work; each gets all of the answer.
    """
    log, config = run.log, run.config
    split = split_log(log, config.split)
    points = pick("part", part, {"test": split.test, "validation": split.validation})
    if not len(points):
        raise UsageError(f"the split of this run holds nothing out for {part}.")
    if most is not None:
        points = Points(points.user[:most], points.point[:most], points.limit[:most])
    exclude = config.loop.exclude_seen if exclude_seen is None else exclude_seen
    model, step = load_model(run, step, team)
    target = targets_of(log, points, config.head.next_items)
    num_targets = int((target >= 0).sum())
    if exclude:
        target = findable(log.items, log.offsets[points.user], points.point, target)
    never = log.item_keys.rare_id
    ranked, loss = rank_points(
        model,
        log.items,
        log.offsets[points.user],
        points.point,
        target,
        history=config.model.history,
        exclude_seen=exclude,
        never=never,
        on_progress=lambda done: on_progress(done, len(points)),
        team=team,
    )
    lists = {"model": ranked}
    arrays = (log.items, log.offsets, split.train_counts)
    for name, baseline in {
        "most popular": MostPopular(*arrays),
        "own most frequent": OwnMostFrequent(*arrays),
        "co-occurrence": CoOccurrence(*arrays, times=log.times, train_end=split.train_end),
    }.items():
        found = baseline.rank(points.user, points.point, TOP + 1, exclude=exclude)
        lists[name] = torch.from_numpy(_without(found, never))
    truth, counts = torch.from_numpy(target), torch.from_numpy(split.train_counts)
    scores = {
        name: judge(
            each,
            truth,
            train_counts=counts,
            loss=loss if name == "model" else None,
            k=min(config.head.next_items, TOP),
        )
        for name, each in lists.items()
    }
    precision = {name: measure(each, truth)[f"map@{TOP}"] for name, each in lists.items()}
    lead = {
        name: compare(precision["model"], value)
        for name, value in precision.items()
        if name != "model"
    }
    report: dict[str, Any] = dict(split.report)
    report["seen_targets"] = num_targets - int((target >= 0).sum())
    return Assessment(part, step, exclude, config.head.next_items, scores, lead, report)


def _without(ranked: NDArray[np.int64], never: int | None) -> NDArray[np.int64]:
    """The first 20 of each row of `ranked` (P, 21) that are not `never`."""
    if never is None:
        return ranked[:, :TOP]
    order = np.argsort(ranked == never, axis=1, kind="stable")  # `never` goes to the end
    return np.take_along_axis(ranked, order, axis=1)[:, :TOP]
