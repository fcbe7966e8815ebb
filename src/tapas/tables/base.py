"""The seam of the library: one weight row and one bias per class, wherever they live."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Tensor, nn

from tapas.candidates import Candidates
from tapas.compiling import outside_graphs
from tapas.errors import UsageError
from tapas.rng import check_generator
from tapas.selection import Selection
from tapas.shapes import check_ids, check_shape
from tapas.tables.checks import check_gradient
from tapas.tables.gradients import lookup, sampled_logits
from tapas.tables.meeting import Meeting
from tapas.tables.second_pass import Question, SecondPass, second_pass_of, uncorrected

GiveBack: TypeAlias = Callable[[Tensor, Tensor], None]  # of gradients (N, D) and (N,)


class ClassTable(nn.Module, ABC):
    """One weight row and one bias per class, wherever they happen to live.

    Everything else speaks to classes through these verbs, so a head never knows whether
    its rows are in this process, on another rank, or on a server. Ids are global:
    0 <= id < num_classes everywhere. Nothing here is differentiated but `sampled_logits`,
    `lookup` and `live_rows`.
    """

    num_classes: int
    dim: int
    exact_reads: ClassVar[bool]  # False if `rows` may miss updates still in flight

    def __init__(self, num_classes: int, dim: int):
        super().__init__()
        self.num_classes, self.dim = num_classes, dim
        self.frozen = False
        self._held: list[tuple[Tensor, Tensor, Tensor]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy taken inside `accumulate` is outside of it, or it would wait for ever."""
        return {**self.__dict__, "_held": None}

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """False freezes the rows, also those that no torch optimizer knows of."""
        self.frozen = not requires_grad
        return super().requires_grad_(requires_grad)

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
            ask = self._ask(pool, keep, question, generator)
            return ask.pool if ask.is_settled else self.union(self.pick(ask))

    def sampled(
        self,
        meeting: Meeting,
        pool: Candidates,
        keep: int,
        question: Question,
        *,
        generator: torch.Generator,
        corrected: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """`select` and then `logits_of` what it keeps: all that a step asks of the rows.

        Without `corrected` every kept class counts once, however it was drawn.
        """
        with torch.no_grad():
            kept = self.pick(self._ask(pool, keep, question, generator))
        return self.logits_of(meeting, kept if corrected else uncorrected(kept))

    def _ask(
        self, pool: Candidates, keep: int, question: Question, generator: torch.Generator
    ) -> SecondPass:
        check_generator(generator)
        check_shape({"D": self.dim}, query=(question.query, "A D"), own=(question.own, "A L"))
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

    def borrow(self, ids: Tensor, *, biases: bool) -> tuple[Tensor, Tensor, GiveBack]:
        """Weights (N, D) and biases (N,) of `ids` (N,), and what takes their gradients later.

        Where `biases` are not asked for, they and their gradients are all 0.
        """

        def give_back(weight_grad: Tensor, bias_grad: Tensor) -> None:
            self.receive(ids, weight_grad, bias_grad)

        weight, bias = self.read(ids)
        return weight, bias if biases else torch.zeros_like(bias), give_back

    @abstractmethod
    def write(self, ids: Tensor, weight_grad: Tensor, bias_grad: Tensor) -> None:
        """`update` without checks and without waiting for the end of `accumulate`."""

    @abstractmethod
    def top(self, query: Tensor, k: int, *, exclude: Tensor | None = None) -> tuple[Tensor, Tensor]:
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
            self.receive(
                ids.to(self.device),
                weight_grad.detach().to(self.device, torch.float32),
                bias_grad.detach().to(self.device, torch.float32),
            )

    def receive(self, ids: Tensor, weight_grad: Tensor, bias_grad: Tensor) -> None:
        """`update` for callers who know shapes and ids to be good."""
        check_gradient(weight_grad, bias_grad)
        if self._held is None:
            self.write(ids, weight_grad, bias_grad)
        else:  # copies: the caller is free to reuse its own
            self._held.append((ids.clone(), weight_grad.clone(), bias_grad.clone()))

    def accumulate(self) -> AbstractContextManager[None]:
        """Hold back every `update` inside and apply them as one at the end.

        After an exception nothing of what was held is applied.
        """
        return self._accumulating()

    @contextmanager
    def _accumulating(self) -> Iterator[None]:
        if self._held is not None:
            raise UsageError("this table is accumulating already; leave that block first.")
        self._held = []
        try:
            yield
            held, self._held = self._held, None
            if held:
                self.receive(*(torch.cat(part) for part in zip(*held, strict=True)))
        finally:
            self._held = None

    def sampled_logits(
        self, query: Tensor, target: Tensor, kept: Candidates
    ) -> tuple[Tensor, Tensor]:
        """What a sampled loss needs of the rows: two small tensors, whatever K is.

        Returns the logits of each example's own targets, (B, L), -inf for padding, and the
        log of the weighted sum over the kept classes that are not its own, (B,).
        `backward` through them sends the rows their gradients.
        """
        return self.logits_of(self.meet(query, target), kept)

    def meet(
        self, query: Tensor, target: Tensor, context: Tensor | None = None, *, step: int = 0
    ) -> Meeting:
        """The examples that are looked at together: `query` (B, D), `target` (B, L) of every rank.

        One process meets nobody. Ranks must agree on `step`.
        """
        return Meeting(query, target, context, (len(query),), target.shape[1])

    def agree(self, what: str, value: object) -> None:
        """An error if ranks differ in `value`, of which the words are compared."""

    def mean_size(self, size: int) -> float:
        """The mean over ranks of what each calls its `size`."""
        return size

    def logits_of(self, meeting: Meeting, kept: Candidates) -> tuple[Tensor, Tensor]:
        """`sampled_logits` of the examples that this process brought to the meeting."""
        return sampled_logits(self, meeting.query, meeting.target, kept)

    @outside_graphs
    def lookup(self, ids: Tensor) -> Tensor:
        """Weights (..., D) of `ids` (...,), float32, as inputs of a model.

        `backward` through them sends the rows their gradients; biases take no part.
        """
        with self.together():
            flat = check_ids("ids", ids, self.num_classes).to(self.device).reshape(-1)
            return lookup(self, flat, biases=False)[0].view(*ids.shape, self.dim)

    @outside_graphs
    def live_rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """`rows` of `ids` (N,), through which `backward` sends them their gradients.

        For losses that are no function of a softmax's sum. Rows travel to whoever asks. One
        call is one update: ask for all that a loss needs at once.
        """
        with self.together():
            check_shape({}, ids=(ids, "N"))
            flat = check_ids("ids", ids, self.num_classes).to(self.device)
            return lookup(self, flat, biases=True)

    def flush(self) -> None:
        """Return once every earlier `update` is visible to `rows`."""

    def close(self) -> None:
        """Release processes and sockets. Safe to call twice."""
