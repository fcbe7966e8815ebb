"""Two runs on one log, example by example."""

import numpy as np
import torch

from tapas.data.splits import split_log, targets_of
from tapas.errors import UsageError
from tapas.evaluation.evaluate import load_model
from tapas.evaluation.ranked_lists import findable, rank_points
from tapas.evaluation.scores import TOP, Interval, compare, measure
from tapas.training.run_folder import RunFolder


def compare_runs(first: RunFolder, second: RunFolder) -> Interval:
    """MAP@20 of `first` minus that of `second` on the test part, resampled in pairs."""
    values = []
    for run in (first, second):
        log = run.log
        if run.config.split != first.config.split or not np.array_equal(
            log.offsets, first.log.offsets
        ):
            raise UsageError(
                f"{first.path} and {run.path} were not trained on one log with one split: their "
                "examples cannot be paired."
            )
        points = split_log(log, run.config.split).test
        target = targets_of(log, points, first.config.head.next_items)
        if first.config.loop.exclude_seen:
            target = findable(log.items, log.offsets[points.user], points.point, target)
        model, _ = load_model(run)
        ranked, _ = rank_points(
            model,
            log.items,
            log.offsets[points.user],
            points.point,
            target,
            history=run.config.model.history,
            exclude_seen=first.config.loop.exclude_seen,
            never=log.item_keys.rare_id,
            with_loss=False,
        )
        values.append(measure(ranked, torch.from_numpy(target))[f"map@{TOP}"])
    return compare(*values)
