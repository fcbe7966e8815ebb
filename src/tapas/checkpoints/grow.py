"""Adding classes to a checkpoint: old rows are kept, new ones start as in a new table.

New rows are those that a table of all classes would draw with the same seed. New biases, unless
given, are the smallest old bias, so that a class never seen starts like the rarest one. The
optimizer state of new rows starts at the initial value of the optimizer.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tapas.atomic_file import make_folder, unfinished_folder
from tapas.checkpoints.describe import state_key
from tapas.checkpoints.files import DENSE, read_dense, read_record, verify, write_file, write_state
from tapas.checkpoints.folder import FULL
from tapas.checkpoints.rows import RowsFile, TableRows, join_tables, read_rows
from tapas.errors import UsageError
from tapas.optim import LazyAdam, RowUpdate, RowwiseAdagrad
from tapas.tables import LocalTable
from tapas.tables.placement import RowRange

HEAD = "model.head.table"
NAMED = re.compile(r"step-(?P<step>\d{8,})")


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRows:
    """Initial values of the rows of new classes."""

    optimizer: RowUpdate | None = None  # gives the initial optimizer state
    initial: Mapping[str, float] = field(default_factory=dict)  # overrides it, by name of the state
    bias: Tensor | None = None  # (new classes,); None: the smallest old bias


@dataclass(frozen=True, slots=True)
class Grown:
    """A checkpoint with more classes, not yet written."""

    record: dict[str, Any]  # the state.json of the old one
    tables: dict[str, TableRows]
    dense: dict[str, Tensor]
    starts: dict[str, float]  # initial values of row optimizer state, by name

    def write(self, out: Path) -> None:
        """Write the folder `out` atomically. Raises UsageError if it cannot be written."""
        kept = {k: v for k, v in self.record.items() if k not in ("format", "tapas")}
        try:
            make_folder(out.parent)
            with unfinished_folder(out) as unfinished:
                written = RowsFile.of(self.tables).write(unfinished, 0)
                files = written.files | write_file(unfinished, DENSE, self.dense)
                made = {"processes": 1, "files": files, "tables": join_tables([written])}
                write_state(unfinished, kept | made)
        except OSError as error:
            cure = "Free some space" if error.errno in FULL else "Choose another --out"
            raise UsageError(
                f"cannot write {out}: {error.strerror}. {cure}; nothing unfinished was left behind."
            ) from error


def grow(folder: Path, out: Path, num_classes: int, new: NewRows | None = None) -> dict[str, float]:
    """Write the checkpoint in `folder` to `out` with `num_classes` classes, more than it has.

    Returns the initial values of new row optimizer state, by name.
    """
    _check_out(out, read_record(folder))
    grown = with_classes(folder, num_classes, new or NewRows())
    grown.write(out)
    return grown.starts


def with_classes(folder: Path, num_classes: int, new: NewRows, *, least: int = 1) -> Grown:
    """The checkpoint in `folder` with `num_classes` classes, at least `least` of them new.

    All tables with as many classes as that of the head grow. The state of row optimizers starts
    as given by `new`, else at the defaults of the optimizers of this library.
    """
    record = verify(folder)
    dense, tensors = read_dense(folder), read_rows(folder, record, {})
    growing = _growing(folder, record, dense, num_classes, least)
    known = [RowwiseAdagrad.fused(), LazyAdam.fused(), *([new.optimizer] if new.optimizer else [])]
    starts = {key: spec.initial for each in known for key, spec in each.state_specs().items()}
    starts |= new.initial
    used: dict[str, float] = {}
    tables = {}
    for prefix, table in record["tables"].items():
        rows = {name: tensors[f"{prefix}.{name}"] for name in table["tensors"]}
        size = table["num_classes"]
        if prefix in growing:
            size, seed = num_classes, record["numbers"][prefix]["seed"]
            for name, old in rows.items():
                key = state_key(name)
                if key and key not in starts:
                    raise UsageError(
                        f"the row optimizer keeps '{key}' in {prefix}.{name}, whose initial value "
                        f"is unknown. Set it with --initial {key}=VALUE."
                    )
                if key:
                    used[key] = starts[key]
                if not len(old):  # a table without biases
                    continue
                if name == "bias" and new.bias is not None:
                    rest = new.bias.to(old.dtype)
                else:
                    rest = _fresh(name, old, num_classes, seed, starts.get(key))
                rows[name] = torch.cat([old, rest])
        tables[prefix] = TableRows(RowRange.all_by_id(size), rows)
    for key in new.initial:
        if key not in used:
            raise UsageError(
                f"--initial {key}: the row optimizer has no such state. Known: "
                f"{', '.join(used) or 'none'}."
            )
    return Grown(record, tables, dense, used)


def _growing(
    folder: Path,
    record: Mapping[str, Any],
    dense: Mapping[str, Tensor],
    num_classes: int,
    least: int,
) -> set[str]:
    """Names of the tables that get more classes; UsageError if the checkpoint cannot grow."""
    sizes = {prefix: table["num_classes"] for prefix, table in record["tables"].items()}
    if not sizes:
        raise UsageError(f"{folder} has no class table that could grow.")
    if len(set(sizes.values())) > 1 and HEAD not in sizes:
        found = ", ".join(f"{prefix} {size}" for prefix, size in sizes.items())
        raise UsageError(f"the tables in {folder} have different numbers of classes: {found}.")
    size = sizes.get(HEAD, next(iter(sizes.values())))
    if num_classes < size + least:
        raise UsageError(
            f"{folder} has {size} classes already; --to must be more, got {num_classes}."
        )
    for name, tensor in dense.items():
        if name.startswith("model.head.") and tensor.shape[:1] == (size,):
            raise UsageError(
                f"{folder} also has {name}, which its method learns for each class besides the "
                "rows: such a checkpoint cannot grow. Train again with more classes."
            )
    return {prefix for prefix in sizes if sizes[prefix] == size}


def _fresh(name: str, old: Tensor, num_classes: int, seed: int, start: float | None) -> Tensor:
    """New rows after `old` in the tensor `name`: `start` if given, else as in a new table."""
    more = num_classes - len(old)
    if start is not None:
        return old.new_full((more, *old.shape[1:]), start)
    if name == "bias":
        return old.new_full((more,), float(old.min()))
    drawn = LocalTable(num_classes, old.shape[1], dtype=old.dtype, bias=False, seed=seed)
    return drawn.weight[len(old) :]


def _check_out(out: Path, record: Mapping[str, Any]) -> None:
    """Raise UsageError if no checkpoint can be written to `out`, before any work is done."""
    if out.exists():
        raise UsageError(f"{out} exists already. Choose another --out.")
    named = NAMED.fullmatch(out.name)
    if named and int(named["step"]) != record["step"]:
        raise UsageError(
            f"{out} is named after step {int(named['step'])}, but the checkpoint is of step "
            f"{record['step']}. Name it step-{record['step']:08}."
        )
