"""`Head`, the base class of all heads: the training loss, exact top-k and probabilities."""

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import inf, nan
from typing import Any, ClassVar, Self, TypedDict

import torch
from torch import Tensor, nn

from tapas.errors import UsageError, choice
from tapas.exact_state import ExactState
from tapas.heads.batch import Batch, check_any_example, prepare
from tapas.heads.cross_entropy import ARGUMENTS, ATTRIBUTES, NO_TARGET, OPTIONS, refuse_names
from tapas.heads.facts import BuildContext, Options, default_num_samples
from tapas.rng import check_seed
from tapas.shapes import check_int, check_tensor
from tapas.tables import ClassTable
from tapas.tables.ranks import ONE_PROCESS, Ranks
from tapas.torch_modes import in_float32, outside_graphs

_ARGUMENTS = dict.fromkeys(("query", "target", "target_weight", "context"))
REDUCTIONS = ("mean", "sum", "none")
MOST_SCALE = 4096  # a GradScaler starts at 65536; weights of losses are far smaller


class LossOptions(TypedDict, total=False):
    """Keyword arguments that every head has."""

    reduction: str
    ignore_index: int
    seed: int


class Head(ExactState, ABC):
    """Learns and predicts which of `num_classes` classes belongs to a query (..., D).

    `forward` returns the training loss of the method. `topk`, `log_prob` and `full_loss` are exact
    for every method and read all classes. `backward` leaves gradients for the rows that the loss
    used, and the `step` of an optimizer from `tapas.optim` moves these rows and no others. `step`
    counts training calls (in training mode, with gradients enabled). All random draws depend only
    on (seed, step), so that a resumed run repeats them; `torch.manual_seed` has no effect.

    The class attributes below describe a method to `tapas train`, `tapas compare` and `tapas cite`.
    """

    method: ClassVar[str]  # name in a configuration
    title: ClassVar[str]  # name in a sentence
    paper: ClassVar[str] = ""  # authors and year; empty if there is nothing to cite
    bibtex: ClassVar[tuple[str, ...]] = ()  # keys of the papers to cite, in bibliography.bib
    options: ClassVar[Options] = {}  # by name of the constructor's argument
    reads: ClassVar[frozenset[str]] = frozenset()  # of `BuildContext`: counts, pairs, upcoming
    every_row: ClassVar[bool] = False  # a step reads and moves the rows of all classes
    learns_state: ClassVar[bool] = False  # beside rows, in the training process
    learns_from_batch: ClassVar[bool] = False  # the sample depends on the batch
    estimates_probabilities: ClassVar[bool] = False  # in training: see `sampled_log_prob`
    targets_softmax: ClassVar[bool] = True  # the loss is minimal if logits are log-probabilities

    @classmethod
    def from_options(cls, options: Mapping[str, Any], context: BuildContext) -> Self:
        """Build the head from a configuration: `options` has a value for each of `cls.options`."""
        resolved = cls.resolve_options(options, context.num_classes)
        return cls(**cls.arguments(resolved, context))

    @classmethod
    def arguments(cls, options: Mapping[str, Any], context: BuildContext) -> dict[str, Any]:
        """Keyword arguments of the constructor, from `options` and from the fields in `reads`."""
        plain = {name: options[name] for name in cls.options if not cls.options[name].argument}
        read = {name: context.read(name) for name in cls.reads}
        size = {"num_classes": context.num_classes, "dim": context.dim}
        return {**size, **plain, **read, "seed": context.seed}

    @classmethod
    def resolve_options(cls, options: Mapping[str, Any], num_classes: int) -> dict[str, Any]:
        """`options` with a default number of samples for `num_classes`, if none was given."""
        chosen = cls.sample_options(default_num_samples(num_classes))
        left_out = {name: value for name, value in chosen.items() if options[name] is None}
        return {**options, **left_out}

    @classmethod
    def sample_options(cls, num_samples: int) -> dict[str, int]:
        """The options that make a batch use `num_samples` classes; empty if there are none."""
        return {"num_samples": num_samples} if "num_samples" in cls.options else {}

    @classmethod
    def rows_per_step(cls, options: Mapping[str, Any], num_classes: int) -> tuple[int, int]:
        """For the memory plan: rows updated in a step beside targets, and pool size over that."""
        return num_classes if cls.every_row else options.get("num_samples") or 0, 1

    @classmethod
    def papers_of(cls, options: Mapping[str, Any]) -> tuple[str, ...]:
        """BibTeX keys to cite for a head with these options."""
        return cls.bibtex

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        reduction: str = "mean",
        ignore_index: int = -100,
        seed: int = 0,
    ):
        """Arguments are those in the docstring of the class."""
        super().__init__()
        self.num_classes, self.dim = num_classes, dim
        self.reduction, self.ignore_index = reduction, check_int("ignore_index", ignore_index)
        self.seed, self.step = check_seed(seed), 0
        self._num_scores, self._num_scored = 0.0, 0
        self._eval_passes: int | None = (
            None  # backward passes at the first call in eval() with gradients on
        )
        self._warned_of_eval = False
        check_reduction(reduction)

    @outside_graphs
    @in_float32
    def forward(
        self,
        query: Tensor,
        target: Tensor | None = None,
        target_weight: Tensor | None = None,
        *,
        context: Tensor | None = None,
        **unknown: object,
    ) -> Tensor:
        """The training loss, in nats and float32.

        Args:
            query:   (..., D) encoder outputs.
            target:  (...,) or (..., L) class ids; `ignore_index` is padding.
            target_weight: weight of each target, in the shape of `target`. If left out, the L
                targets of an example weigh 1 / L each, padding aside.
            context: (...,) previous class of each example, for proposals that use it.

        Returns: a scalar, or (...,) with reduction="none". "mean" is over the examples that have
        a target. On several ranks, the average of the ranks' losses is the mean over all examples.

        Raises UsageError for bad shapes or ids and if no example has a target, DataError if
        `query` holds NaN or inf.
        """
        with self.ranks.share_errors():
            if unknown:
                self._refuse_arguments(unknown)
            if target is None:
                raise UsageError(NO_TARGET)
            self._refuse_backward()
            batch = self._prepare(query, target, target_weight)
            context = batch.context_of(context)
        loss = self._loss(batch, context)
        self._count_step()
        return self._guarded(loss)

    def _refuse_arguments(self, unknown: Mapping[str, object]) -> None:
        refuse_names(unknown, ARGUMENTS)
        choice(f"argument of {type(self).__name__}", next(iter(unknown)), _ARGUMENTS)

    def extra_repr(self) -> str:
        """The settings that `print(head)` shows."""
        return ""

    def __getattr__(self, name: str) -> Tensor | nn.Module:
        """For names that only `nn.Linear` has, an error that says what a head has instead."""
        # the table is needed several times in a step, and a module searches its parameters first
        found: nn.Module | None = self.__dict__.get("_modules", {}).get(name)
        if found is not None:
            return found
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if name not in ATTRIBUTES:
                raise
            raise AttributeError(f"{error}: {ATTRIBUTES[name]}.") from None

    def __setattr__(self, name: str, value: Any) -> None:
        # counters change in every step, and a module sets them ten times as slowly
        if type(value) in (int, float) and name in self.__dict__:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def _refuse_backward(self) -> None:
        if torch._C._current_graph_task_id() != -1:
            raise UsageError(
                "the head was called inside of a backward pass, as torch.utils.checkpoint does: it "
                "would draw other classes than the first time. Checkpoint the encoder, not the "
                "head, which keeps no (B, C) scores."
            )

    def _guarded(self, loss: Tensor) -> Tensor:
        """`loss`; if rows move inside `backward`, with a check that its gradient is not scaled."""
        for table in self.tables():
            if table.row_optimizer is not None and loss.requires_grad:
                loss.register_hook(check_scale)  # type: ignore[no-untyped-call]
                break
        return loss

    @abstractmethod
    def _loss(self, batch: Batch, context: Tensor | None) -> Tensor:
        """The loss of `batch`, reduced as `reduction` says."""

    @abstractmethod
    def topk(
        self, query: Tensor, k: int, *, exclude: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The k classes with the highest scores for `query` (..., D): scores and ids, (..., k).

        Exact, over all classes; the lower id comes first among equal scores. `exclude` (..., E)
        has classes to leave out for each query, negative is padding; if fewer than k remain, the
        last ids are -1.
        """

    def topk_log_prob(
        self, query: Tensor, k: int, *, exclude: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`topk` with exact log-probabilities instead of scores; those of excluded classes count.

        The log-probability of an id of -1 is -inf.
        """
        _, ids = self.topk(query, k, exclude=exclude)
        log_prob = self.log_prob(query, ids.clamp(min=0))
        return log_prob.masked_fill(ids < 0, -torch.inf), ids

    @abstractmethod
    def log_prob(self, query: Tensor, ids: Tensor) -> Tensor:
        """(..., L) exact log-probabilities of `ids` (..., L) given `query` (..., D)."""

    @property
    def scores_per_example(self) -> float:
        """How many scores a training step computes for each example, beside those of its targets.

        If steps differ, the mean over the steps since the head was built; NaN before the first.
        """
        return self._num_scores / self._num_scored if self._num_scored else nan

    def _count_scores(self, number: float) -> None:
        """Record that a training step computes `number` scores for each example."""
        if self._is_training():
            self._num_scores, self._num_scored = self._num_scores + number, self._num_scored + 1

    def tables(self) -> list[ClassTable]:
        """All tables with rows of this head."""
        return [module for module in self.modules() if isinstance(module, ClassTable)]

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Several backward passes, then one update of the rows at the end of the block.

        Only for a fused `row_optimizer`: other rows wait for the optimizer's step anyway.
        """
        with ExitStack() as stack:
            for table in self.tables():
                stack.enter_context(table.accumulate())
            yield

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Also drops the gradients of the rows, like `zero_grad` of their optimizer."""
        for table in self.tables():
            table.gradients.discard()
        super().zero_grad(set_to_none)

    @in_float32
    @torch.no_grad()
    def full_loss(
        self, query: Tensor, target: Tensor, target_weight: Tensor | None = None
    ) -> Tensor:
        """The exact softmax loss over all classes, for any method; arguments as in `forward`."""
        with self.ranks.share_errors():
            batch = self._prepare(query, target, target_weight)
            mean_size = self.ranks.mean(len(batch.query))
        check_any_example(mean_size)
        log_prob = self.log_prob(batch.query, batch.target.clamp(min=0))
        loss = -log_prob if batch.weight is None else -log_prob * batch.weight
        return batch.reduce(loss.sum(dim=1), self.reduction, mean_size)

    def papers(self) -> tuple[str, ...]:
        """BibTeX keys to cite for this head with its settings."""
        return self.bibtex

    def state_numbers(self) -> dict[str, int | float]:
        return {"step": self.step, "seed": self.seed}

    def load_state_numbers(self, numbers: dict[str, Any]) -> None:
        self.step, self.seed = numbers["step"], numbers["seed"]

    def _check_device(self, query: Tensor) -> None:
        tables = self.tables()
        if tables and isinstance(query, Tensor) and (here := tables[0].device) != query.device:
            raise UsageError(
                f"query is on {query.device}, the rows of the head are on {here}. Move one of "
                f'them: query.to("{here}"), or head.to("{query.device}").'
            )

    def _prepare(self, query: Tensor, target: Tensor, weight: Tensor | None) -> Batch:
        self._check_device(query)
        return prepare(
            query,
            target,
            weight,
            num_classes=self.num_classes,
            dim=self.dim,
            ignore_index=self.ignore_index,
            may_be_empty=self.ranks.size > 1,
        )

    @property
    def wants_context(self) -> bool:
        """Whether `forward` uses the previous class of each example, `context`."""
        return False

    @property
    def ranks(self) -> Ranks:
        """The processes that share the rows of the head; all must make the same calls."""
        return ONE_PROCESS

    def _is_training(self) -> bool:
        """Whether a call is a training step; only these change what a head learns beside rows."""
        return self.training and torch.is_grad_enabled()

    def _count_step(self) -> None:
        if self._is_training():
            self.step += 1
            if self._eval_passes is not None:
                self._eval_passes = None
        elif torch.is_grad_enabled() and not self._warned_of_eval:
            self._watch_eval()

    def _watch_eval(self) -> None:
        """Warn if calls in eval() are followed by backward passes: their draws do not change."""
        passes = sum(table.gradients.num_passes for table in self.tables())
        if self._eval_passes is None:
            self._eval_passes = passes
        elif passes > self._eval_passes:
            self._warned_of_eval = True
            warnings.warn(
                "the head is trained in eval(): every step draws the same classes. Call "
                "model.train() first, or torch.no_grad() to evaluate.",
                stacklevel=2,
            )

    def _flat(self, name: str, ids: Tensor, query: Tensor) -> Tensor:
        """`ids` (..., E) as (B, E); `name` is for the error if it does not fit `query` (..., D)."""
        check_tensor(name, ids)
        if ids.dim() != query.dim() or ids.shape[:-1] != query.shape[:-1]:
            pad = " Pad rows with -1." if name == "exclude" else ""
            raise UsageError(
                f"{name} has shape {tuple(ids.shape)}; expected one row of ids for each query of "
                f"{tuple(query.shape)}.{pad}"
            )
        return ids.reshape(query.shape[:-1].numel(), ids.shape[-1])


def loss_options(head: Head, options: Mapping[str, Any], known: type) -> LossOptions:
    """The `options` that every head has; raises for names that `known`, a TypedDict, has not."""
    for name in options:
        if name not in known.__annotations__:
            refuse_names([name], OPTIONS)
            named = inspect.signature(type(head)).parameters.values()
            others = {each.name: None for each in named if each.kind != each.VAR_KEYWORD}
            choice(f"option of {type(head).__name__}", name, {**others, **known.__annotations__})
    return {name: options[name] for name in LossOptions.__annotations__ if name in options}  # type: ignore[return-value]


def check_scale(grad: Tensor) -> None:
    """Refuse a scaled gradient of the loss: fused row optimizers would move rows by it."""
    most = abs(float(grad)) if grad.dim() == 0 else float(grad.abs().max()) if len(grad) else 0.0
    if MOST_SCALE <= most < inf:  # other checks report values that are not finite
        raise UsageError(
            f"the gradient that arrives at the loss is {most:g}: it was scaled, as by a "
            "torch.amp.GradScaler, and a fused row_optimizer would move rows by that. Use "
            "tapas.optim.RowwiseAdagrad(head), whose step unscales, or do not scale: the head "
            "computes in float32."
        )


def check_reduction(reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise UsageError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}.")
