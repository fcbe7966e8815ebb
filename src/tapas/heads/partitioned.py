"""Partitioned vocabulary (Jean et al. 2015): a softmax over the targets of a partition.

    loss_b = log( sum_{k in V'} exp(s_bk) ) - s_by,       V' = distinct targets of the partition

The training steps are partitioned in their order; a partition ends with the step in which its
number of distinct targets reaches `num_samples`. All its steps share V'. Q is uniform over V', so
the correction is the same for all classes and cancels.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Unpack
from zlib import crc32

import torch
from torch import Tensor

from tapas.candidates import Candidates
from tapas.errors import UsageError
from tapas.heads.facts import NUM_SAMPLES, Options
from tapas.heads.flat import FlatOptions, SharedSample
from tapas.shapes import check_ids, check_integer, check_samples
from tapas.tables.ranks import GlobalBatch

LONGEST_PARTITION = 10_000  # steps; repeated data may never have enough distinct targets


class PartitionedSoftmax(SharedSample):
    """A softmax over the targets of the present steps, as many as make `num_samples` classes.

    Args:
        num_samples: distinct targets that complete a partition; V' has a few more, from its last
            step.
        upcoming: function that returns the targets of training step `step`, of all ranks, in any
            shape, negative or `ignore_index` for padding; None after the last step. It must
            always return the same for a step, also after a resume.
        options: `table`, `row_optimizer`, `bias`, `seed` and so on; see `FlatHead`.

    The softmax is restricted to V': the partition sum over all classes is not estimated, and
    classes outside V' are not pushed down until a partition has them. A partition has at most
    10,000 steps. A target outside V', which `upcoming` did not return, still counts in the loss
    of its example.
    """

    method = "partitioned"
    title = "Partitioned vocabulary"
    paper = "Jean et al. 2015"
    bibtex = ("jean2015large",)
    options: ClassVar[Options] = {"num_samples": NUM_SAMPLES}
    reads = frozenset({"upcoming"})
    learns_state = True
    learns_from_batch = True
    targets_softmax = False

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        *,
        num_samples: int,
        upcoming: Callable[[int], Tensor | None],
        **options: Unpack[FlatOptions],
    ):
        super().__init__(num_classes, dim, **options)
        self.num_samples = check_samples(num_samples, self.num_classes)
        if not callable(upcoming):
            raise UsageError(
                "upcoming must be a function from a step to the targets of that step, got "
                f"{upcoming!r}. For a list of batches: lambda step: targets[step % len(targets)]."
            )
        self.upcoming = upcoming
        self.part_start = 0  # first step of the present partition
        self._partition: tuple[int, Tensor] | None = None

    def candidates(self, batch: GlobalBatch) -> Candidates:
        _, ids = self.partition
        return Candidates(ids, torch.zeros(len(ids), dtype=torch.float32, device=ids.device))

    @property
    def partition(self) -> tuple[int, Tensor]:
        """The step after the present partition, and its V': (K,) ids, ascending."""
        if self._partition is None:
            self._partition = self._look_ahead(self.part_start)
        return self._partition

    def _costs(
        self, batch: GlobalBatch, counted: Tensor | None, factor: float | None = None
    ) -> Tensor:
        if self._is_training() and not self.part_start <= self.step < self.partition[0]:
            self.part_start, self._partition = self.step, None
        return super()._costs(batch, counted, factor)

    def _look_ahead(self, start: int) -> tuple[int, Tensor]:
        with self.ranks.share_errors():
            seen = torch.zeros(self.num_classes, dtype=torch.bool, device="cpu")
            count, end = 0, start
            while count < self.num_samples and end - start < LONGEST_PARTITION:
                targets = self._targets_of(end)
                if targets is None:
                    break
                count += int((~seen[targets]).sum())
                seen[targets] = True
                end += 1
            if end == start:
                raise UsageError(
                    f"upcoming({start}) is None, the end of training, but step {start} was called. "
                    "Return targets for every step, or stop there."
                )
            ids = seen.nonzero()[:, 0]
            self.ranks.check_equal(
                f"the partition from step {start}", (end, crc32(ids.numpy().tobytes()))
            )
        return end, ids.to(self.table.device)

    def _targets_of(self, step: int) -> Tensor | None:
        """Distinct targets of `step`, or None after the last step."""
        targets = self.upcoming(step)
        if targets is None:
            return None
        ids = torch.unique(check_integer(f"upcoming({step})", targets).cpu())
        ids = ids[(ids >= 0) & (ids != self.ignore_index)]
        return check_ids(f"upcoming({step})", ids, self.num_classes)

    def state_numbers(self) -> dict[str, int | float]:
        return {**super().state_numbers(), "part_start": self.part_start}

    def load_state_numbers(self, numbers: dict[str, Any]) -> None:
        super().load_state_numbers(numbers)
        self.part_start, self._partition = numbers["part_start"], None

    def extra_repr(self) -> str:
        return f"num_samples={self.num_samples}"
