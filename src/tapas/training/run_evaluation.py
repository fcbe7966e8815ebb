"""Loading the model of a run, evaluating it, and comparing two runs."""

from collections.abc import Callable

import numpy as np
import torch

from tapas.checkpoints.model import load_model_state, read_checkpoint
from tapas.data.splits import split_log
from tapas.errors import UsageError
from tapas.evaluation.evaluate import Evaluation, evaluate, held_out
from tapas.evaluation.intervals import Interval
from tapas.evaluation.ranked_lists import ListOptions, ranked_lists
from tapas.evaluation.scores import LIST_LENGTH, metrics_per_example, paired_difference
from tapas.tables.ranks import ONE_PROCESS, Ranks
from tapas.training.build import TrainingData, build_model
from tapas.training.model import SequenceModel
from tapas.training.run_folder import RunFolder


def load_model(
    run: RunFolder, step: int | None = None, ranks: Ranks = ONE_PROCESS
) -> tuple[SequenceModel, int]:
    """Load the model of `run` at checkpoint `step`; returns the model and the step.

    By default the best checkpoint, or the newest if none is marked as best. Each of `ranks` loads
    its shard of the rows.
    """
    split = split_log(run.log, run.config.split)
    if not run.checkpoints.steps():
        raise UsageError(
            f"{run.path} has no checkpoint yet. Train on with `tapas train --resume {run.path}`."
        )
    data = TrainingData(None, run.log, split.train_end)
    model = build_model(run.config, split.train_counts, ranks, data=data)
    step = run.checkpoints.best() if step is None else step
    checkpoint = read_checkpoint(run.checkpoints, model, step, ranks)
    load_model_state(model, checkpoint)
    return model.eval(), checkpoint.step


def list_options(run: RunFolder, exclude_seen: bool | None = None) -> ListOptions:
    """What recommendations of `run` may contain; `exclude_seen` defaults to that of the run."""
    exclude = run.config.loop.exclude_seen if exclude_seen is None else exclude_seen
    return ListOptions(run.config.model.history, exclude, run.log.item_keys.rare_id)


def evaluate_run(
    run: RunFolder,
    *,
    split: str = "test",
    step: int | None = None,
    exclude_seen: bool | None = None,
    limit: int | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    ranks: Ranks = ONE_PROCESS,
) -> tuple[Evaluation, int]:
    """Evaluate a run and its baselines; returns the result and the step of the checkpoint.

    All `ranks` share rows and work; each gets the full result.
    """
    splits, options = split_log(run.log, run.config.split), list_options(run, exclude_seen)
    num_targets = run.config.head.next_items
    held_out(run.log, splits, options, split_name=split, num_targets=num_targets)  # fail early
    model, step = load_model(run, step, ranks)
    found = evaluate(
        model, run.log, splits, options,
        num_targets=num_targets, split_name=split, limit=limit, on_progress=on_progress,
        ranks=ranks,
    )  # fmt: skip
    return found, step


def paired_difference_of_runs(first: RunFolder, second: RunFolder) -> Interval:
    """MAP@20 of `first` minus that of `second` on the test set, as a paired difference.

    Raises UsageError if the runs have different logs or splits.
    """
    values, exclude_seen = [], first.config.loop.exclude_seen
    for run in (first, second):
        if run.config.split != first.config.split or not np.array_equal(
            run.log.offsets, first.log.offsets
        ):
            raise UsageError(
                f"{first.path} and {run.path} have different logs or splits, so their test "
                "examples cannot be paired. Train both on the same log and split."
            )
        options, split = list_options(run, exclude_seen), split_log(run.log, run.config.split)
        num_targets = first.config.head.next_items
        points, target = held_out(run.log, split, options, num_targets=num_targets)
        ranked, _ = ranked_lists(
            load_model(run)[0], run.log, points, target, options, with_loss=False
        )
        values.append(metrics_per_example(ranked, torch.from_numpy(target))[f"map@{LIST_LENGTH}"])
    return paired_difference(*values)
