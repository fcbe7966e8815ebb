"""`ClassTable`: the interface to class rows in this process, on other ranks or on servers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeAlias, overload

import torch
from torch import Tensor, nn

from tapas.candidates import Candidates
from tapas.errors import UsageError
from tapas.exact_state import ExactState
from tapas.optim.gradient_queue import GradientQueue
from tapas.optim.row_store import RowGradients, RowStore
from tapas.shapes import (
    check_ids,
    check_int,
    check_integer,
    check_positive,
    check_query,
    check_shape,
)
from tapas.tables.gradients import StoredRows, lookup, sampled_costs, sampled_logits
from tapas.tables.placement import RowRange
from tapas.tables.ranks import ONE_PROCESS, GlobalBatch, Ranks
from tapas.tables.second_pass import SecondPass
from tapas.torch_modes import outside_graphs

SendGradients: TypeAlias = Callable[[Tensor, Tensor], None]  # of gradients (N, D) and (N,)


class ClassTable(RowStore, ExactState, ABC):
    """One weight row and one bias for each class.

    Heads use only these methods, so that they work alike with rows in this process, on other
    ranks and on servers:

        rows  lookup  select  sampled_logits  sampled_costs  topk  log_partition  update
        accumulate  flush  close

    Ids are global: 0 <= id < num_classes on every rank. Only `sampled_logits`, `sampled_costs`
    and `lookup` are differentiable. If several ranks share the rows, all of them must call the
    same methods in the same order, each with its own examples or ids, possibly none.

    A subclass implements `_read`, `_select_here`, `topk`, `log_partition` and the abstract
    methods of `RowStore`, and may override others.
    """

    num_classes: int
    dim: int
    ranks: Ranks = ONE_PROCESS  # the processes that share the rows

    def __init__(self, num_classes: int, dim: int):
        super().__init__()
        self.num_classes, self.dim = num_classes, dim
        self.gradients = GradientQueue(self)

    def __getattr__(self, name: str) -> Tensor | nn.Module:
        # the queue is needed several times in a step, and a module searches its parameters first
        found: nn.Module | None = self.__dict__.get("_modules", {}).get(name)
        return super().__getattr__(name) if found is None else found

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if not self.gradients.has_table:  # a shallow copy shares the queue of the original
            self.gradients.set_table(self)

    @property
    def num_shards(self) -> int:
        """Number of shards; each keeps its share of the classes in the second pass."""
        return 1

    @property
    def row_range(self) -> RowRange:
        """Which rows `state_dict` holds, in which order; by default all, by id."""
        return RowRange.all_by_id(self.num_classes)

    @property
    def num_rows(self) -> int:
        return self.num_classes

    def rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (N, D) and biases (N,) of `ids` (N,), float32. Ids may repeat."""
        with torch.no_grad(), self.ranks.share_errors():
            check_shape({}, ids=(ids, "N"))
            return self._read(check_ids("ids", ids, self.num_classes).to(self.device))

    @overload
    def lookup(self, ids: Tensor, *, padding_idx: int | None = None) -> Tensor: ...

    @overload
    def lookup(
        self, ids: Tensor, *, padding_idx: int | None = None, return_bias: Literal[True]
    ) -> tuple[Tensor, Tensor]: ...

    @outside_graphs
    def lookup(
        self, ids: Tensor, *, padding_idx: int | None = None, return_bias: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Weights (..., D) of `ids` (...,), float32, as from an nn.Embedding.

        Differentiable: use it for the inputs of a model (tied weights), or for losses that need
        rows themselves. With `return_bias`, also the biases (...,). `padding_idx`, which need
        not be a class, gives zeros and gets no gradient. Rows of other ranks or servers are
        sent to this process.
        """
        with self.ranks.share_errors():
            self._refuse_backward()
            flat = check_integer("ids", ids).to(self.device).reshape(-1)
            if padding_idx is not None:
                padding_idx = check_int("padding_idx", padding_idx)
            position = None if padding_idx is None else (flat != padding_idx).nonzero()[:, 0]
            real = check_ids("ids", flat if position is None else flat[position], self.num_classes)
            weight, bias = lookup(self, real, biases=return_bias)
        if position is not None:
            weight = weight.new_zeros(len(flat), self.dim).index_copy(0, position, weight)
            bias = bias.new_zeros(len(flat)).index_copy(0, position, bias)
        weight = weight.view(*ids.shape, self.dim)
        return (weight, bias.view(ids.shape)) if return_bias else weight

    @torch.no_grad()
    def select(self, pool: Candidates, second_pass: SecondPass | None) -> Candidates:
        """The classes of `pool` that `second_pass` keeps, by ascending id; all if it is None.

        Arguments and result are equal on all ranks.
        """
        with self.ranks.share_errors():
            if second_pass is not None:
                check_shape(
                    {"D": self.dim},
                    query=(second_pass.query, "A D"),
                    target=(second_pass.target, "A L"),
                )
            return self._kept_here(pool, second_pass)

    def sampled_logits(
        self, batch: GlobalBatch, pool: Candidates, second_pass: SecondPass | None = None
    ) -> tuple[Tensor, Tensor]:
        """The two terms of a sampled softmax loss, for the examples of this rank.

        Args:
            batch: from `ranks.batch`, with valid ids.
            pool: candidates, of which `second_pass` keeps some; all if it is None.

        Returns: the logits of the targets, (B, L), -inf for padding; and (B,) the log of the
        weighted sum of exp(logit) over the kept classes that are not targets of the example.
        Both are differentiable with respect to queries and rows.
        """
        kept, rows = self._kept_rows(batch, pool, second_pass)
        return sampled_logits(self.gradients, rows, batch.query, batch.target, kept)

    def sampled_costs(
        self,
        batch: GlobalBatch,
        pool: Candidates,
        second_pass: SecondPass | None = None,
        counted: Tensor | None = None,
        factor: float | None = None,
    ) -> Tensor:
        """-log p of each target of this rank's examples, (B, L), in nats; 0 for padding.

        Equal to `losses.target_costs` of `sampled_logits`, in fewer steps. `counted` (B, L) is
        False for padding and for a target that is listed again, which counts in the partition
        sum only once; all True if left out. With `factor`, the result is a scalar: the sum of all
        costs times `factor`.
        """
        kept, rows = self._kept_rows(batch, pool, second_pass)
        return sampled_costs(self.gradients, rows, batch.query, batch.target, kept, counted, factor)

    @abstractmethod
    def topk(
        self, query: Tensor, k: int, *, exclude: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The k best classes for each row of `query` (B, D): scores and ids, (B, k).

        Exact; ties are ordered by ascending id. `exclude` (B, E) are classes to leave out for
        each query (negative is padding). If fewer than k remain, scores end in -inf and ids in
        -1.
        """

    def topk_log_prob(
        self, query: Tensor, k: int, *, exclude: Tensor | None = None, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """`topk` with log-probabilities instead of scores.

        They are those of the softmax of `scale` > 0 times the logits, over all classes.
        """
        score, ids = self.topk(query, k, exclude=exclude)
        return scale * score - self.log_partition(query, scale=scale)[:, None], ids

    @abstractmethod
    def log_partition(self, query: Tensor, *, scale: float = 1.0) -> Tensor:
        """The exact log of the sum of exp(`scale` * logit) over all classes, (B,)."""

    def update(self, ids: Tensor, weight_grad: Tensor, bias_grad: Tensor) -> None:
        """Apply one optimizer step to the rows `ids` (N,), and to no others.

        `weight_grad` is (N, D) and `bias_grad` (N,); gradients of repeated ids are summed. Raises
        UsageError, and moves nothing, if a gradient is not finite.
        """
        with self.ranks.share_errors():
            check_shape(
                {"D": self.dim},
                ids=(ids, "N"),
                weight_grad=(weight_grad, "N D"),
                bias_grad=(bias_grad, "N"),
            )
            ids = check_ids("ids", ids, self.num_classes)
            if not ids.numel() and self.ranks.size == 1:
                return
            # copies: the caller may reuse its tensors before an `accumulate` block ends
            self._update(
                RowGradients(
                    ids.to(self.device, copy=True),
                    weight_grad.detach().to(self.device, torch.float32, copy=True),
                    bias_grad.detach().to(self.device, torch.float32, copy=True),
                )
            )

    def accumulate(self) -> AbstractContextManager[None]:
        """Collect the fused updates of a block and apply them as one at its end.

        After an exception none is applied. Has no effect on rows that an optimizer moves.
        """
        return self.gradients.hold()

    def flush(self) -> None:
        """Wait until every earlier `update` is visible to `rows`."""

    def close(self) -> None:
        """Release processes and sockets. Safe to call twice."""

    @torch.no_grad()
    def _kept_rows(
        self, batch: GlobalBatch, pool: Candidates, second_pass: SecondPass | None
    ) -> tuple[Candidates, StoredRows]:
        """The kept classes of `pool`, and where the rows of these and of the targets are."""
        kept = self._kept_here(pool, second_pass)
        target = batch.target
        weight, bias = self._read(torch.cat([target.reshape(-1).clamp(min=0), kept.ids]))
        at = torch.arange(len(weight), device=weight.device)
        target_at = at[: target.numel()].view_as(target).masked_fill(target < 0, -1)
        return kept, StoredRows(weight, bias, target_at, at[target.numel() :])

    @abstractmethod
    def _read(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """`rows` of valid ids on the table's device, inside no_grad."""

    @abstractmethod
    def _select_here(self, pool: Candidates, second_pass: SecondPass) -> Candidates:
        """The classes that the second pass keeps among rows of this process, by ascending id."""

    def _fetch(
        self, ids: Tensor, *, biases: bool, trains: bool
    ) -> tuple[Tensor, Tensor, SendGradients]:
        """Weights (N, D) and biases (N,) of `ids` (N,), and a function that takes their gradients.

        Without `biases`, biases and their gradients are 0. `trains` says whether gradients will
        follow.
        """

        def send(weight_grad: Tensor, bias_grad: Tensor) -> None:
            self.gradients.add(ids, weight_grad, bias_grad)

        weight, bias = self._read(ids)
        return weight, bias if biases else torch.zeros_like(bias), send

    def _update(self, gradients: RowGradients) -> None:
        self.gradients.update(gradients)

    def _kept_here(self, pool: Candidates, second_pass: SecondPass | None) -> Candidates:
        """The kept classes of `pool` with rows in this process; all of it without a second pass."""
        pool = self._check_candidates(pool, second_pass)
        if second_pass is None:
            return pool
        with torch.no_grad():
            return self._select_here(pool, second_pass)

    def _check_candidates(self, pool: Candidates, second_pass: SecondPass | None) -> Candidates:
        """`pool` on the table's device; an error if its ids are invalid."""
        ids = pool.ids
        size = ids.shape[0]
        if second_pass is not None and (drawn := second_pass.noise.shape[0]) not in (0, size):
            raise UsageError(
                f"the second pass was drawn for a pool of {drawn} classes, got one of {size}. Draw "
                "both again for every batch."
            )
        if not size or (pool.below is not None and pool.below <= self.num_classes):
            return pool.to(self.device)
        found: Any = ids.numpy() if ids.is_cpu else ids  # twice as fast as torch for few ids
        if not bool((found[1:] > found[:-1]).all()):
            raise UsageError(
                "the ids of candidates must be distinct and ascending, because targets are looked "
                "up among them. Sort ids and log_q together."
            )
        if found[0] < 0 or found[-1] >= self.num_classes:
            check_ids("pool", ids, self.num_classes)  # which names the class
        return pool.to(self.device)

    def _check_topk(
        self, query: Tensor, k: int, exclude: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Valid arguments of `topk`: query (B, D) float32 and exclude (B, E) int64."""
        query = check_query(query, self.dim)
        check_positive("k", k)
        if k > self.num_classes:
            raise UsageError(f"k is {k}, but there are only {self.num_classes} classes.")
        if exclude is not None:
            check_shape({"B": query.shape[0]}, exclude=(exclude, "B E"))
            exclude = check_integer("exclude", exclude).to(self.device)
            check_ids("exclude", exclude.clamp(min=0), self.num_classes)
        return query, exclude

    def _refuse_backward(self) -> None:
        fused = self.row_optimizer is not None and torch.is_grad_enabled()
        if fused and torch._C._current_graph_task_id() != -1:
            raise UsageError(
                "rows with a fused row_optimizer were looked up inside a backward pass, as "
                "torch.utils.checkpoint does: they may have moved since the first time. Use an "
                "optimizer of tapas.optim instead, or look rows up outside the checkpoint."
            )
