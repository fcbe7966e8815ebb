"""Base classes of heads with one row for each class.

FlatHead       the table, exact top-k and probabilities
SharedSample   loss: a softmax over targets and a sample of classes shared by the batch
LookupHead     loss: any function of rows that the head looks up
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self, Unpack, cast

import torch
from torch import Tensor, nn

from tapas.candidates import Candidates
from tapas.errors import DataError, UsageError
from tapas.heads.base import Head, LossOptions, loss_options
from tapas.heads.batch import Batch, check_any_example
from tapas.heads.facts import BuildContext
from tapas.optim.row_updates import RowUpdate
from tapas.proposals import Proposal, Squashed, Uniform
from tapas.proposals.squashed import SparseCounts, is_sparse
from tapas.rng import stream
from tapas.shapes import all_finite, check_ids, check_query, check_tensor
from tapas.tables import ClassTable, LocalTable
from tapas.tables.ranks import GlobalBatch, Ranks
from tapas.torch_modes import in_float32, outside_graphs


class FlatOptions(LossOptions, total=False):
    """Keyword arguments of every head with one row for each class."""

    table: ClassTable | None
    row_optimizer: RowUpdate | None
    bias: bool | Tensor
    dtype: torch.dtype
    num_shards: int
    device: torch.device | str | None


class FlatHead(Head):
    """A head with one row for each class; the score of a class is its logit.

    Args:
        num_classes, dim: size of the `LocalTable` that the head creates; or pass `table`.
        table: existing rows, such as tapas.ShardedTable(num_classes, dim).
        row_optimizer: if left out, the rows are moved by the `step` of an optimizer of
            `tapas.optim`. A fused one, tapas.optim.RowwiseAdagrad.fused(lr=0.1), moves them
            inside `backward`.
        bias, dtype, num_shards, device: of the table that the head creates; see `LocalTable`.
        reduction: "mean" over examples, "sum" or "none", as in torch.
        ignore_index: the target value that means padding.
        seed: of all random draws, and of the initial rows of the table that the head creates.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        **options: Unpack[FlatOptions],
    ):
        loss = loss_options(self, options, FlatOptions)
        table = _table_of(num_classes, dim, dict(options))
        super().__init__(table.num_classes, table.dim, **loss)
        self.table = table

    @classmethod
    def arguments(cls, options: Mapping[str, Any], context: BuildContext) -> dict[str, Any]:
        given = super().arguments(options, context) | {"table": context.read("table")}
        if "num_samples" in given:
            given["num_samples"] = min(given["num_samples"], context.num_classes)
        if "proposal" in cls.options:
            given["proposal"] = context.proposal(options)
        return given

    @classmethod
    def from_linear(cls, layer: nn.Linear, **options: Any) -> Self:
        """A head with the rows and biases of a `torch.nn.Linear(dim, num_classes)`.

        `options` are those of the constructor; without a bias in `layer` there are no biases.
        """
        if not isinstance(layer, nn.Linear):
            raise UsageError(
                f"from_linear takes a torch.nn.Linear, got {type(layer).__name__}. For rows from "
                f"elsewhere use {cls.__name__}.from_rows(weight), weight (num_classes, dim)."
            )
        bias = False if layer.bias is None else layer.bias
        return cls.from_rows(layer.weight, **{"bias": bias, **options})

    @classmethod
    def from_rows(cls, weight: Tensor, **options: Any) -> Self:
        """A head whose rows start as a copy of `weight` (C, D), such as `embedding.weight`.

        `options` are those of the constructor; `bias` may be (C,) values. `device` and `dtype`
        are those of `weight` if left out, float32 for other dtypes than bfloat16.
        """
        check_rows(weight)
        if taken := [name for name in ("num_classes", "dim", "table") if name in options]:
            raise UsageError(
                f"{', '.join(taken)} cannot be passed: the head makes a table as large as weight."
            )
        dtype = torch.bfloat16 if weight.dtype == torch.bfloat16 else torch.float32
        head = cls(*weight.shape, **{"device": weight.device, "dtype": dtype, **options})
        with torch.no_grad():
            cast(LocalTable, head.table).weight.copy_(weight)
        return head

    def tables(self) -> list[ClassTable]:
        return [self.table]

    @in_float32
    def topk(
        self, query: Tensor, k: int, *, exclude: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return self._ranked(self.table.topk, query, k, exclude)

    @in_float32
    def topk_log_prob(
        self, query: Tensor, k: int, *, exclude: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return self._ranked(self.table.topk_log_prob, query, k, exclude)

    def _ranked(
        self,
        topk: Callable[..., tuple[Tensor, Tensor]],
        query: Tensor,
        k: int,
        exclude: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Scores and ids (..., k) by `topk` of the table, for any leading shape of `query`."""
        with self.ranks.share_errors():
            self._check_device(query)
            flat = check_query(query, self.dim)
            banned = None if exclude is None else self._flat("exclude", exclude, query)
            score, ids = topk(flat, k, exclude=banned)
        return score.view(*query.shape[:-1], k), ids.view(*query.shape[:-1], k)

    @in_float32
    @torch.no_grad()
    def log_prob(self, query: Tensor, ids: Tensor) -> Tensor:
        with self.ranks.share_errors():
            self._check_device(query)
            flat = check_query(query, self.dim)
            wanted = check_ids("ids", self._flat("ids", ids, query), self.num_classes)
            weight, bias = self.table.rows(wanted.reshape(-1))
        weight = weight.view(*wanted.shape, self.table.dim)
        logit = torch.einsum("bld,bd->bl", weight, flat)
        logit += bias.view_as(wanted)
        return (logit - self.table.log_partition(flat)[:, None]).view(ids.shape)

    @property
    def wants_context(self) -> bool:
        proposal = getattr(self, "proposal", None)  # not every head has one
        return isinstance(proposal, Proposal) and proposal.wants_context

    @property
    def ranks(self) -> Ranks:
        return self.table.ranks

    def _draws(self, *names: str) -> torch.Generator:
        """The random generator of this step."""
        return stream(self.seed, "draws", *names, self.step)


class SharedSample(FlatHead):
    """Softmax cross-entropy over the targets and over `candidates` that the batch shares."""

    @abstractmethod
    def candidates(self, batch: GlobalBatch) -> Candidates:
        """The sample of this step: distinct ascending class ids and their log expected counts.

        Must return the same on every rank, on any device. `batch` has the examples of all ranks;
        use `batch.query.detach()` to score with the queries.
        """

    def _loss(self, batch: Batch, context: Tensor | None) -> Tensor:
        everyone = self._gather(batch, context)
        factor = batch.factor(self.reduction, everyone.mean_size)
        costs = self._costs(everyone, batch.counted, factor)
        if factor is not None:
            return costs
        return batch.reduce(batch.weighted(costs), self.reduction, everyone.mean_size)

    @outside_graphs
    @in_float32
    def sampled_log_prob(
        self, query: Tensor, target: Tensor, *, context: Tensor | None = None
    ) -> Tensor:
        """Log-probabilities that `forward` estimates, in the shape of `target`; 0 for padding."""
        with self.ranks.share_errors():
            self._refuse_backward()
            batch = self._prepare(query, target, None)
            context = batch.context_of(context)
        cost = self._costs(self._gather(batch, context), batch.counted)
        self._count_step()
        real = (target != self.ignore_index).to(cost.device)
        found = -cost.new_zeros(target.shape).masked_scatter(real, cost[batch.target >= 0])
        return self._guarded(found)

    def _gather(self, batch: Batch, context: Tensor | None) -> GlobalBatch:
        """The examples of all ranks."""
        with self.ranks.share_errors():
            everyone = self.ranks.batch(
                batch.query,
                batch.target,
                context,
                step=self.step,
                gradients=self.table.gradients,
            )
        check_any_example(len(everyone.query))
        return everyone

    def _costs(
        self, batch: GlobalBatch, counted: Tensor | None, factor: float | None = None
    ) -> Tensor:
        """(B, L) -log p of the targets of this rank's examples, estimated from the sample.

        With `factor`: their sum times `factor`, a scalar.
        """
        with torch.no_grad():
            kept = self.candidates(batch)
        self._count_scores(len(kept))
        return self.table.sampled_costs(batch, kept, counted=counted, factor=factor)


class LookupHead(FlatHead):
    """A loss computed for each example from rows that the head looks up in its table."""

    @abstractmethod
    def losses(self, batch: Batch, context: Tensor | None) -> Tensor:
        """(B,) the loss of each example, from rows of exactly one call of `table.lookup`.

        On several ranks `batch` may be empty on some; they must call `lookup` all the same. A
        subclass may override `scores_per_example`, which is not known otherwise.
        """

    def _loss(self, batch: Batch, context: Tensor | None) -> Tensor:
        with self.ranks.share_errors():
            mean_size = self.ranks.mean(len(batch.query))
        check_any_example(mean_size)
        with self.ranks.share_errors():
            return batch.reduce(self.losses(batch, context), self.reduction, mean_size)


def check_rows(weight: Tensor) -> None:
    """Raise if `weight` cannot be the initial rows of a head."""
    check_tensor("weight", weight)
    if isinstance(weight, nn.parameter.UninitializedParameter) or weight.is_meta:
        raise UsageError("weight has no values yet: initialise or load it first.")
    if not weight.is_floating_point() or weight.dim() != 2 or weight.layout != torch.strided:
        kind = weight.dtype if weight.layout == torch.strided else weight.layout
        raise UsageError(
            f"weight has shape {tuple(weight.shape)} and {kind}; expected dense floating point "
            "rows, (num_classes, dim)."
        )
    if not all_finite(weight):
        row = int((~weight.detach().isfinite().all(dim=1)).nonzero()[0])
        raise DataError(f"row {row} of weight holds NaN or inf. Replace it, for example by 0.")


_OF_TABLE = ("row_optimizer", "bias", "dtype", "num_shards", "device")


def _table_of(num_classes: int | None, dim: int | None, options: dict[str, Any]) -> ClassTable:
    """`options["table"]`, or a new `LocalTable` with these options."""
    table = options.get("table")
    of_table = {name: options[name] for name in _OF_TABLE if name in options}
    if isinstance(num_classes, ClassTable):
        raise UsageError("pass a table as a keyword argument: table=...")
    if table is None:
        if num_classes is None or dim is None:
            raise UsageError("pass num_classes and dim, or a table.")
        return LocalTable(num_classes, dim, seed=options.get("seed", 0), **of_table)
    if not isinstance(table, ClassTable):
        raise UsageError(
            f"table must be a ClassTable such as tapas.LocalTable(...), got {table!r}."
        )
    if of_table:
        raise UsageError(
            f"{', '.join(of_table)} cannot be passed together with a table. Pass them to the "
            "constructor of the table."
        )
    for name, given in (("num_classes", num_classes), ("dim", dim)):
        if given not in (None, getattr(table, name)):
            raise UsageError(
                f"{name} is {given}, but the table has {getattr(table, name)}. Leave it out."
            )
    return table


def check_shards(table: ClassTable, num_samples: int) -> None:
    """Raise UsageError if a second pass would keep no class on some of the shards of `table`."""
    if table.num_shards > num_samples:
        raise UsageError(
            f"num_shards is {table.num_shards}, but only num_samples={num_samples} classes are "
            "kept: some shards would keep none. Raise num_samples to at least one for each shard."
        )


def build_proposal(
    proposal: Proposal | None, counts: SparseCounts | None, num_classes: int
) -> Proposal:
    """The proposal of a head: the given one, squashed `counts`, or a uniform one."""
    if counts is not None:
        if proposal is not None:
            raise UsageError(
                "pass counts or a proposal, not both: counts=c is short for "
                "proposal=tapas.Squashed(c)."
            )
        proposal = Squashed(counts, num_classes=num_classes if is_sparse(counts) else None)
    if proposal is None:
        return Uniform(num_classes)
    if not isinstance(proposal, Proposal):
        raise UsageError(
            f"proposal must be a Proposal such as tapas.Squashed(counts), got "
            f"{type(proposal).__name__}."
        )
    if proposal.num_classes != num_classes:
        given = "counts are for" if counts is not None else "the proposal has"
        raise UsageError(
            f"{given} {proposal.num_classes} classes, the table has {num_classes}. Build both with "
            "the same number."
        )
    return proposal
