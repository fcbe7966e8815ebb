"""The loop: batches in, checkpoints and a journal out.

Every draw is named by the step, so that the state of a run is its tensors and a few
numbers: a run killed at any moment and resumed ends with the same bits.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from tapas.checkpoints.folder import Checkpoint, CheckpointFolder
from tapas.tables.ranks import ONE_PROCESS, Ranks
from tapas.training.config import LoopConfig
from tapas.training.journal import Journal
from tapas.training.model import SequenceModel
from tapas.training.step import StepRunner

REPORT_EVERY = 20  # steps


@dataclass(frozen=True, slots=True)
class Progress:
    """Where training stands, for whoever shows it."""

    step: int
    steps: int
    loss: float  # mean since the last line of the journal; NaN before the first step
    best: float | None  # MAP@20 on validation


@dataclass(slots=True)
class TrainerState:
    """What a checkpoint must remember beside tensors."""

    step: int = 0
    best: float | None = None
    best_step: int | None = None
    evaluations_since_best: int = 0
    loss_sum: float = 0.0  # since the last line of the journal
    loss_steps: int = 0


@dataclass(frozen=True, slots=True)
class TrainResult:
    """How a run ended.

    `reason` is "finished", "no_improvement" (early stopping) or "interrupted" (asked to stop).
    """

    reason: str
    step: int
    best: float | None
    best_step: int | None


class Trainer:
    """Takes `steps` of `model`; `judge` gives the validation numbers, "map@20" among them."""

    def __init__(
        self,
        model: SequenceModel,
        steps: StepRunner,
        judge: Callable[[SequenceModel], dict[str, float]],
        checkpoints: CheckpointFolder,
        journal: Journal,
        *,
        loop: LoopConfig,
        ranks: Ranks = ONE_PROCESS,
    ):
        if loop.steps is None or loop.evaluate_every is None:
            raise ValueError("the loop's steps and evaluate_every must be resolved")
        self.model, self.steps, self.judge = model, steps, judge
        self.checkpoints, self.journal, self.loop = checkpoints, journal, loop
        self.num_steps, self.evaluate_every = loop.steps, loop.evaluate_every
        self.ranks = ranks
        self.progress = TrainerState()

    def run(
        self,
        *,
        on_progress: Callable[[Progress], None] = lambda tick: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> TrainResult:
        progress, saved_at = self.progress, time.monotonic()
        on_progress(Progress(progress.step, self.num_steps, math.nan, progress.best))
        while progress.step < self.num_steps:
            if self._has_stalled():
                return self._result("no_improvement")
            self._count(self.steps.run_step(progress.step, self._next_evaluation()))
            mean = progress.loss_sum / progress.loss_steps
            evaluated = self._is_due()
            if evaluated:
                self._save(best=self._evaluate())
                saved_at = time.monotonic()
            if evaluated or progress.step % REPORT_EVERY == 0:
                on_progress(Progress(progress.step, self.num_steps, mean, progress.best))
            overdue = time.monotonic() - saved_at > self.loop.checkpoint_seconds
            # every rank must do the same, whoever was asked and whatever its clock says
            asked, overdue = (n > 0 for n in self.ranks.sum_numbers(should_stop(), overdue))
            if asked or overdue:
                if not evaluated:
                    self._count(*self.steps.drain())
                    self._save(best=self._is_due() and self._evaluate())
                saved_at = time.monotonic()
            if asked and progress.step < self.num_steps:
                return self._result("interrupted")
        return self._result("finished")

    def _is_due(self) -> bool:
        """Whether the model is to be judged as it is now."""
        step = self.progress.step
        return step % self.evaluate_every == 0 or step == self.num_steps

    def _next_evaluation(self) -> int:
        step = self.progress.step
        return min(self.num_steps, step - step % self.evaluate_every + self.evaluate_every)

    def _result(self, reason: str) -> TrainResult:
        progress = self.progress
        return TrainResult(reason, progress.step, progress.best, progress.best_step)

    def _count(self, *losses: float) -> None:
        self.progress.step += len(losses)
        self.progress.loss_sum += sum(losses)
        self.progress.loss_steps += len(losses)

    def _evaluate(self) -> bool:
        """Judge, write it down, and say whether it was the best so far."""
        progress = self.progress
        numbers = self.judge(self.model)
        mean = progress.loss_sum / max(1, progress.loss_steps)
        progress.loss_sum, progress.loss_steps = 0.0, 0
        self.journal.write(progress.step, "evaluate", train_loss=mean, **numbers)
        if progress.best is not None and numbers["map@20"] <= progress.best:
            progress.evaluations_since_best += 1
            return False
        progress.best, progress.best_step = numbers["map@20"], progress.step
        progress.evaluations_since_best = 0
        return True

    def _has_stalled(self) -> bool:
        return self.progress.evaluations_since_best >= self.loop.patience

    def _save(self, *, best: bool) -> None:
        self.journal.check()  # or a folder that is no run would be made in its place
        progress = {name: getattr(self.progress, name) for name in TrainerState.__slots__}
        step = self.progress.step
        self.steps.save(self.checkpoints, step, {"progress": progress}, best=best)
        for event, numbers in self.steps.events():
            self.journal.write(step, event, **numbers)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on where `checkpoint` was taken."""
        self.steps.resume(checkpoint)
        self.progress = TrainerState(**checkpoint.state["progress"])
