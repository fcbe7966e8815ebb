"""The seam of the library: one weight row and one bias per class, wherever they live."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeAlias, overload

import torch
from torch import Tensor

from tapas.candidates import Candidates
from tapas.errors import UsageError
from tapas.exact_state import ExactState
from tapas.optim.gradient_queue import GradientQueue
from tapas.optim.row_store import RowGradients, RowStore
from tapas.shapes import check_ids, check_integer, check_positive, check_query, check_shape
from tapas.tables.gradients import lookup, sampled_logits
from tapas.tables.placement import RowRange
from tapas.tables.ranks import ONE_PROCESS, GlobalBatch, Ranks
from tapas.tables.second_pass import SecondPass
from tapas.torch_modes import outside_graphs

SendGradients: TypeAlias = Callable[[Tensor, Tensor], None]  # of gradients (N, D) and (N,)


class ClassTable(RowStore, ExactState, ABC):
    """One weight row and one bias per class, wherever they happen to live.

    Everything else speaks to classes through ten verbs, so that a head never knows whether its
    rows are in this process, on another rank, or on a server:

        rows  lookup  select  sampled_logits  topk  log_partition  update  accumulate  flush  close

    Ids are global: 0 <= id < num_classes everywhere. Nothing here is differentiated but
    `sampled_logits` and `lookup`. Where several processes share the rows, all of `ranks` call
    every verb together, each with examples or ids of its own, which may be none.

    A backend writes `_read`, `_select_here`, `topk`, `log_partition`, what `RowStore` asks for,
    and whatever else it can do better.
    """

    num_classes: int
    dim: int
    ranks: Ranks = ONE_PROCESS  # the processes that share the rows

    def __init__(self, num_classes: int, dim: int):
        super().__init__()
        self.num_classes, self.dim = num_classes, dim
        self.gradients = GradientQueue(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if not self.gradients.has_table:  # a shallow copy shares the queue of the original
            self.gradients.set_table(self)

    @property
    def num_shards(self) -> int:
        """Parts of the rows, each of which keeps its quota in the second pass."""
        return 1

    @property
    def row_range(self) -> RowRange:
        """Which rows its `state_dict` has, and in which order; by default all by id."""
        return RowRange.all_by_id(self.num_classes)

    @property
    def num_rows(self) -> int:
        return self.num_classes

    def rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (N, D) and biases (N,) of `ids` (N,), float32. Repeated ids are fine."""
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
        """Weights (..., D) of `ids` (...,), float32, as an nn.Embedding gives them.

        `backward` through them sends the rows their gradients: for the inputs of a model (tied
        weights), or for losses that are no function of a softmax's sum. Rows travel to whoever
        asks. With `return_bias` biases (...,) come beside them; else they take no part.
        `padding_idx` is a vector of 0 without a gradient; it need not be a class.
        """
        with self.ranks.share_errors():
            self._refuse_backward()
            flat = check_integer("ids", ids).to(self.device).reshape(-1)
            if not isinstance(padding_idx, int | None):
                raise UsageError(f"padding_idx must be a whole number, got {padding_idx!r}.")
            place = None if padding_idx is None else (flat != padding_idx).nonzero()[:, 0]
            real = check_ids("ids", flat if place is None else flat[place], self.num_classes)
            weight, bias = lookup(self, real, biases=return_bias)
        if place is not None:
            weight = weight.new_zeros(len(flat), self.dim).index_copy(0, place, weight)
            bias = bias.new_zeros(len(flat)).index_copy(0, place, bias)
        weight = weight.view(*ids.shape, self.dim)
        return (weight, bias.view(ids.shape)) if return_bias else weight

    @torch.no_grad()
    def select(self, pool: Candidates, second_pass: SecondPass | None) -> Candidates:
        """The classes of `pool` that `second_pass` keeps, by rising id; all of them if it is None.

        Every rank passes the same and gets the same.
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
        """What a sampled loss needs of the rows: two small tensors, however many are kept.

        Returns, for the examples that this process brought to the batch, the logits of their
        targets, (B, L), -inf for padding, and the log of the weighted sum over those of the kept
        classes that are no target of the example, (B,). `backward` through them sends the rows
        their gradients. `batch` is that of `ranks.batch`, its ids checked.
        """
        with torch.no_grad():
            kept = self._kept_here(pool, second_pass)
        return sampled_logits(self.gradients, self._read, batch.query, batch.target, kept)

    @abstractmethod
    def topk(
        self, query: Tensor, k: int, *, exclude: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The k best classes for each row of `query` (B, D): scores and ids, (B, k).

        Exact; equal scores by rising id. `exclude` (B, E) are classes to leave out of a
        row (negative is padding); where fewer than k remain, ids end in -1 and scores in
        -inf.
        """

    @abstractmethod
    def log_partition(self, query: Tensor) -> Tensor:
        """Exact log of the sum over all classes of exp(logit), (B,)."""

    def update(self, ids: Tensor, weight_grad: Tensor, bias_grad: Tensor) -> None:
        """Apply one optimizer step to `ids`. Gradients of a repeated id are summed first.

        Only the rows named move. A gradient that is not finite is an error and moves
        nothing.
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
            # copies: the caller is free to reuse its own before an `accumulate` ends
            self._update(
                RowGradients(
                    ids.to(self.device, copy=True),
                    weight_grad.detach().to(self.device, torch.float32, copy=True),
                    bias_grad.detach().to(self.device, torch.float32, copy=True),
                )
            )

    def accumulate(self) -> AbstractContextManager[None]:
        """Hold back every fused update inside and apply them as one at the end.

        After an exception nothing of what was held is applied. Rows that an optimizer moves wait
        for its step anyway.
        """
        return self.gradients.hold()

    def flush(self) -> None:
        """Return once every earlier `update` is visible to `rows`."""

    def close(self) -> None:
        """Release processes and sockets. Safe to call twice."""

    @abstractmethod
    def _read(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """`rows` of ids that are checked, on the table's device, inside no_grad."""

    @abstractmethod
    def _select_here(self, pool: Candidates, second_pass: SecondPass) -> Candidates:
        """What the second pass keeps of the classes whose rows this process has, by rising id."""

    def _fetch(
        self, ids: Tensor, *, biases: bool, trains: bool
    ) -> tuple[Tensor, Tensor, SendGradients]:
        """Weights (N, D) and biases (N,) of `ids` (N,), and what takes their gradients later.

        Where `biases` are not asked for, they and their gradients are all 0. `trains` is whether
        gradients will come.
        """

        def send(weight_grad: Tensor, bias_grad: Tensor) -> None:
            self.gradients.add(ids, weight_grad, bias_grad)

        weight, bias = self._read(ids)
        return weight, bias if biases else torch.zeros_like(bias), send

    def _update(self, gradients: RowGradients) -> None:
        self.gradients.update(gradients)

    def _kept_here(self, pool: Candidates, second_pass: SecondPass | None) -> Candidates:
        """What of `pool` stays, of the classes whose rows are here; without a second pass all."""
        pool = self._check_candidates(pool, second_pass)
        return pool if second_pass is None else self._select_here(pool, second_pass)

    def _check_candidates(self, pool: Candidates, second_pass: SecondPass | None) -> Candidates:
        """`pool`, which a proposal of anybody's may have drawn, on the table's device."""
        ids = pool.ids
        size = ids.shape[0]
        if second_pass is not None and (drawn := second_pass.noise.shape[0]) not in (0, size):
            raise UsageError(
                f"the second pass was drawn for a pool of {drawn} classes, got one of {size}. Draw "
                "both anew for every batch."
            )
        if not size:
            return pool.to(self.device)
        found: Any = ids.numpy() if ids.is_cpu else ids  # half the time of torch for a few
        if not bool((found[1:] > found[:-1]).all()):
            raise UsageError(
                "the ids of candidates must be distinct and rise: an example's own target is "
                "looked up among them. Sort them with their log_q."
            )
        if found[0] < 0 or found[-1] >= self.num_classes:
            check_ids("pool", ids, self.num_classes)  # which names the class
        return pool.to(self.device)

    def _check_topk(
        self, query: Tensor, k: int, exclude: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """What `topk` is asked, as (B, D) float32 and (B, E) int64, or an error."""
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
                "rows that move in `backward` were looked up inside of a backward pass, as "
                "torch.utils.checkpoint does: they may have moved since the first time. Leave "
                "row_optimizer out and use tapas.optim, or look rows up outside of the checkpoint."
            )
