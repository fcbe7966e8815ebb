"""The runs of a comparison: as many steps as fit into the same time for each contender.

    steps of a trial  =  budget / 2 / trials / pace
    steps of a seed   =  budget / 2 / seeds / pace

Pace is the time of a step. The number of steps is fixed before training, so that running several
at once changes nothing. Trials are chosen by validation results only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite

from tapas.comparison.config import CompareConfig
from tapas.comparison.contenders import Trial, by_name, find_contender
from tapas.comparison.ledger import Ledger
from tapas.comparison.runs import REFERENCES, VALIDATION, CompareRun
from tapas.comparison.synthetic_log import TRUTH
from tapas.errors import DataError

SEARCH_SEED = 1_000  # never among the seeds of a result


@dataclass(frozen=True, slots=True)
class RunBudget:
    """The runs of a comparison; results are read from a ledger."""

    config: CompareConfig
    num_samples: int  # n
    paces: Mapping[str, float]  # seconds of a step; of contenders that could be built

    def trial_steps(self, name: str) -> int:
        return int(self.config.trial_seconds / self.paces[name])

    def final_steps(self, name: str) -> int:
        return int(self.config.final_seconds / self.paces[name])

    def is_too_slow(self, name: str) -> bool:
        return min(self.trial_steps(name), self.final_steps(name)) < self.config.least_steps

    def running(self) -> list[str]:
        """Contenders with enough steps."""
        return [
            name
            for name in self.config.contenders
            if name in self.paces and not self.is_too_slow(name)
        ]

    def too_slow(self) -> dict[str, tuple[CompareRun, str]]:
        """The contenders with too few steps, each with the run that is skipped and the reason."""
        found = {}
        for name in self.config.contenders:
            if name in self.paces and self.is_too_slow(name):
                steps, pace = self.trial_steps(name), self.paces[name]
                seconds, least = self.config.trial_seconds, self.config.least_steps
                if steps >= least:
                    steps, seconds = self.final_steps(name), self.config.final_seconds
                words = (
                    f"too slow for this budget: a step takes {pace:.3g} s, so a run of "
                    f"{seconds:.3g} s has {steps} steps, and at least {least} are needed"
                )
                first = find_contender(name).trials(1)[0]
                found[name] = (self._trial(name, first), words)
        return found

    def searches(self) -> list[CompareRun]:
        """The same number of trials for each contender."""
        return [
            self._trial(contender.name, trial)
            for contender in by_name(self.running())
            for trial in contender.trials(self.config.trials)
        ]

    def best(self, ledger: Ledger, name: str) -> Trial | None:
        """The trial with the highest MAP@20 on validation points; None if all diverged."""
        scores = {}
        for trial in find_contender(name).trials(self.config.trials):
            run = self._trial(name, trial)
            if run not in ledger:
                raise DataError(
                    f"the search of '{name}' is not finished; the same command continues where "
                    "it stopped."
                )
            if "diverged" not in ledger[run]:
                score = ledger[run].get("map@20")
                if not isinstance(score, int | float) or not isfinite(score):
                    raise ledger.damaged(run.key(), "map@20 is no number")
                scores[trial] = float(score)
        return max(scores, key=scores.__getitem__) if scores else None

    def finals(self, ledger: Ledger) -> list[CompareRun]:
        """Ordered by seed, so that an interrupted comparison has complete seeds."""
        chosen = {name: self.best(ledger, name) for name in self.running()}
        return [
            self._run(name, trial, self.final_steps(name), seed)
            for seed in range(self.config.seeds)
            for name, trial in chosen.items()
            if trial is not None
        ]

    def references(self) -> list[CompareRun]:
        """Baselines, which need no training."""
        known = [name for name in REFERENCES if name != TRUTH or self.config.made is not None]
        return [CompareRun(contender=name) for name in known]

    def _trial(self, name: str, trial: Trial) -> CompareRun:
        run = self._run(name, trial, self.trial_steps(name), SEARCH_SEED)
        return replace(run, points=VALIDATION)

    def _run(self, name: str, trial: Trial, steps: int, seed: int) -> CompareRun:
        return CompareRun(
            contender=name,
            rows_lr=trial.rows_lr,
            knob=trial.knob,
            num_samples=self.num_samples if find_contender(name).draws else 0,
            steps=steps,
            step_seconds=self.paces[name],
            seed=seed,
        )
