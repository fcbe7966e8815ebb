"""The seam of the library: one weight row and one bias per class, wherever they live."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from tapas.candidates import Candidates
from tapas.errors import UsageError
from tapas.exact_state import ExactState
from tapas.optim.gradient_queue import GradientQueue, RowGradients
from tapas.optim.row_updates import RowUpdate
from tapas.rng import check_generator
from tapas.selection import Selection
from tapas.shapes import check_ids, check_integer, check_query, check_shape
from tapas.tables.gradients import lookup, sampled_logits
from tapas.tables.placement import RowRange
from tapas.tables.ranks import GlobalBatch, RankGroup
from tapas.tables.second_pass import Question, SecondPass, second_pass_of
from tapas.torch_modes import outside_graphs

GiveBack: TypeAlias = Callable[[Tensor, Tensor], None]  # of gradients (N, D) and (N,)


class ClassTable(ExactState, ABC):
    """One weight row and one bias per class, wherever they happen to live.

    Everything else speaks to classes through these verbs, so a head never knows whether
    its rows are in this process, on another rank, or on a server. Ids are global:
    0 <= id < num_classes everywhere. Nothing here is differentiated but `sampled_logits`,
    `lookup` and `live_rows`.
    """

    num_classes: int
    dim: int
    exact_reads: ClassVar[bool]  # False if `rows` may miss updates still in flight
    ranks: RankGroup | None = None  # the processes that share the rows, if there are several

    def __init__(self, num_classes: int, dim: int):
        super().__init__()
        self.num_classes, self.dim = num_classes, dim
        self.gradients = GradientQueue(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if not self.gradients.serves:  # a shallow copy shares the queue of the original
            self.gradients.serve(self)

    @property
    @abstractmethod
    def row_optimizer(self) -> RowUpdate | None:
        """What moves rows in `backward`; None where they wait for an optimizer's step."""

    @property
    @abstractmethod
    def has_bias(self) -> bool:
        """Whether there are biases; where not they are 0 and have no gradient."""

    @property
    def num_rows(self) -> int:
        """Rows that are kept in this process."""
        return self.num_classes

    @property
    def row_range(self) -> RowRange:
        """Which rows its `state_dict` has, and in which order; by default all by id."""
        return RowRange.all_by_id(self.num_classes)

    @abstractmethod
    def move_rows(
        self, update: RowUpdate, gradients: RowGradients, state: dict[str, Tensor] | None
    ) -> None:
        """One step by `update` of the rows named, whose gradients are finite.

        `state` is that of an optimizer, which is filled in its first step; with None it is the
        table's own, of the fused option. Gradients of a repeated id are summed.
        """

    def check_update(self, update: RowUpdate) -> None:
        """An error if the rows cannot be moved by `update`."""

    def row_state_shapes(self, update: RowUpdate) -> dict[str, tuple[int, ...]]:
        """What an optimizer's state of these rows holds, by name."""
        return {}

    def row_state_marks(self) -> dict[str, Tensor]:
        """Entries of such a state that say whose rows they are, not what was learned."""
        return {}

    def check_row_state(self, update: RowUpdate, state: Mapping[str, Tensor]) -> None:
        """An error if `state`, an optimizer's, is not what `update` remembers of these rows."""
        found = {name: tuple(getattr(part, "shape", ())) for name, part in state.items()}
        if state and found != (wanted := self.row_state_shapes(update)):
            raise UsageError(
                f"this state is not that of a {update.name} for these rows: it has {found}, "
                f"expected {wanted}."
            )
        for name, part in state.items():
            whole = name in ("step", "layout")
            if not isinstance(part, Tensor) or part.is_meta or part.is_floating_point() == whole:
                raise UsageError(
                    f"{name} of an optimizer's state of rows is no such tensor: {part!r}."
                )
            if name == "step" and int(part) < 0:
                raise UsageError(f"an optimizer's state of rows has made {int(part)} steps.")

    def sum_over_ranks(self, value: float, formula: Callable[[], str]) -> float:
        """The sum of `value` over all ranks, whose optimizers must have the same `formula`."""
        return value

    def check_training(self) -> None:
        """An error if the rows cannot be trained in this process."""

    @property
    def num_shards(self) -> int:
        """Parts of the rows, each of which keeps its share in the second pass."""
        return 1

    @property
    def num_ranks(self) -> int:
        """Processes that call every verb together."""
        return 1

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where `rows` are returned, and where queries are expected."""

    def select(
        self,
        query: Tensor,
        pool: Candidates,
        keep: int,
        temperature: float,
        *,
        rule: Selection,
        own: Tensor,
        complete: bool,
        generator: torch.Generator,
    ) -> Candidates:
        """Second pass: the `keep` of `pool` that `rule` picks, where the rows live.

        `query` (A, D) are the queries that score, `own` (A, L) their targets (negative is
        padding), `complete` whether they are the whole batch. A pool of at most `keep`
        classes is returned as it is. All randomness comes from `generator`, one number
        for each class of the pool if the rule is random, so that no layout of the rows can
        change it.
        """
        question = Question(query, own, complete, temperature, rule)
        return self.second_pass(pool, keep, question, generator=generator)

    @torch.no_grad()
    def second_pass(
        self, pool: Candidates, keep: int, question: Question, *, generator: torch.Generator
    ) -> Candidates:
        """`select`, with what the pool is scored by in one piece."""
        with self.together():
            check_generator(generator)
            check_shape({"D": self.dim}, query=(question.query, "A D"), own=(question.own, "A L"))
            ask = self._ask(pool, keep, question, generator)
            return ask.pool if ask.is_settled else self.union(self.pick(ask))

    def sampled(
        self,
        meeting: GlobalBatch,
        pool: Candidates,
        keep: int,
        question: Question,
        *,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor]:
        """`select` and then `logits_of` what it keeps: all that a step asks of the rows."""
        with torch.no_grad():
            kept = self.pick(self._ask(pool, keep, question, generator))
        return self.logits_of(meeting, kept)

    def _ask(
        self, pool: Candidates, keep: int, question: Question, generator: torch.Generator
    ) -> SecondPass:
        # by a proposal of anybody's
        pool = Candidates(check_ids("pool", pool.ids, self.num_classes), pool.log_q)
        return second_pass_of(pool.to(self.device), keep, question, generator)

    @abstractmethod
    def pick(self, ask: SecondPass) -> Candidates:
        """The part of what the second pass keeps whose rows live here, by rising id."""

    def union(self, part: Candidates) -> Candidates:
        """What all have picked, of the `part` that was picked here."""
        return part

    @abstractmethod
    def read(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """`rows` without the check of `ids` and inside no_grad, for callers who see to both."""

    def borrow(self, ids: Tensor, *, biases: bool, trains: bool) -> tuple[Tensor, Tensor, GiveBack]:
        """Weights (N, D) and biases (N,) of `ids` (N,), and what takes their gradients later.

        Where `biases` are not asked for, they and their gradients are all 0. `trains` is whether
        gradients will come.
        """

        def give_back(weight_grad: Tensor, bias_grad: Tensor) -> None:
            self.gradients.add(ids, weight_grad, bias_grad)

        weight, bias = self.read(ids)
        return weight, bias if biases else torch.zeros_like(bias), give_back

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

    def together(self) -> AbstractContextManager[None]:
        """What goes wrong in here before the first verb is told to whoever waits in that verb."""
        return nullcontext()

    def rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (N, D) and biases (N,) of `ids` (N,), float32. Repeated ids are fine."""
        with torch.no_grad(), self.together():
            check_shape({}, ids=(ids, "N"))
            return self.read(check_ids("ids", ids, self.num_classes).to(self.device))

    def update(self, ids: Tensor, weight_grad: Tensor, bias_grad: Tensor) -> None:
        """Apply one optimizer step to `ids`. Gradients of a repeated id are summed first.

        Only the rows named move. A gradient that is not finite is an error and moves
        nothing.
        """
        with self.together():
            check_shape(
                {"D": self.dim},
                ids=(ids, "N"),
                weight_grad=(weight_grad, "N D"),
                bias_grad=(bias_grad, "N"),
            )
            ids = check_ids("ids", ids, self.num_classes)
            if not ids.numel() and self.num_ranks == 1:
                return
            # copies: the caller is free to reuse its own before an `accumulate` ends
            self._update(
                RowGradients(
                    ids.to(self.device, copy=True),
                    weight_grad.detach().to(self.device, torch.float32, copy=True),
                    bias_grad.detach().to(self.device, torch.float32, copy=True),
                )
            )

    def _update(self, gradients: RowGradients) -> None:
        self.gradients.update(gradients)

    def accumulate(self) -> AbstractContextManager[None]:
        """Hold back every fused update inside and apply them as one at the end.

        After an exception nothing of what was held is applied. Rows that an optimizer moves wait
        for its step anyway.
        """
        return self.gradients.hold()

    def sampled_logits(
        self, query: Tensor, target: Tensor, kept: Candidates
    ) -> tuple[Tensor, Tensor]:
        """What a sampled loss needs of the rows: two small tensors, whatever K is.

        Returns the logits of each example's own targets, (B, L), -inf for padding, and the
        log of the weighted sum over the kept classes that are not its own, (B,).
        `backward` through them sends the rows their gradients.
        """
        with self.together():
            query = check_query(query, self.dim)
            check_shape({"B": len(query)}, target=(target, "B L"))
            target = check_integer("target", target).to(self.device).contiguous()
            check_ids("target", target.clamp(min=0), self.num_classes)
            ids = check_ids("kept.ids", kept.ids, self.num_classes)
            if bool((ids[1:] <= ids[:-1]).any()):
                raise UsageError(
                    "kept.ids must be distinct and rise: an example's own target is looked up "
                    "among them. Sort them with their log_q."
                )
        return self.logits_of(self.meet(query, target), kept)

    def meet(
        self, query: Tensor, target: Tensor, context: Tensor | None = None, *, step: int = 0
    ) -> GlobalBatch:
        """The examples that are looked at together: `query` (B, D), `target` (B, L) of every rank.

        One process meets nobody. Ranks must agree on `step`.
        """
        return GlobalBatch(query, target, context, (len(query),), target.shape[1])

    def agree(self, what: str, value: object) -> None:
        """An error if ranks differ in `value`, of which the words are compared."""

    def mean_size(self, size: int) -> float:
        """The mean over ranks of what each calls its `size`."""
        return size

    def logits_of(self, meeting: GlobalBatch, kept: Candidates) -> tuple[Tensor, Tensor]:
        """`sampled_logits` of the examples that this process brought to the meeting."""
        return sampled_logits(self.gradients, self.read, meeting.query, meeting.target, kept)

    def _refuse_backward(self) -> None:
        fused = self.row_optimizer is not None and torch.is_grad_enabled()
        if fused and torch._C._current_graph_task_id() != -1:
            raise UsageError(
                "rows that move in `backward` were looked up inside of a backward pass, as "
                "torch.utils.checkpoint does: they may have moved since the first time. Leave "
                "row_optimizer out and use tapas.optim, or look rows up outside of the checkpoint."
            )

    @outside_graphs
    def lookup(self, ids: Tensor, *, padding_idx: int | None = None) -> Tensor:
        """Weights (..., D) of `ids` (...,), float32, as inputs of a model: tied weights.

        `backward` through them sends the rows their gradients; biases take no part. `padding_idx`,
        as in nn.Embedding, is a vector of 0 without a gradient; it need not be a class.
        """
        with self.together():
            self._refuse_backward()
            flat = check_integer("ids", ids).to(self.device).reshape(-1)
            if not isinstance(padding_idx, int | None):
                raise UsageError(f"padding_idx must be a whole number, got {padding_idx!r}.")
            place = None if padding_idx is None else (flat != padding_idx).nonzero()[:, 0]
            real = check_ids("ids", flat if place is None else flat[place], self.num_classes)
            rows = lookup(self, real, biases=False)[0]
        if place is not None:
            rows = rows.new_zeros(len(flat), self.dim).index_copy(0, place, rows)
        return rows.view(*ids.shape, self.dim)

    @outside_graphs
    def live_rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """`rows` of `ids` (N,), through which `backward` sends them their gradients.

        For losses that are no function of a softmax's sum. Rows travel to whoever asks.
        """
        with self.together():
            self._refuse_backward()
            check_shape({}, ids=(ids, "N"))
            flat = check_ids("ids", ids, self.num_classes).to(self.device)
            return lookup(self, flat, biases=True)

    def flush(self) -> None:
        """Return once every earlier `update` is visible to `rows`."""

    def close(self) -> None:
        """Release processes and sockets. Safe to call twice."""
