"""Validation during training, and the sentences that a run prints when it starts."""

from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from tapas.data.event_log import EventLog
from tapas.data.splits import EvalPoints, Split, next_items_at
from tapas.evaluation.ranked_lists import ListOptions, mean_scores, without_seen
from tapas.rng import stream
from tapas.tables.ranks import ONE_PROCESS, Ranks
from tapas.training.config import HeadConfig, TrainConfig
from tapas.training.mixture_fit import MixtureFit
from tapas.training.model import SequenceModel


def validator(
    config: TrainConfig, log: EventLog, split: Split, ranks: Ranks = ONE_PROCESS
) -> Callable[[SequenceModel], dict[str, float]]:
    """A function that scores a model on some of the validation points.

    It first fits the mixture of a model with counting parts to them.
    """
    points, target = validation_examples(log, config, split)
    options = ListOptions(config.model.reads, config.loop.exclude_seen, log.item_keys.rare_id)
    fit = MixtureFit(log, points, target, options, train_counts=split.train_counts, ranks=ranks)

    def validate(model: SequenceModel) -> dict[str, float]:
        if model.mixture is not None:
            fit.fit(model)
        return mean_scores(model, log, points, target, options, ranks)

    return validate


def validation_examples(
    log: EventLog, config: TrainConfig, split: Split
) -> tuple[EvalPoints, NDArray[np.int64]]:
    """The P points that checkpoints are chosen by, and the next items at each, (P, L).

    Raises `DataError` if `config` leaves none.
    """
    points = some_points(split.validation, config.loop.validation_examples, config.loop.seed)
    target = next_items_at(log, points, config.head.next_items)
    return points, without_seen(log, points, target) if config.loop.exclude_seen else target


def describe_training(config: TrainConfig, split: Split) -> str:
    return (
        f"Training on {int(split.train_counts.sum()):,} events and {len(split.train_counts):,} "
        f"classes: {config.loop.steps:,} steps of {config.loop.batch:,} histories; "
        f"{describe_head(config.head, len(split.train_counts))}; row optimizer "
        f"{config.optimizer.rows}"
    )


def describe_head(head: HeadConfig, num_classes: int) -> str:
    """The method, and how many classes it samples."""
    if head.method in ("tapas", "sampled"):
        kept = cast(int, head.options["num_samples"])
        factor = cast(int, head.options.get("presample_factor", 1))
        if factor == 1:
            return f"sampled softmax, {kept:,} drawn"
        drawn = min(factor * kept, num_classes)
        return f"TAPAS ({head.options['selection']}), {drawn:,} drawn, {kept:,} kept"
    letters = {"num_samples": "n", "presample_factor": "r"}
    found = {letters[name]: value for name, value in head.options.items() if name in letters}
    sizes = [f"{letter} = {value:,}" for letter, value in found.items() if value is not None]
    return ", ".join([head.kind.title, *sizes])


def some_points(points: EvalPoints, most: int, seed: int) -> EvalPoints:
    """A random sample of at most `most` points, in their order; it depends only on `seed`."""
    if len(points.user) <= most:
        return points
    order = torch.randperm(len(points.user), generator=stream(seed, "validation"), device="cpu")
    chosen = order[:most].sort().values.numpy()
    return EvalPoints(points.user[chosen], points.point[chosen], points.limit[chosen])
