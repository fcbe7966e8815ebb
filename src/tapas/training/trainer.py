"""The loop: batches in, checkpoints and a journal out.

Every draw is named by the step, so that the state of a run is its tensors and a few
numbers: a run killed at any moment and resumed ends with the same bits.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tapas.data.windows import SequenceBatch, Windows
from tapas.errors import DataError
from tapas.rng import stream
from tapas.training.checkpoint import Checkpoint, CheckpointFolder
from tapas.training.config import LoopConfig, OptimizerConfig
from tapas.training.journal import Journal
from tapas.training.model import SequenceModel
from tapas.training.model_checkpoint import (
    load_model_state,
    load_optimizer_state,
    model_state,
    optimizer_state,
)
from tapas.training.team import Team

REPORT_EVERY = 20  # steps


@dataclass(frozen=True, slots=True)
class Tick:
    """Where training stands, for whoever shows it."""

    step: int
    steps: int
    loss: float  # mean since the last line of the journal; NaN before the first step
    best: float | None  # MAP@20 on validation


@dataclass(slots=True)
class Progress:
    """What a checkpoint must remember beside tensors."""

    step: int = 0
    best: float | None = None
    best_step: int | None = None
    evaluations_since_best: int = 0
    loss_sum: float = 0.0  # since the last line of the journal
    loss_steps: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: "finished", "early" (no better for a while) or "asked" to stop."""

    ending: str
    step: int
    best: float | None
    best_step: int | None


class Trainer:
    """Trains `model` on `windows`; `judge` gives the validation numbers, "map@20" among them."""

    def __init__(
        self,
        model: SequenceModel,
        windows: Windows,
        optimizer: torch.optim.Optimizer,
        judge: Callable[[SequenceModel], dict[str, float]],
        checkpoints: CheckpointFolder,
        journal: Journal,
        *,
        loop: LoopConfig,
        clip: float | None = OptimizerConfig().clip,
        team: Team | None = None,
    ):
        if loop.steps is None or loop.evaluate_every is None:
            raise ValueError("the loop's steps and evaluate_every must be resolved")
        self.model, self.windows, self.optimizer, self.judge = model, windows, optimizer, judge
        self.checkpoints, self.journal, self.loop, self.clip = checkpoints, journal, loop, clip
        self.steps, self.evaluate_every = loop.steps, loop.evaluate_every
        self.team = team or Team()
        self.progress = Progress()

    def run(
        self,
        *,
        on_tick: Callable[[Tick], None] = lambda tick: None,
        asked_to_stop: Callable[[], bool] = lambda: False,
    ) -> Outcome:
        progress, saved_at = self.progress, time.monotonic()
        on_tick(Tick(progress.step, self.steps, math.nan, progress.best))
        while progress.step < self.steps:
            if self._has_stalled():
                return self._outcome("early")
            self._step()
            mean = progress.loss_sum / progress.loss_steps
            evaluated = progress.step % self.evaluate_every == 0 or progress.step == self.steps
            if evaluated:
                self._save(best=self._evaluate())
                saved_at = time.monotonic()
            if evaluated or progress.step % REPORT_EVERY == 0:
                on_tick(Tick(progress.step, self.steps, mean, progress.best))
            overdue = time.monotonic() - saved_at > self.loop.checkpoint_seconds
            # every rank must do the same, whoever was asked and whatever its clock says
            asked, overdue = (n > 0 for n in self.team.sum(asked_to_stop(), overdue))
            if asked or overdue:
                if not evaluated:
                    self._save(best=False)
                saved_at = time.monotonic()
            if asked and progress.step < self.steps:
                return self._outcome("asked")
        return self._outcome("finished")

    def _outcome(self, ending: str) -> Outcome:
        self.checkpoints.finish()  # one may be on its way to the disk
        progress = self.progress
        return Outcome(ending, progress.step, progress.best, progress.best_step)

    def _step(self) -> None:
        progress = self.progress
        value = step(
            self.model,
            self.optimizer,
            self.windows.batch(progress.step),
            seed=self.loop.seed,
            number=progress.step,
            clip=self.clip,
            team=self.team,
        )
        progress.step += 1
        progress.loss_sum += value
        progress.loss_steps += 1

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
        tensors, extra = model_state(self.model)
        progress = {name: getattr(self.progress, name) for name in Progress.__slots__}
        self.checkpoints.save(
            self.progress.step,
            tensors | optimizer_state(self.optimizer),
            {"progress": progress, "extra": extra},
            best=best,
            ranks=self.team.ranks,
            background=self.loop.background_saves,
        )

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on where `checkpoint` was taken."""
        load_model_state(self.model, checkpoint)
        load_optimizer_state(self.optimizer, checkpoint)
        self.progress = Progress(**checkpoint.state["progress"])


def step(
    model: SequenceModel,
    optimizer: torch.optim.Optimizer,
    batch: SequenceBatch,
    *,
    seed: int,
    number: int,
    clip: float | None,
    team: Team | None = None,
) -> float:
    """One step of training, number `number` of the run with `seed`; returns the sampled loss.

    `batch` is that of all ranks; each takes its part, and the loss is the mean over all.
    """
    team = team or Team()
    name = ("dropout", number) if team.ranks is None else ("dropout", number, team.rank)
    optimizer.zero_grad(set_to_none=True)
    with model.head.accumulate():  # inputs and softmax may share their rows
        loss = model.loss(team.part(batch), generator=stream(seed, *name))
        value = float(loss.detach())
        if not math.isfinite(value):
            raise DataError(
                f"the loss is {value} at step {number}: training has diverged. Lower "
                "optimizer.rows_lr or optimizer.encoder_lr (with --set) and begin again."
            )
        loss.backward()  # type: ignore[no-untyped-call]
    learned = (p for group in optimizer.param_groups for p in group["params"])
    value = team.average_gradients(learned, value)
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.encoder.parameters(), clip)
    optimizer.step()
    return value
