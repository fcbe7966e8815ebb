"""Loading the model of a run, and evaluating runs beside baselines and lists from files."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from tapas.checkpoints.model import load_model_state, read_checkpoint
from tapas.data.list_files import ListCounts, read_lists
from tapas.data.splits import split_log
from tapas.errors import UsageError
from tapas.escapes import shell_path
from tapas.evaluation.evaluate import Evaluation, evaluate, held_out
from tapas.evaluation.intervals import Interval
from tapas.evaluation.ranked_lists import ListOptions, ranked_lists
from tapas.evaluation.scores import CUTOFFS, LIST_LENGTH, RankedLists
from tapas.evaluation.verdict import LEAST_USERS, beside, beside_baselines, too_few
from tapas.tables.ranks import ONE_PROCESS, Ranks
from tapas.training.build import TrainingData, build_model, check_sizes
from tapas.training.model import SequenceModel
from tapas.training.model_facts import ModelFacts, inspect_model
from tapas.training.run_folder import RunFolder, best_step


def load_model(
    run: RunFolder,
    step: int | None = None,
    ranks: Ranks = ONE_PROCESS,
    *,
    whole_log: bool = False,
) -> tuple[SequenceModel, int]:
    """Load the model of `run` at checkpoint `step`; returns the model and the step.

    By default the best checkpoint, or the newest if none is marked as best. Each of `ranks` loads
    its shard of the rows. Counting parts count the training events; with `whole_log` all events,
    for a model that recommends and is not judged.
    """
    split = split_log(run.log, run.config.split)
    if not run.checkpoints.steps():
        raise UsageError(
            f"{run.path} has no checkpoint yet. Train on with "
            f"`tapas train --resume {shell_path(run.path)}`."
        )
    step = best_step(run.checkpoints) if step is None else step
    check_sizes(run.config, run.log.num_items, run.checkpoints.find(step)[1])
    counted = np.asarray(run.log.offsets)[1:] if whole_log else split.train_end
    data = TrainingData(None, run.log, split.train_end, counted)
    model = build_model(run.config, split.train_counts, ranks, data=data, to_load=True)
    checkpoint = read_checkpoint(
        run.checkpoints, model, step, ranks, everything=False, to_train=False
    )
    load_model_state(model, checkpoint)
    return model.eval(), checkpoint.step


def list_options(run: RunFolder, exclude_seen: bool | None = None) -> ListOptions:
    """What recommendations of `run` may contain; `exclude_seen` defaults to that of the run."""
    exclude = run.config.loop.exclude_seen if exclude_seen is None else exclude_seen
    return ListOptions(run.config.model.reads, exclude, run.log.item_keys.rare_id)


@dataclass(frozen=True, slots=True)
class RunsEvaluation:
    """Runs evaluated side by side; the first is "model" in `evaluation`, the others their paths."""

    evaluation: Evaluation
    steps: dict[str, int]  # of the checkpoints, by the name of the run, the first one first
    lists: dict[str, ListCounts]  # what was found in files of lists, by their names in `evaluation`
    facts: ModelFacts | None = None  # of the first run

    @property
    def num_users(self) -> int:
        """How many users are judged."""
        return self.evaluation.scores["model"].num_examples

    @property
    def baselines(self) -> dict[str, Interval]:
        """MAP@20 of the first run minus that of each baseline."""
        rivals = {*self.lists, *self.steps}
        return {name: lead for name, lead in self.evaluation.lead.items() if name not in rivals}

    def verdict(self) -> list[str]:
        """Who is better: lists, other runs and baselines beside the first run."""
        if self.num_users < LEAST_USERS:
            return [too_few(self.num_users)]
        first, *others = self.steps
        ours = first if others else "the model"
        lead = self.evaluation.lead
        words = [beside(ours, name, lead[name], self.num_users) for name in (*self.lists, *others)]
        return [*words, *beside_baselines(ours, self.baselines, self.num_users)]


def evaluate_runs(
    runs: Sequence[RunFolder],
    *,
    split: str = "test",
    step: int | None = None,
    exclude_seen: bool | None = None,
    limit: int | None = None,
    cutoffs: Sequence[int] = CUTOFFS,
    against: Sequence[Path] = (),
    inspect: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    ranks: Ranks = ONE_PROCESS,
) -> RunsEvaluation:
    """Evaluate runs, their baselines and the lists in the files `against` at the same points.

    Targets and the treatment of seen items are those of the first run; with `inspect` its model is
    looked into, unless its rows are on several ranks. All `ranks` share rows and work; each gets
    the full result. Raises UsageError if the runs differ in log or split.
    """
    first, *others = runs
    for run in others:
        check_same_points(first, run)
    splits = split_log(first.log, first.config.split)
    options, num_targets = list_options(first, exclude_seen), first.config.head.next_items
    points, target = held_out(
        first.log, splits, options, split_name=split, num_targets=num_targets, limit=limit
    )
    lists, counts = dict[str, RankedLists](), dict[str, ListCounts]()
    for path in against:  # a mistake in a file is found before models are loaded
        ranked, found = read_lists(
            path, first.log, points, length=LIST_LENGTH, exclude_seen=options.exclude_seen
        )
        lists[str(path)], counts[str(path)] = (torch.from_numpy(ranked), None), found
    total = len(points) * len(runs)
    rivals, steps = dict[str, RankedLists](), dict[str, int]()
    for number, run in enumerate(others, start=1):
        model, steps[_name(run)] = load_model(run, None, ranks)
        rivals[_name(run)] = ranked_lists(
            model, run.log, points, target, list_options(run, options.exclude_seen),
            on_progress=lambda done, n=number: on_progress((n - 1) * len(points) + done, total),  # type: ignore[misc]
            ranks=ranks,
        )  # fmt: skip
        del model
    model, at = load_model(first, step, ranks)
    facts = None
    if inspect and not ranks.is_distributed:
        facts = inspect_model(model, first.log, points, target, options)
    before = total - len(points)
    evaluation = evaluate(
        model, first.log, splits, options,
        num_targets=num_targets, split_name=split, limit=limit, cutoffs=cutoffs,
        others=rivals | lists,
        on_progress=lambda done, _: on_progress(before + done, total), ranks=ranks,
    )  # fmt: skip
    return RunsEvaluation(evaluation, {_name(first): at, **steps}, counts, facts)


def _name(run: RunFolder) -> str:
    """The path of the run, which must not be that of the first one in an `Evaluation`."""
    return f"./{run.path}" if str(run.path) == "model" else str(run.path)


def evaluate_run(
    run: RunFolder,
    *,
    split: str = "test",
    step: int | None = None,
    exclude_seen: bool | None = None,
    ranks: Ranks = ONE_PROCESS,
) -> tuple[Evaluation, int]:
    """Evaluate one run and its baselines; returns the result and the step of the checkpoint."""
    found = evaluate_runs([run], split=split, step=step, exclude_seen=exclude_seen, ranks=ranks)
    return found.evaluation, found.steps[_name(run)]


def check_same_points(first: RunFolder, second: RunFolder) -> None:
    """Raise UsageError unless both runs have the same log and split, so that points are equal."""
    logs = first.log, second.log
    sizes = [(log.num_events, log.num_users, log.num_items) for log in logs]
    cure = "Train both on the same log, with the same options for reading it."
    if sizes[0] != sizes[1]:
        one, other = (f"{e:,} events, {u:,} users and {i:,} items" for e, u, i in sizes)
        raise UsageError(
            f"{first.path} and {second.path} cannot be compared: their logs have {one}, and "
            f"{other}. {cure}"
        )
    arrays = zip(*((log.items, log.times, log.offsets) for log in logs), strict=True)
    keys = zip(*((log.user_keys, log.item_keys) for log in logs), strict=True)
    if not (
        all(np.array_equal(one, other) for one, other in arrays)
        and all(one.same_keys(other) for one, other in keys)
    ):
        raise UsageError(
            f"{first.path} and {second.path} cannot be compared: their logs have equal sizes, but "
            f"other events. {cure}"
        )
    splits = [asdict(split_log(run.log, run.config.split).config) for run in (first, second)]
    for name, value in splits[0].items():
        if splits[1][name] != value:
            raise UsageError(
                f"{first.path} and {second.path} cannot be compared: split.{name} is {value} and "
                f"{splits[1][name]}. Train both with the same split."
            )


def paired_difference_of_runs(first: RunFolder, second: RunFolder) -> Interval:
    """MAP@20 of `first` minus that of `second` on the test set, as a paired difference.

    Raises UsageError if the runs have different logs or splits.
    """
    return evaluate_runs([first, second]).evaluation.lead[_name(second)]
