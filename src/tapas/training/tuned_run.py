"""`--tune`: a run that begins with a search for settings, and then trains the best of them.

Every trial begins anew with learning rates that fall to 0 in its time, and is judged once, by
MAP@20 at the validation points of the run. Trials are lines of the run's journal, so that a search
goes on where it was stopped.
"""

import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tapas.atomic_file import atomic_write
from tapas.data.event_log import EventLog
from tapas.data.splits import Split
from tapas.durations import duration
from tapas.errors import DataError, UsageError, is_out_of_memory
from tapas.mixture import Mixture
from tapas.tables.ranks import ONE_PROCESS
from tapas.training.build import TrainingSetup, build_training
from tapas.training.config import TrainConfig
from tapas.training.journal import JOURNAL, SETTING, Journal, read_journal
from tapas.training.recipe import Choice
from tapas.training.run_folder import RunFolder, write_config
from tapas.training.search_page import SEARCH_PAGE, search_page
from tapas.training.settings_search import (
    NUMBERS,
    SEARCH_SHARE,
    Changes,
    SearchPlan,
    Trial,
    best_candidate,
    draw_candidates,
    in_round,
    in_words,
    num_rounds,
    score_of,
    search_space,
    with_changes,
)
from tapas.training.step import local_steps
from tapas.training.time_budget import TooShortError, fit_to_time, measure_pace
from tapas.training.validation import validator

LEAST_STEPS, LEAST_EVALUATIONS = 50, 3  # whose time the first trials must have
SEARCH, TRIAL, CHOSEN = "search", "trial", "chosen"  # events of the journal
METRIC = "map@20"
Status = Callable[[str], None]
Validate = Callable[[Any], dict[str, float]]


def plan_search(
    setup: TrainingSetup,
    validate: Validate,
    seconds: float,
    given: Collection[str],
    *,
    started: float,
) -> SearchPlan:
    """Plan a search of `seconds` from `started` on, a time of `time.monotonic`.

    Settings in `given` are not changed. The model of `setup` is used up. Raises UsageError if the
    time is too short for two candidates.
    """
    pace = measure_pace(setup, validate, seconds, ONE_PROCESS)
    spent = time.monotonic() - started
    axes = search_space(setup.config, given)
    if not axes:
        raise UsageError(
            "--tune has nothing to search: all settings that it would try were given. Use "
            "--minutes, or give fewer settings."
        )
    least = LEAST_STEPS * pace.step_seconds + LEAST_EVALUATIONS * pace.evaluation_seconds
    for number in NUMBERS:
        trial_seconds = SEARCH_SHARE * (seconds - spent) / (number * num_rounds(number))
        if trial_seconds >= least or number == NUMBERS[-1]:
            break
    if trial_seconds < least:
        needed = spent + least * NUMBERS[-1] / SEARCH_SHARE
        raise UsageError(
            f"--tune {duration(seconds)} is too short: a step takes {pace.step_seconds:.2g} s and "
            f"an evaluation {pace.evaluation_seconds:.2g} s. Give it at least "
            f"{math.ceil(1.3 * needed / 60)}m, or use --minutes, which searches nothing."
        )
    candidates = draw_candidates(axes, number, setup.config.loop.seed)
    return SearchPlan(seconds, spent, trial_seconds, candidates)


def unfinished_search(run: RunFolder) -> SearchPlan | None:
    """The plan of a search in `run` that has not chosen yet; None if there is none."""
    if not (run.path / JOURNAL).exists():
        return None
    events = {entry["event"]: entry for entry in read_journal(run.path / JOURNAL)}
    plan = events.get(SEARCH)
    if plan is None or CHOSEN in events:
        return None
    return SearchPlan(
        plan["seconds"],
        plan["spent_seconds"],
        plan["trial_seconds"],
        tuple(json.loads(plan["candidates"])),
    )


def write_plan(folder: Path, plan: SearchPlan) -> None:
    """Begin the journal of a new run in `folder` with its search."""
    with Journal(folder, tensorboard=False) as journal:
        journal.write(
            0,
            SEARCH,
            seconds=plan.seconds,
            spent_seconds=plan.spent_seconds,
            trial_seconds=plan.trial_seconds,
            candidates=json.dumps(plan.candidates),
        )


def search_settings(run: RunFolder, split: Split, plan: SearchPlan, status: Status) -> RunFolder:
    """Make the trials of `plan` that are missing; `run` with the settings of the winner.

    Its number of steps is what the rest of the time allows.
    """
    trials = trials_of(run)
    lab = Laboratory(run.config, run.log, split)
    with Journal(run.path, tensorboard=False) as journal:
        for trial in _missing(plan, trials, lab, status):
            journal.write(
                0, TRIAL,
                round=trial.round, candidate=trial.candidate, seconds=trial.seconds,
                steps=trial.steps, score=trial.score, problem=trial.problem,
            )  # fmt: skip
            trials.append(trial)
            _write_page(run, plan, trials)
        winner = best_candidate(plan, trials)
        left = plan.seconds - plan.spent_seconds - sum(trial.seconds for trial in trials)
        left = max(left, (1 - SEARCH_SHARE) * (plan.seconds - plan.spent_seconds) / 2)
        config = with_changes(run.config, plan.candidates[winner])
        config, words = lab.fitted(config, left)
        run = replace(run, config=config)
        write_config(run)
        for name, value in plan.candidates[winner].items():
            found = Choice(name, value, f"the best of {len(plan.candidates)} candidates")
            journal.write(0, SETTING, **found.as_words())
        journal.write(0, CHOSEN, candidate=winner)
    _write_page(run, plan, trials, winner)
    first = score_of(plan, trials, 0)
    beside = "" if winner == 0 or first is None else f" (as chosen from the log: {first:.4f})"
    status(
        f"Best of {len(plan.candidates)}: {in_words(plan.candidates[winner])}; MAP@20 "
        f"{score_of(plan, trials, winner):.4f}{beside}. {run.path / SEARCH_PAGE} shows all trials."
    )
    status(words)
    return run


def _write_page(
    run: RunFolder, plan: SearchPlan, trials: Sequence[Trial], winner: int | None = None
) -> None:
    with atomic_write(run.path / SEARCH_PAGE) as file:
        file.write_text(search_page(plan, trials, winner), encoding="utf-8")


def trials_of(run: RunFolder) -> list[Trial]:
    """The trials in the journal of `run`."""
    names = Trial.__slots__
    return [
        Trial(**{name: entry[name] for name in names})
        for entry in read_journal(run.path / JOURNAL)
        if entry["event"] == TRIAL
    ]


def _missing(
    plan: SearchPlan, trials: Sequence[Trial], lab: "Laboratory", status: Status
) -> Iterator[Trial]:
    """Make the trials that `trials` lack, one after the other."""
    trials = list(trials)
    for number in range(1, plan.num_rounds + 1):
        candidates = in_round(plan, trials, number)
        seconds = plan.trial_seconds * 2 ** (number - 1)
        done = {trial.candidate for trial in trials if trial.round == number}
        if len(done) < len(candidates):
            status(
                f"Search, round {number} of {plan.num_rounds}: {len(candidates)} candidates, "
                f"{duration(seconds)} each."
            )
        for candidate in candidates:
            if candidate in done:
                continue
            changes = plan.candidates[candidate]
            trial = lab.trial(changes, seconds, number, candidate)
            score = trial.problem if trial.score is None else f"MAP@20 {trial.score:.4f}"
            status(f"  {in_words(changes)}: {score}")
            trials.append(trial)
            yield trial


class Laboratory:
    """Trains candidates on one log; its counting parts are counted once."""

    def __init__(self, config: TrainConfig, log: EventLog, split: Split):
        self.config, self.log, self.split = config, log, split
        self._mixture: Mixture | None = None

    def trial(self, changes: Changes, seconds: float, number: int, candidate: int) -> Trial:
        """Train the candidate with `changes` for `seconds`, and judge it."""
        start, steps, score, problem = time.monotonic(), 0, None, ""
        try:
            config, _ = self.fitted(with_changes(self.config, changes), seconds)
            setup, validate = self._build(config)
            runner, steps = local_steps(setup), setup.config.loop.steps or 1
            for step in range(steps):
                runner.run_step(step, steps)
            score = validate(setup.model)[METRIC]
        except TooShortError:
            problem = f"too slow for {duration(seconds)}"
        except (UsageError, DataError) as error:
            problem = str(error)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            problem = "not enough memory"
        return Trial(number, candidate, time.monotonic() - start, steps, score, problem)

    def fitted(self, config: TrainConfig, seconds: float) -> tuple[TrainConfig, str]:
        """`config` with as many steps as fit into `seconds` from now on, and a sentence."""
        started = time.monotonic()
        setup, validate = self._build(config)
        return fit_to_time(setup, validate, seconds, ONE_PROCESS, started=started)

    def _build(self, config: TrainConfig) -> tuple[TrainingSetup, Validate]:
        config = replace(config, loop=replace(config.loop, evaluate_every=None))
        setup = build_training(config, self.log, self.split, mixture=self._mixture)
        self._mixture = setup.model.mixture
        return setup, validator(setup.config, self.log, self.split)
