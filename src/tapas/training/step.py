"""Where the steps of training are taken: in this process, on all ranks, or by workers elsewhere."""

import math
from collections.abc import Iterable
from typing import Any, Protocol

import torch

from tapas.checkpoints.folder import Checkpoint, CheckpointFolder
from tapas.checkpoints.model import (
    contents_of,
    load_model_state,
    load_optimizer_state,
)
from tapas.data.windows import SequenceBatch, Windows
from tapas.errors import DataError
from tapas.rng import stream
from tapas.tables.ranks import ONE_PROCESS, Ranks
from tapas.training.journal import Value
from tapas.training.model import SequenceModel
from tapas.training.parallel import average_gradients, local_batch


class StepRunner(Protocol):
    """What a trainer asks for, step by step, and what it keeps of them."""

    def run_step(self, number: int, until: int) -> float:
        """The loss of step `number`; all before it have been taken.

        Steps before `until` may be begun meanwhile.
        """
        ...

    def drain(self) -> list[float]:
        """Losses of the steps that were begun and not taken, in order; none is under way then."""
        ...

    def save(
        self, checkpoints: CheckpointFolder, step: int, state: dict[str, Any], *, best: bool
    ) -> None:
        """Save all that was learned, and `state`, while no step is under way."""
        ...

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from what `save` has saved."""
        ...

    def events(self) -> Iterable[tuple[str, dict[str, Value]]]:
        """What the journal shall say, event by event, of the steps since it was last asked."""
        ...


class LocalSteps:
    """Steps of `model` by this process, together with the other `ranks`."""

    def __init__(
        self,
        model: SequenceModel,
        windows: Windows,
        optimizer: torch.optim.Optimizer,
        *,
        seed: int,
        clip: float | None,
        ranks: Ranks = ONE_PROCESS,
    ):
        self.model, self.windows, self.optimizer = model, windows, optimizer
        self.seed, self.clip, self.ranks = seed, clip, ranks

    def run_step(self, number: int, until: int) -> float:
        return step(
            self.model,
            self.optimizer,
            self.windows.batch(number),
            seed=self.seed,
            number=number,
            clip=self.clip,
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

    def events(self) -> Iterable[tuple[str, dict[str, Value]]]:
        return ()


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
    """One step of training, number `number` of the run with `seed`; returns the sampled loss.

    `batch` is that of all ranks; each takes its part, and the loss is the mean over all.
    """
    name = ("dropout", number) if ranks is ONE_PROCESS else ("dropout", number, ranks.rank)
    optimizer.zero_grad(set_to_none=True)
    loss = model.loss(local_batch(ranks, batch), generator=stream(seed, *name))
    value = finite(float(loss.detach()), number)
    loss.backward()  # type: ignore[no-untyped-call]  # rows move at its end, each once
    learned = (p for group in optimizer.param_groups for p in group["params"])
    value = average_gradients(ranks, learned, value)
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.encoder.parameters(), clip)
    optimizer.step()
    return value


def finite(loss: float, number: int) -> float:
    """`loss`, or an error that says at which step training has diverged."""
    if not math.isfinite(loss):
        raise DataError(
            f"the loss is {loss} at step {number}: training has diverged. Lower "
            "optimizer.rows_lr or optimizer.encoder_lr (with --set) and begin again."
        )
    return loss
