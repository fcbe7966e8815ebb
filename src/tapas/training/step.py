"""The steps of training: the interface that the trainer uses, and steps in this process."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tapas.checkpoints.folder import Checkpoint, CheckpointFolder
from tapas.checkpoints.model import (
    contents_of,
    load_model_state,
    load_optimizer_state,
)
from tapas.data.windows import SequenceBatch, Windows
from tapas.errors import DataError
from tapas.native.memory import trim_heap
from tapas.rng import stream
from tapas.tables import ClassTable
from tapas.tables.ranks import ONE_PROCESS, Ranks
from tapas.training.journal import Value
from tapas.training.learning_rate import LearningRates, learning_rates
from tapas.training.model import SequenceModel
from tapas.training.parallel import average_gradients, local_batch

if TYPE_CHECKING:
    from tapas.training.build import TrainingSetup

TRIM_EVERY = 32  # steps


class StepRunner(Protocol):
    """Runs training steps for a trainer: in this process, on ranks, or on workers and servers."""

    def run_step(self, number: int, until: int) -> float:
        """Return the loss of step `number`; all earlier steps have been returned.

        Further steps before `until` may be started in the meantime.
        """
        ...

    def drain(self) -> list[float]:
        """Wait for all steps that were started; returns their losses in order."""
        ...

    def save(
        self, checkpoints: CheckpointFolder, step: int, state: dict[str, Any], *, best: bool
    ) -> None:
        """Save the model, the optimizers and `state`; no step may be running."""
        ...

    def resume(self, checkpoint: Checkpoint) -> None:
        """Load a checkpoint written by `save`."""
        ...

    def restarted(self) -> Iterable[str]:
        """Processes that were restarted from a checkpoint, as seen in steps since the last call.

        How many updates they have lost is among the `events` after the next `save`.
        """
        ...

    def events(self) -> Iterable[tuple[str, dict[str, Value]]]:
        """Events for the journal since the last call: names and numbers."""
        ...


class LocalSteps:
    """Runs the steps of `model` in this process, together with the other `ranks`."""

    def __init__(
        self,
        model: SequenceModel,
        windows: Windows,
        optimizer: torch.optim.Optimizer,
        *,
        seed: int,
        rates: LearningRates,
        ranks: Ranks = ONE_PROCESS,
    ):
        self.model, self.windows, self.optimizer = model, windows, optimizer
        self.seed, self.rates, self.ranks = seed, rates, ranks
        self._tables = [module for module in model.modules() if isinstance(module, ClassTable)]

    def run_step(self, number: int, until: int) -> float:
        self.rates.set_encoder(number, self.optimizer)
        self.rates.set_rows(number, self._tables)
        if number % TRIM_EVERY == 0:
            trim_heap()
        return step(
            self.model,
            self.optimizer,
            self.windows.batch(number),
            seed=self.seed,
            number=number,
            clip=self.rates.config.clip,
            ranks=self.ranks,
        )

    def drain(self) -> list[float]:
        return []

    def save(
        self, checkpoints: CheckpointFolder, step: int, state: dict[str, Any], *, best: bool
    ) -> None:
        contents = contents_of(self.model, self.optimizer)
        checkpoints.save(step, contents, state, best=best, ranks=self.ranks)

    def resume(self, checkpoint: Checkpoint) -> None:
        load_model_state(self.model, checkpoint)
        load_optimizer_state(self.optimizer, checkpoint)

    def restarted(self) -> Iterable[str]:
        return ()

    def events(self) -> Iterable[tuple[str, dict[str, Value]]]:
        return ()


def local_steps(setup: "TrainingSetup", ranks: Ranks = ONE_PROCESS) -> LocalSteps:
    """The steps of `setup`, in this process and together with the other `ranks`."""
    config = setup.config
    return LocalSteps(
        setup.model,
        setup.windows,
        setup.optimizer,
        seed=config.loop.seed,
        rates=learning_rates(config),
        ranks=ranks,
    )


def step(
    model: SequenceModel,
    optimizer: torch.optim.Optimizer,
    batch: SequenceBatch,
    *,
    seed: int,
    number: int,
    clip: float | None,
    ranks: Ranks = ONE_PROCESS,
) -> float:
    """Run training step `number` of a run with `seed`; returns the sampled loss.

    `batch` is the global batch, of which each rank uses its share; the loss is the mean over all
    ranks. Raises DataError if the loss is not finite.
    """
    name = ("dropout", number, ranks.rank) if ranks.is_distributed else ("dropout", number)
    optimizer.zero_grad(set_to_none=True)
    loss = model.loss(local_batch(ranks, batch), generator=stream(seed, *name))
    value = finite(float(loss.detach()), number)
    loss.backward()  # type: ignore[no-untyped-call]  # also updates the class rows
    learned = (p for group in optimizer.param_groups for p in group["params"])
    value = average_gradients(ranks, learned, value)
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.encoder.parameters(), clip)
    optimizer.step()
    return value


def finite(loss: float, number: int) -> float:
    """Return `loss`, or raise DataError if training has diverged."""
    if not math.isfinite(loss):
        raise DataError(
            f"the loss is {loss} at step {number}: training has diverged. Lower "
            "optimizer.rows_lr or optimizer.encoder_lr (with --set) and start again."
        )
    return loss
