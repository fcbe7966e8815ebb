"""What every head promises: from queries to a loss, and from queries to classes."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from math import nan
from operator import index
from typing import ClassVar

import torch
from torch import Tensor, nn

from tapas.compiling import outside_graphs
from tapas.errors import UsageError
from tapas.heads.batch import Batch, check_somebody, narrow, prepare
from tapas.precision import in_float32
from tapas.shapes import check_tensor

REDUCTIONS = ("mean", "sum", "none")


class Head(nn.Module, ABC):
    """A way to learn, and to ask, which of `num_classes` classes goes with a query (B, D).

    `forward` is the training loss, each method's own; the verbs below it are exact whatever the
    method, and look at all classes. Rows that a step does not touch do not move. `step` counts
    training calls (those with gradients on, in training mode); all draws are named by (seed,
    step), so that a resumed run repeats them.
    """

    method: ClassVar[str]  # its name in a configuration
    bibtex: ClassVar[tuple[str, ...]]  # keys of the papers to cite, see `tapas.heads.citations`

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        reduction: str = "mean",
        ignore_index: int = -100,
        seed: int = 0,
    ):
        super().__init__()
        self.num_classes, self.dim = num_classes, dim
        self.reduction, self.ignore_index = reduction, ignore_index
        self.seed, self.step = check_seed(seed), 0
        self._num_scores, self._num_scored = 0.0, 0
        check_reduction(reduction)

    @outside_graphs
    @in_float32
    def forward(
        self,
        query: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        *,
        context: Tensor | None = None,
    ) -> Tensor:
        """The training loss.

        Args:
            query:   (..., D) encoder outputs.
            target:  (...,) or (..., L) class ids; `ignore_index` is padding.
            weight:  the shape of `target`. Left out, an example's targets share 1 evenly.
            context: previous class of each example, for methods that look at it.
        """
        with self._together():
            batch = self._prepare(query, target, weight)
            context = narrow(context, batch)
        loss, mean_size = self._losses(batch, context)
        self._count_step()
        return batch.reduce(loss, self.reduction, mean_size)

    @abstractmethod
    def _losses(self, batch: Batch, context: Tensor | None) -> tuple[Tensor, float]:
        """(B,) the loss of each example, and the mean over ranks of B."""

    @abstractmethod
    def top(self, query: Tensor, k: int, *, exclude: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The k best of all classes for `query` (..., D): scores and ids, (..., k).

        Exact; equal scores by rising id. `exclude` (..., E) are classes to leave
        out of a row, negative is padding; where fewer than k remain ids end in -1.
        """

    @abstractmethod
    def log_prob(self, query: Tensor, ids: Tensor) -> Tensor:
        """Exact log-probability of `ids` (..., L) given `query` (..., D), over all classes."""

    @property
    def scores_per_example(self) -> float:
        """How many scores a training step computes for each example, its own targets aside.

        Where steps differ, the mean of those since the head was built; NaN before the first.
        """
        return self._num_scores / self._num_scored if self._num_scored else nan

    def _note_scores(self, number: float) -> None:
        """This step computes `number` scores for an example; counted if it is training."""
        if self._is_training():
            self._num_scores, self._num_scored = self._num_scores + number, self._num_scored + 1

    @abstractmethod
    def accumulate(self) -> AbstractContextManager[None]:
        """Several backward passes, one update of the rows at the end of the block."""

    @in_float32
    @torch.no_grad()
    def full_loss(self, query: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """The exact softmax loss over all classes, whatever `forward` trains by."""
        with self._together():
            batch = self._prepare(query, target, weight)
            mean_size = self.mean_size(len(batch.query))
        check_somebody(mean_size)
        log_prob = self.log_prob(batch.query, batch.target.clamp(min=0))
        loss = -log_prob if batch.weight is None else -log_prob * batch.weight
        return batch.reduce(loss.sum(dim=1), self.reduction, mean_size)

    def papers(self) -> tuple[str, ...]:
        """Keys of what to cite for a head as this one is set up."""
        return self.bibtex

    def get_extra_state(self) -> dict[str, int]:
        return {"step": self.step, "seed": self.seed}

    def set_extra_state(self, state: dict[str, int]) -> None:
        if state["seed"] != self.seed:
            raise UsageError(
                f"this state was drawn with seed {state['seed']}, the head has seed "
                f"{self.seed}. Build the head with seed={state['seed']} to resume."
            )
        self.step = state["step"]

    def _prepare(self, query: Tensor, target: Tensor, weight: Tensor | None) -> Batch:
        return prepare(
            query,
            target,
            weight,
            num_classes=self.num_classes,
            dim=self.dim,
            ignore_index=self.ignore_index,
            may_be_empty=self._may_be_empty,
        )

    @property
    def wants_context(self) -> bool:
        """Whether `forward` looks at the previous class of each example."""
        return False

    @property
    def _may_be_empty(self) -> bool:
        """Whether others may have examples where this process has none."""
        return False

    @abstractmethod
    def _together(self) -> AbstractContextManager[None]:
        """`ClassTable.together` of the head's rows."""

    def mean_size(self, size: int) -> float:
        """The mean over ranks of what each calls its `size`."""
        return size

    def _is_training(self) -> bool:
        """Whether this call is a step: what a head learns beside its rows moves then alone."""
        return self.training and torch.is_grad_enabled()

    def _count_step(self) -> None:
        if self._is_training():
            self.step += 1

    def _flat(self, name: str, ids: Tensor, query: Tensor) -> Tensor:
        """`ids` (..., E), called `name`, one row for each of `query` (..., D), as (B, E)."""
        check_tensor(name, ids)
        if ids.dim() != query.dim() or ids.shape[:-1] != query.shape[:-1]:
            pad = " Pad rows with -1." if name == "exclude" else ""
            raise UsageError(
                f"{name} has shape {tuple(ids.shape)}; expected one row of ids for each query of "
                f"{tuple(query.shape)}.{pad}"
            )
        return ids.reshape(query.shape[:-1].numel(), ids.shape[-1])


def check_seed(seed: int) -> int:
    try:  # a plain int: torch.load refuses numpy's in a checkpoint
        return index(seed)
    except TypeError:
        raise UsageError(f"seed must be a whole number, got {seed!r}.") from None


def check_reduction(reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise UsageError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}.")
