"""A search for settings: many short trials, then the better half of them for twice as long, ...

    round 1:  N candidates for t seconds each,  round 2:  N / 2 for 2 t,  ...,  until two are left
    t = SEARCH_SHARE * seconds / (N * rounds)

(Jamieson and Talwalkar 2016: successive halving.) The first candidate is what was chosen from the
log and is in every round, to be compared with after the same time; the others change some of it at
random. The rest of the time trains the winner.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tapas.errors import UsageError
from tapas.rng import stream
from tapas.training.config import JSON, TrainConfig, as_tables, build_config

SEARCH_SHARE = 0.5  # of the time
NUMBERS = (16, 8, 4, 2)  # of candidates: as many as the time allows
CHANGED = 0.5  # chance that a candidate changes a setting
TRANSFORMER_LAYERS = 2
Changes = dict[str, JSON]


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Which candidates are tried, and for how long. The first one changes nothing."""

    seconds: float  # for everything, reading the log included
    spent_seconds: float  # before the search
    trial_seconds: float  # of a trial of the first round
    candidates: tuple[Changes, ...]

    @property
    def num_rounds(self) -> int:
        return num_rounds(len(self.candidates))


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of a candidate in one round."""

    round: int  # from 1
    candidate: int
    seconds: float
    steps: int
    score: float | None  # MAP@20; None if it could not be trained
    problem: str = ""  # why not


def num_rounds(candidates: int) -> int:
    """How often the better half of `candidates` is chosen, until one is left."""
    return max(1, int(math.log2(candidates)))


def search_space(config: TrainConfig, given: Collection[str]) -> dict[str, list[Changes]]:
    """What candidates may change in `config`, by name: for each, other values with their settings.

    Nothing that is in `given`, such as "model.dim", is changed.
    """
    model, optimizer, head, loop = config.model, config.optimizer, config.head, config.loop
    space: dict[str, list[Changes]] = {
        "learning rates": [
            {"optimizer.rows_lr": factor * optimizer.rows_lr,
             "optimizer.encoder_lr": factor * optimizer.encoder_lr}
            for factor in (0.5, 2.0)
        ],
        "dimensions": [{"model.dim": max(16, model.dim // 2)}, {"model.dim": 2 * model.dim}],
        "dropout": [{"model.dropout": rate} for rate in (0.1, 0.3, 0.5)],
        "batch": [{"loop.batch": max(1, loop.batch // 2)}, {"loop.batch": 2 * loop.batch}],
        "encoder": [
            {"model.encoder": "mean", "model.history": 200},
            {"model.encoder": "gru", "model.history": 50, "model.layers": 1},
            {"model.encoder": "transformer", "model.history": 50,
             "model.layers": TRANSFORMER_LAYERS},
        ],
    }  # fmt: skip
    if isinstance(number := head.options.get("num_samples"), int):
        space["samples"] = [
            {"head.num_samples": max(16, number // 4)}, {"head.num_samples": 4 * number}
        ]  # fmt: skip
    if head.method == "full":
        space["method"] = [{"head.method": "tapas"}]
    present = {
        f"{section}.{name}": value
        for section, table in as_tables(config).items()
        for name, value in table.items()
    }
    kept = {
        axis: [
            changes
            for changes in others
            if not any(name in given for name in changes)
            and any(present.get(name) != value for name, value in changes.items())
            and present["model.encoder"] != changes.get("model.encoder")
        ]
        for axis, others in space.items()
    }
    return {axis: others for axis, others in kept.items() if others}


def draw_candidates(
    axes: Mapping[str, Sequence[Changes]], number: int, seed: int
) -> tuple[Changes, ...]:
    """`number` distinct candidates at most: first no change, then random ones of `axes`."""
    draw = np.random.default_rng(stream(seed, "settings search").initial_seed())
    found: list[Changes] = [{}]
    for _ in range(100 * number):
        if len(found) == number:
            break
        changes: Changes = {}
        for others in axes.values():
            if draw.random() < CHANGED:
                changes |= others[int(draw.integers(len(others)))]
        if changes and changes not in found:
            found.append(changes)
    return tuple(found)


def with_changes(config: TrainConfig, changes: Changes) -> TrainConfig:
    """`config` with the settings `changes`."""
    tables = as_tables(config)
    for name, value in changes.items():
        section, _, field = name.partition(".")
        tables[section][field] = value
    return build_config(tables)


def in_words(changes: Changes) -> str:
    """
    >>> in_words({"model.dim": 256, "optimizer.rows_lr": 0.004}), in_words({})
    ('model.dim = 256, optimizer.rows_lr = 0.004', 'as chosen from the log')
    """
    return ", ".join(f"{name} = {_short(value)}" for name, value in changes.items()) or (
        "as chosen from the log"
    )


def _short(value: JSON) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def in_round(plan: SearchPlan, trials: Sequence[Trial], number: int) -> list[int]:
    """The candidates of round `number`: all of them, or the better half of the round before.

    The first candidate takes the last place of the half if it is not in it.
    """
    if number == 1:
        return list(range(len(plan.candidates)))
    before = [trial for trial in trials if trial.round == number - 1]
    half = _ranked(before)[: max(1, len(before) // 2)]
    trained = any(trial.candidate == 0 and trial.score is not None for trial in before)
    return [*half[:-1], 0] if trained and 0 not in half else half


def best_candidate(plan: SearchPlan, trials: Sequence[Trial]) -> int:
    """The best of the last round. Raises UsageError if no candidate could be trained."""
    ranked = _ranked([trial for trial in trials if trial.round == plan.num_rounds])
    best = ranked[0] if ranked else 0
    if score_of(plan, trials, best) is None:
        problem = next((trial.problem for trial in trials if trial.problem), "no trial was made")
        raise UsageError(f"no candidate could be trained: {problem}")
    return best


def score_of(plan: SearchPlan, trials: Sequence[Trial], candidate: int) -> float | None:
    """MAP@20 of `candidate` in the last round that it was in."""
    found = [trial for trial in trials if trial.candidate == candidate]
    return max(found, key=lambda trial: trial.round).score if found else None


def _ranked(trials: Sequence[Trial]) -> list[int]:
    """Candidates, best first; ties go to the earlier one."""
    order = sorted(trials, key=lambda t: (t.score is None, -(t.score or 0), t.candidate))
    return [trial.candidate for trial in order]
