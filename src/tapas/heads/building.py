"""From the options of a head to its parts; what does not go together is told here."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tapas.errors import UsageError
from tapas.proposals import Proposal, Uniform
from tapas.shapes import check_samples
from tapas.tables import ClassTable, LocalTable, RowOptimizer, RowwiseAdagrad

DEFAULT_ROW_OPTIMIZER = RowwiseAdagrad(lr=0.1)


@dataclass(frozen=True, kw_only=True, slots=True)
class TableOptions:
    """The options of a head that only its own `LocalTable` can follow."""

    row_optimizer: RowOptimizer | None = DEFAULT_ROW_OPTIMIZER
    bias: bool | Tensor = True
    dtype: torch.dtype = torch.float32
    num_shards: int = 1
    device: torch.device | str | None = None

    def given(self) -> list[str]:
        """Names of those that are not left at their default."""
        default = TableOptions()
        names = ("row_optimizer", "bias", "dtype", "num_shards", "device")
        return [name for name in names if getattr(self, name) is not getattr(default, name)]


def build_table(
    table: ClassTable | None,
    num_classes: int | None,
    dim: int | None,
    *,
    num_samples: int,
    seed: int,
    options: TableOptions,
) -> ClassTable:
    """The table passed, or a `LocalTable` by `options`, big enough for `num_samples`."""
    if table is None:
        if num_classes is None or dim is None:
            raise UsageError("pass num_classes and dim, or a table.")
        table = LocalTable(
            num_classes,
            dim,
            row_optimizer=options.row_optimizer,
            dtype=options.dtype,
            bias=options.bias,
            num_shards=options.num_shards,
            seed=seed,
            device=options.device,
        )
    else:
        _check_given_table(table, num_classes, dim, options)
    check_samples(num_samples, table.num_classes)
    if table.num_shards > num_samples:
        raise UsageError(
            f"num_shards is {table.num_shards}, but only num_samples={num_samples} classes are "
            "kept: some shards would keep none. Keep at least one for each shard."
        )
    return table


def _check_given_table(
    table: ClassTable, num_classes: int | None, dim: int | None, options: TableOptions
) -> None:
    if not isinstance(table, ClassTable):
        raise UsageError(
            f"table must be a ClassTable such as tapas.LocalTable(...), got {table!r}."
        )
    if options.given():
        raise UsageError(
            f"{', '.join(options.given())} cannot be passed beside a table, which has its own. "
            "Pass them to the table."
        )
    for name, given in (("num_classes", num_classes), ("dim", dim)):
        if given not in (None, getattr(table, name)):
            raise UsageError(
                f"{name} is {given}, but the table has {getattr(table, name)}. Leave it out."
            )


def build_proposal(proposal: Proposal | None, num_classes: int) -> Proposal:
    """The proposal passed, or the uniform one, over just the classes of the table."""
    if proposal is None:
        return Uniform(num_classes)
    if not isinstance(proposal, Proposal):
        raise UsageError(
            f"proposal must be one such as tapas.Squashed(counts), got {type(proposal).__name__}."
        )
    if proposal.num_classes != num_classes:
        raise UsageError(
            f"the proposal is over {proposal.num_classes} classes, the table has {num_classes}. "
            "Build both from one number."
        )
    return proposal
