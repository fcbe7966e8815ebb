"""The training loop: steps, evaluations, checkpoints, early stopping.

Random draws depend only on seed and step, so the state of a run is its tensors and a few numbers:
a run that is killed at any moment and resumed gives bit-identical results.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from tapas.checkpoints.folder import Checkpoint, CheckpointFolder
from tapas.tables.ranks import ONE_PROCESS, Ranks
from tapas.training.config import LoopConfig
from tapas.training.journal import Journal, Value
from tapas.training.model import SequenceModel
from tapas.training.step import StepRunner

REPORT_EVERY = 20  # steps


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of training, for display."""

    step: int
    steps: int
    loss: float  # mean since the last line of the journal; NaN before the first step
    best: float | None  # MAP@20 on validation
    evaluated: float | None = None  # MAP@20 of the evaluation that was just made
    is_best: bool = False  # whether that is better than all before it


@dataclass(slots=True)
class TrainerState:
    """The state of the loop, saved in checkpoints."""

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
    """Trains `model` with `steps`; `validate` returns its metrics, "map@20" among them.

    Without it the model is not evaluated, and the newest checkpoint counts as the best.
    """

    def __init__(
        self,
        model: SequenceModel,
        steps: StepRunner,
        validate: Callable[[SequenceModel], dict[str, float]] | None,
        checkpoints: CheckpointFolder,
        journal: Journal,
        *,
        loop: LoopConfig,
        ranks: Ranks = ONE_PROCESS,
    ):
        if loop.steps is None or loop.evaluate_every is None:
            raise ValueError("the loop's steps and evaluate_every must be resolved")
        self.model, self.steps, self.validate = model, steps, validate
        self.checkpoints, self.journal, self.loop = checkpoints, journal, loop
        self.num_steps, self.evaluate_every = loop.steps, loop.evaluate_every
        self.ranks = ranks
        self.state = TrainerState()

    def run(
        self,
        *,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        should_stop: Callable[[], bool] = lambda: False,
        status: Callable[[str], None] = lambda words: None,
    ) -> TrainResult:
        """Train until the end; `status` is called with a sentence for each process that died."""
        state, saved_at = self.state, time.monotonic()
        self._on_progress, self._status = on_progress, status
        on_progress(Progress(state.step, self.num_steps, math.nan, state.best))
        while state.step < self.num_steps:
            if self._has_stalled():
                return self._result("no_improvement")
            self._count(self.steps.run_step(state.step, self._next_evaluation()))
            for process in self.steps.restarted():
                status(
                    f"Warning: {process} died and was restarted from the last checkpoint; the next "
                    "one tells how many updates were lost."
                )
            evaluated = self._is_due()
            if evaluated:
                self._save(best=self._evaluate())
                saved_at = time.monotonic()
            elif state.step % REPORT_EVERY == 0:
                mean = state.loss_sum / state.loss_steps
                on_progress(Progress(state.step, self.num_steps, mean, state.best))
            overdue = time.monotonic() - saved_at > self.loop.checkpoint_seconds
            # all ranks must agree, although signals and clocks differ
            stop, overdue = (n > 0 for n in self.ranks.sum_numbers(should_stop(), overdue))
            if stop or overdue:
                if not evaluated:
                    self._count(*self.steps.drain())
                    self._save(best=self._is_due() and self._evaluate())
                saved_at = time.monotonic()
            if stop and state.step < self.num_steps:
                return self._result("interrupted")
        return self._result("finished")

    def _is_due(self) -> bool:
        """Whether to evaluate the model after this step."""
        step = self.state.step
        return step % self.evaluate_every == 0 or step == self.num_steps

    def _next_evaluation(self) -> int:
        step = self.state.step
        return min(self.num_steps, step - step % self.evaluate_every + self.evaluate_every)

    def _result(self, reason: str) -> TrainResult:
        state = self.state
        return TrainResult(reason, state.step, state.best, state.best_step)

    def _count(self, *losses: float) -> None:
        self.state.step += len(losses)
        self.state.loss_sum += sum(losses)
        self.state.loss_steps += len(losses)

    def _evaluate(self) -> bool:
        """Evaluate, write the journal, and return whether the model is the best so far."""
        state = self.state
        numbers = {} if self.validate is None else self.validate(self.model)
        mean = state.loss_sum / max(1, state.loss_steps)
        state.loss_sum, state.loss_steps = 0.0, 0
        # metrics are means of float32 values: 7 digits are all that they have
        shown = {name: float(f"{value:.7g}") for name, value in numbers.items()}
        self.journal.write(state.step, "evaluate", train_loss=mean, **shown)
        if not numbers:
            state.best_step = state.step
            self._on_progress(Progress(state.step, self.num_steps, mean, None))
            return True
        value = numbers["map@20"]
        is_best = state.best is None or not value <= state.best
        if is_best:
            state.best, state.best_step = value, state.step
        state.evaluations_since_best = 0 if is_best else state.evaluations_since_best + 1
        self._on_progress(
            Progress(state.step, self.num_steps, mean, state.best, value, is_best=is_best)
        )
        return is_best

    def _has_stalled(self) -> bool:
        return self.state.evaluations_since_best >= self.loop.patience

    def _save(self, *, best: bool) -> None:
        self.journal.check()  # or saving would recreate a folder that was moved away
        progress = {name: getattr(self.state, name) for name in TrainerState.__slots__}
        step = self.state.step
        self.steps.save(self.checkpoints, step, {"progress": progress}, best=best)
        for event, numbers in self.steps.events():
            self.journal.write(step, event, **numbers)
            if event == "restart":
                self._status(_describe_restart(**numbers))

    def save(self) -> None:
        """Save a checkpoint of the state now, which counts as the best so far."""
        self._save(best=True)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue from `checkpoint`."""
        self.steps.resume(checkpoint)
        self.state = TrainerState(**checkpoint.state["progress"])


def _describe_restart(process: Value, rolled_back_updates: Value) -> str:
    if not rolled_back_updates:
        return f"Warning: {process} died and was restarted; no updates were lost."
    lost = "1 update was" if rolled_back_updates == 1 else f"{rolled_back_updates:,} updates were"
    return f"Warning: {process} died and was restarted from the last checkpoint; {lost} lost."
