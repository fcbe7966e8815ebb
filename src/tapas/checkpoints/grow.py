"""A checkpoint with more classes: old rows stay, the rest starts as in a fresh table.

New rows are those that a table of all classes would have drawn with the same seed. New biases
are the smallest old one, so that a class never seen starts like the rarest. What the row
optimizer remembers of a row starts where that optimizer lets it start.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from tapas.checkpoints.describe import Contents, check_out, read_contents, write_out
from tapas.checkpoints.files import is_sharded, read_record
from tapas.checkpoints.rows import Table
from tapas.errors import UsageError
from tapas.optim import LazyAdam, RowwiseAdagrad
from tapas.tables import LocalTable
from tapas.training.build import build_row_optimizer
from tapas.training.config import build_config, read_toml
from tapas.training.run_folder import CONFIG, RECORD

HEAD = "model.head.table"
STARTS_AT_ZERO = "model.repeats.rate"  # the one table of ours that does not keep what it drew


def grow(
    folder: Path, out: Path, num_classes: int, initial: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Write the checkpoint in `folder` to `out` with `num_classes` classes, in the same layout.

    All tables with as many classes as that of the head grow. `initial` says where pieces of
    row optimizer state start, by name; left out, it is as the run's configuration has it, or
    as the optimizers of this library do by default. Returns those that were used.
    """
    check_out(out, read_record(folder))
    contents = read_contents(folder)
    growing = _growing(folder, contents, num_classes)
    starts = {**default_starts(folder), **(initial or {})}
    used: dict[str, float] = {}
    tensors, tables = dict(contents.tensors), dict(contents.tables)
    for table in growing:
        for name in table.rows:
            part, key = table.state_of(name)
            if key and key not in starts:
                raise UsageError(
                    f"the row optimizer keeps '{key}' in {name}, and where that starts is not "
                    f"known. Say it with --initial {key}=VALUE."
                )
            if key:
                used[key] = starts[key]
            old = tensors[name]
            tensors[name] = torch.cat([old, _fresh(table, old, part, key, num_classes, starts)])
        tables[table.prefix] = Table(table.prefix, num_classes, table.rows, table.extra)
    for key in initial or {}:
        if key not in used:
            known = ", ".join(used) or "none"
            raise UsageError(
                f"--initial {key}: the row optimizer keeps no such state, but {known}."
            )
    ranks = contents.record["ranks"] if is_sharded(contents.record) else None
    write_out(out, Contents(contents.record, tensors, tables), num_ranks=ranks)
    return used


def default_starts(folder: Path) -> dict[str, float]:
    """Where row optimizer state starts: in the run that `folder` is of, or by default."""
    run = folder.absolute().parent.parent
    known = [RowwiseAdagrad.fused(), LazyAdam.fused()]
    if (run / RECORD).exists():
        known.append(build_row_optimizer(build_config(read_toml(run / CONFIG)).optimizer))
    return {key: spec.initial for each in known for key, spec in each.state_specs().items()}


def _growing(folder: Path, contents: Contents, num_classes: int) -> list[Table]:
    """The tables that get more classes."""
    sizes = {prefix: table.num_classes for prefix, table in contents.tables.items()}
    if not sizes:
        raise UsageError(f"{folder} has no class table: there is nothing that could grow.")
    if len(set(sizes.values())) > 1 and HEAD not in sizes:
        told = ", ".join(f"{prefix} {size}" for prefix, size in sizes.items())
        raise UsageError(f"the tables in {folder} have different numbers of classes: {told}.")
    size = sizes.get(HEAD, next(iter(sizes.values())))
    if num_classes <= size:
        raise UsageError(
            f"{folder} has {size} classes already; --to must be more, got {num_classes}."
        )
    rows = {name for table in contents.tables.values() for name in table.rows}
    for name, tensor in contents.tensors.items():
        if name.startswith("model.head.") and name not in rows and tensor.shape[:1] == (size,):
            raise UsageError(
                f"{folder} has {name}, too, a number for each class that the method learns beside "
                "its rows: such a checkpoint cannot grow. Begin again with more classes."
            )
    return [table for table in contents.tables.values() if table.num_classes == size]


def _fresh(
    table: Table, old: Tensor, part: str, key: str, num_classes: int, starts: Mapping[str, float]
) -> Tensor:
    """What follows `old` in the tensor `part`, or in its state `key`."""
    more = num_classes - len(old)
    if key:
        return old.new_full((more, *old.shape[1:]), starts[key])
    if part == "bias":
        return old.new_full((more,), float(old.min()))
    if table.prefix == STARTS_AT_ZERO:
        return old.new_zeros((more, *old.shape[1:]))
    drawn = LocalTable(
        num_classes, old.shape[1], dtype=old.dtype, bias=False, seed=table.extra["seed"]
    )
    return drawn.weight[len(old) :]
