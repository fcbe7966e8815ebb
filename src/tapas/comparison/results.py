"""Reads the folder of a comparison.

A contender without results is included, with the reason if the files say it. Nothing is trained
or measured here.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from tapas.comparison.contenders import CONTENDERS, find_contender
from tapas.comparison.ledger import Ledger, Result
from tapas.comparison.runs import REFERENCES, TEST, VALIDATION
from tapas.comparison.settings import SETTINGS, read_comparison_settings
from tapas.comparison.stages import PACE, RUNS
from tapas.comparison.synthetic_log import TRUTH
from tapas.errors import DataError, TapasError
from tapas.evaluation.baselines import title_of
from tapas.heads.own_method import OWN_METHODS

FULL = "full"
UNKNOWN = "#555555"  # colour
UNFINISHED = "not finished"


class Moment(NamedTuple):
    """One evaluation during the final runs, over the seeds that did not diverge."""

    share: float  # of the run; the same moments for all
    seconds: float  # of training, at the measured pace of the contender
    quality: float  # mean MAP@20
    low: float  # the lowest and the highest of the seeds
    high: float


@dataclass(frozen=True, slots=True)
class MethodResults:
    """All results of one contender."""

    name: str
    title: str
    colour: str
    knob: str | None = None  # what is tuned beside the learning rate of the rows
    pace: Result | None = None
    trials: tuple[Result, ...] = ()  # on validation points, diverged ones too
    finals: tuple[Result, ...] = ()  # on test points, one for each seed that did not diverge
    diverged_seeds: tuple[int, ...] = ()
    num_seeds: int = 1  # that were requested
    skipped: str | None = None  # why it has not been trained

    @property
    def step_seconds(self) -> float | None:
        """Median over rounds of the time of a step."""
        rounds = (self.pace or {}).get("step_seconds")
        return median(rounds) if rounds else None

    @property
    def peak_bytes(self) -> int | None:
        """Of the process that trained it, the most of its seeds."""
        known = [r["peak_bytes"] for r in self.finals if r.get("peak_bytes") is not None]
        return max(known) if known else None

    @property
    def scores_per_example(self) -> float | None:
        """Classes that are scored for each position, at the end of its last seed, if known."""
        found = [r.get("scores_per_example") for r in (self.pace or {}, *self.finals)]
        known = [float(value) for value in found if value is not None and not isnan(value)]
        return known[-1] if known else None

    @property
    def curve(self) -> list[Moment]:
        """MAP@20 at the moments that all its final runs have."""
        found = []
        for points in zip(*(result["curve"] for result in self.finals), strict=False):
            values = [float(point["map@20"]) for point in points]
            share, seconds = (fmean(float(p[n]) for p in points) for n in ("share", "seconds"))
            found.append(Moment(share, seconds, fmean(values), min(values), max(values)))
        return found

    @property
    def best_quality(self) -> float | None:
        """MAP@20 on the test points of the curves, at the best moment by validation points."""
        moments = [
            max(result["curve"], key=lambda point: point["validation"])
            for result in self.finals
            if result["curve"]
        ]
        return fmean(float(point["map@20"]) for point in moments) if moments else None

    @property
    def state(self) -> str:
        """Why there is no result, or what is wrong with it; empty if nothing is."""
        if self.skipped is not None:
            return self.skipped
        if self.trials and all("diverged" in trial for trial in self.trials) and not self.finals:
            return "every trial of the search diverged"
        done = len(self.finals) + len(self.diverged_seeds)
        if self.diverged_seeds:
            return f"{len(self.diverged_seeds)} of {done} seeds diverged"
        return self.seeds_done if done else UNFINISHED

    @property
    def seeds_done(self) -> str:
        """Such as "1 of 2 seeds done"; empty if all are, or none, or if some diverged."""
        done = len(self.finals)
        if self.diverged_seeds or not 0 < done < self.num_seeds:
            return ""
        return f"{done} of {self.num_seeds} seeds done"


@dataclass(frozen=True, slots=True)
class BaselineResult:
    """Ranked lists that need no training: a counting baseline, or the true distribution."""

    title: str
    result: Result

    @property
    def is_truth(self) -> bool:
        return self.title == TRUTH


@dataclass(frozen=True, slots=True)
class Comparison:
    """A folder of results: contenders in the order of the settings."""

    settings: Mapping[str, Any]
    methods: tuple[MethodResults, ...]
    baselines: tuple[BaselineResult, ...] = ()


@contextmanager
def refuse_damaged(folder: Path) -> Iterator[None]:
    """Raise DataError where results in `folder` have not what a report needs."""
    try:
        yield
    except TapasError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"the results in {folder} are not as `tapas compare` writes them ({error!r:.200}). "
            "Restore its .json and .jsonl files from another copy, or move the folder away."
        ) from error


def read_comparison(folder: Path) -> Comparison:
    """Read what `tapas compare` has written into `folder`, finished or not."""
    if not (folder / SETTINGS).exists():
        raise DataError(
            f"{folder} holds no comparison ({SETTINGS} is missing). Start one with "
            "`tapas compare LOG`, or name its folder with --out."
        )
    settings = read_comparison_settings(folder / SETTINGS)
    paces, runs = (list(Ledger(folder / name).results.values()) for name in (PACE, RUNS))
    names = settings["contenders"]
    return Comparison(
        settings,
        tuple(
            _method_results(name, settings["seeds"], *(_of(name, some) for some in (paces, runs)))
            for name in names
        ),
        tuple(
            BaselineResult(title_of(name), result)
            for name in REFERENCES
            for result in _of(name, runs)[-1:]
        ),
    )


def _of(name: str, lines: Iterable[Result]) -> list[Result]:
    return [line for line in lines if line["run"].get("contender") == name]


def _method_results(
    name: str, num_seeds: int, paces: list[Result], runs: list[Result]
) -> MethodResults:
    # an older folder may name one that is gone, and --draw imports no methods of the user's own
    known = find_contender(name) if name in (*CONTENDERS, *OWN_METHODS) else None
    finals = {r["run"]["seed"]: r for r in runs if r["run"]["points"] == TEST}  # the latest
    reasons = [line["skipped"] for line in (*paces, *runs) if "skipped" in line]
    return MethodResults(
        name=name,
        title=name if known is None else known.title,
        colour=UNKNOWN if known is None else known.colour,
        knob=None if known is None else known.knob,
        pace=paces[-1] if paces else None,
        trials=tuple(r for r in runs if r["run"]["points"] == VALIDATION and "skipped" not in r),
        finals=tuple(finals[seed] for seed in sorted(finals) if "diverged" not in finals[seed]),
        diverged_seeds=tuple(seed for seed in sorted(finals) if "diverged" in finals[seed]),
        num_seeds=num_seeds,
        skipped=reasons[-1] if reasons else None,
    )
