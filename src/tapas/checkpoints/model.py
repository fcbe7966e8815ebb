"""A model and its optimizer as a checkpoint, on one rank or many.

Tensors are named model.<name in the state dict> and optimizer.<parameter>.<name>; what an
optimizer of rows remembers of them stands beside the rows, model.<table>.<name>. The rows of a
sharded table are saved as pieces, each by the rank that keeps it, and loaded by any number of
ranks; all other tensors are the same on every rank and saved once. Plain numbers, such as the
step of a head and the learning rates of optimizers, are in the record beside the tensors.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from tapas.checkpoints.files import JSON
from tapas.checkpoints.folder import Checkpoint, CheckpointFolder
from tapas.checkpoints.rows import EXTRA, ShardRows
from tapas.checkpoints.saving import together
from tapas.distributed import ShardedTable
from tapas.distributed.collectives import Ranks
from tapas.errors import UsageError
from tapas.exact_state import ExactState, pack
from tapas.optim import Combined, RowOptimizer, RowUpdate
from tapas.tables import ClassTable
from tapas.tables.placement import Placement

if TYPE_CHECKING:
    from tapas.checkpoints.pieces import Piece

Optimizers: TypeAlias = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None


EXTRA_STATE = "_extra_state"  # as torch calls it


def save_checkpoint(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizer: Optimizers = None,
    *,
    state: Mapping[str, JSON] | None = None,
    keep: int = 2,
) -> Path:
    """Save what `load_checkpoint` needs; all ranks call it. Returns the folder of the checkpoint.

    The last `keep` in `folder` stay. `optimizer` is one, or all that there are. `state` is anything
    of yours that JSON can hold. An encoder within DistributedDataParallel is saved as it is
    without: pass `ddp.module`.
    """
    optimizer = as_one(optimizer, model)
    tensors, extra = model_state(model)
    record: dict[str, Any] = {"extra": extra, "yours": dict(state or {})}
    if optimizer is not None:
        tensors |= optimizer_state(optimizer)
        record["optimizer"] = optimizer_record(optimizer)
    checkpoints = CheckpointFolder(Path(folder), keep=keep)
    return checkpoints.save(step, tensors, record, ranks=ranks_of_model(model))


def load_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: Optimizers = None,
    *,
    step: int | None = None,
) -> tuple[int, dict[str, Any]] | None:
    """Load the newest checkpoint in `folder`, or that of `step`: its step and your `state`.

    None if there is none yet, so that a script which torchrun starts again goes on by itself.
    It does not matter how many ranks have saved it.
    """
    optimizer = as_one(optimizer, model)
    checkpoints = CheckpointFolder(Path(folder))
    if step is None and not checkpoints.steps():
        return None
    ranks = ranks_of_model(model)
    checkpoint = read_checkpoint(checkpoints, model, step, ranks)
    with together(ranks):  # what one rank cannot load none does
        state = None if optimizer is None else saved_state(optimizer, checkpoint, model)
        if ranks is not None:
            ranks.announce("load a model")
    load_model_state(model, checkpoint)
    if optimizer is not None and state is not None:
        optimizer.load_state_dict(state)
    if ranks is not None:
        ranks.last_checkpoint = f"step {checkpoint.step} in {checkpoints.folder}"
    return checkpoint.step, checkpoint.state.get("yours", {})


def as_one(optimizer: Optimizers, model: nn.Module) -> torch.optim.Optimizer | None:
    """All optimizers of `model`; an error if one of its rows was left out."""
    if optimizer is None:
        return None
    if not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = Combined(*optimizer)
    if isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner  # as accelerate wraps it
    known = {id(table) for table in _rows_by_number(optimizer).values()}
    for name, part in _exact_parts(model).items():
        if isinstance(part, ClassTable) and part.gradients.optimizer and id(part) not in known:
            raise UsageError(
                f"the rows of {name or 'the table'} are moved by a "
                f"{type(part.gradients.optimizer).__name__}, which was not passed: its learning "
                "rate and state would be lost. Pass all optimizers: [dense, rows]."
            )
    return optimizer


def read_checkpoint(
    checkpoints: CheckpointFolder, model: nn.Module, step: int | None, ranks: Ranks | None
) -> Checkpoint:
    """What this rank needs of the checkpoint of `step`, however many ranks have saved it."""
    shards = {
        prefix: ShardRows(table.placement, table.ranks.rank)
        for prefix, table in sharded_tables(model).items()
    }
    return checkpoints.load(step, shards=shards, ranks=ranks)


def model_state(model: nn.Module) -> "tuple[dict[str, Tensor | Piece], dict[str, Any]]":
    """Tensors by name, rows of a shard as a piece of all, and the plain numbers beside them."""
    parts, aliases = _exact_parts(model), _aliases(model)
    plain = {_join(name, EXTRA_STATE) for name in parts}
    tensors: dict[str, Tensor | Piece] = {
        f"model.{k}": v
        for k, v in model.state_dict().items()
        if k not in plain and not _is_alias(k, aliases)
    }
    extra: dict[str, Any] = {}
    for name, part in parts.items():
        found: dict[str, Any] = {k: v for k, v in part.state_numbers().items() if k != "rank"}
        if isinstance(part, ClassTable):
            found |= _layout(part)
            for key, rows in _row_tensors(part).items():
                tensors[_join("model", name, key)] = rows
        extra[_join(name, EXTRA)] = found
    return tensors, extra


def _layout(table: ClassTable) -> dict[str, Any]:
    """What the rows of a checkpoint are cut and counted by."""
    placement: Placement = table.placement  # type: ignore[assignment]
    shard = table.shard if isinstance(table, ShardedTable) else table
    count = table.gradients.state.get("step", getattr(shard, "num_updates", None))
    known = {} if count is None else {"num_updates": int(count)}
    return {"num_shards": placement.num_shards, "placement": placement.kind, **known}


def _row_tensors(table: ClassTable) -> "dict[str, Tensor | Piece]":
    """Rows of a shard as pieces, and what an optimizer remembers of rows, wherever they are."""
    state = {k: v for k, v in table.gradients.state.items() if k not in ("step", "layout")}
    if not isinstance(table, ShardedTable):
        return dict(state)
    rows = {**table.row_tensors(), **state}  # a table without biases has none
    return {name: _piece(table, tensor) for name, tensor in rows.items() if len(tensor)}


def _exact_parts(model: nn.Module) -> dict[str, ExactState]:
    return {name: part for name, part in model.named_modules() if isinstance(part, ExactState)}


def _aliases(model: nn.Module) -> dict[str, str]:
    """Further names of tables that several heads share, and the first one of each."""
    first = {id(part): name for name, part in _exact_parts(model).items()}
    every = model.named_modules(remove_duplicate=False)
    tables = ((name, part) for name, part in every if isinstance(part, ClassTable))
    return {name: first[id(part)] for name, part in tables if name != first[id(part)]}


def _is_alias(name: str, aliases: Mapping[str, str]) -> bool:
    return name.rpartition(".")[0] in aliases


def _join(*names: str) -> str:
    return ".".join(name for name in names if name)


def _piece(table: ShardedTable, rows: Tensor) -> "Piece":
    from tapas.checkpoints.pieces import Piece  # slow to import, and seldom needed

    return Piece(rows, table.placement.start(table.ranks.rank), table.num_classes)


def load_model_state(model: nn.Module, checkpoint: Checkpoint) -> None:
    named = {k: v for k, v in checkpoint.tensors.items() if k.startswith("model.")}
    whole = {k.removeprefix("model."): v for k, v in named.items()}
    numbers = _numbers(model, checkpoint.state["extra"])
    aliases = _aliases(model)
    own = {
        k: v
        for k, v in model.state_dict().items()
        if k not in numbers and not _is_alias(k, aliases)
    }
    waiting = [
        f"{name}." if name else ""
        for name, part in _exact_parts(model).items()
        if isinstance(part, ClassTable) and part.row_optimizer is None
    ]
    # state of rows that an optimizer moves is loaded by the optimizer
    whole = {k: v for k, v in whole.items() if k in own or not k.startswith(tuple(waiting))}
    if own.keys() != whole.keys():
        odd = sorted(own.keys() ^ whole.keys())
        raise UsageError(
            f"step {checkpoint.step} is of another model: {odd[0]} is "
            f"{'not in it' if odd[0] in own else 'in it, but not in this one'} "
            f"({len(odd)} such names). Build the model, and its row optimizer, as they were saved."
        )
    for name, tensor in whole.items():
        if own[name].shape != tensor.shape:
            raise UsageError(
                f"step {checkpoint.step} has {name} of shape {tuple(tensor.shape)}, the model "
                f"{tuple(own[name].shape)}. A checkpoint that has grown, or is of other settings, "
                "needs a model of its own size: tapas.training.load_checkpoint."
            )
    whole |= numbers
    for alias, first in aliases.items():
        known = [k for k in whole if k.rpartition(".")[0] == first]
        whole |= {_join(alias, k.rpartition(".")[2]): whole[k] for k in known}
    model.load_state_dict(whole)


def _numbers(model: nn.Module, extra: Mapping[str, Any]) -> dict[str, Tensor]:
    """The plain numbers of the model's state: as saved, but for whose rows these are now."""
    found = {}
    for name, part in _exact_parts(model).items():
        own, saved = part.state_numbers(), extra.get(_join(name, EXTRA), {})
        here = ("rank", "num_shards", "placement") if isinstance(part, ClassTable) else ()
        known = {k: v if k in here else saved.get(k, v) for k, v in own.items()}
        found[_join(name, EXTRA_STATE)] = pack(known)
    return found


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Without that of rows, which is saved with them."""
    rows = _rows_by_number(optimizer)
    return {
        f"optimizer.{index}.{name}": value
        for index, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
        if isinstance(value, Tensor) and index not in rows
    }


def optimizer_record(optimizer: torch.optim.Optimizer) -> dict[str, JSON]:
    """Which optimizers there are, their learning rates and the like, and plain numbers of state."""
    groups = [
        {k: _plain(v) for k, v in group.items() if k not in ("params", "param_names")}
        for group in optimizer.param_groups
    ]
    numbers = {
        f"{index}.{name}": value
        for index, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
        if not isinstance(value, Tensor)
    }
    for name, value in numbers.items():
        if not isinstance(value, int | float | str | None):
            raise UsageError(
                f"the optimizer's state {name} is a {type(value).__name__}, which a checkpoint "
                "cannot hold. Save that optimizer yourself, in `state`."
            )
    return {"kinds": _kinds(optimizer), "groups": groups, "numbers": numbers}


def _kinds(optimizer: torch.optim.Optimizer) -> list[JSON]:
    """Name and sizes of the groups of each optimizer."""
    several = optimizer.optimizers if isinstance(optimizer, Combined) else (optimizer,)
    sizes = [[len(group["params"]) for group in one.param_groups] for one in several]
    return [[type(one).__name__, found] for one, found in zip(several, sizes, strict=True)]


def _plain(value: Any) -> JSON:
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, Tensor) else value


def load_optimizer_state(optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    """Of an optimizer that moves no rows."""
    optimizer.load_state_dict(saved_state(optimizer, checkpoint))


def saved_state(
    optimizer: torch.optim.Optimizer, checkpoint: Checkpoint, model: nn.Module | None = None
) -> dict[str, Any]:
    """What `optimizer` can load; an error if it was another. `model` has the rows that it moves."""
    record = checkpoint.state.get("optimizer", {})
    if record and record["kinds"] != _kinds(optimizer):
        raise UsageError(
            f"step {checkpoint.step} is of the optimizers {record['kinds']} (sizes of their "
            f"groups), here {_kinds(optimizer)}. Build them as they were saved. Nothing was loaded."
        )
    state: dict[int, dict[str, Any]] = {}
    for key, value in checkpoint.tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    for key, value in record.get("numbers", {}).items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    names = {id(part): name for name, part in model.named_modules()} if model else {}
    for number, table in _rows_by_number(optimizer).items():
        if (found := _row_state(checkpoint, names[id(table)], table)) is not None:
            state[number] = found
            table.check_row_state(_formula(table), found)
    groups = optimizer.state_dict()["param_groups"]
    for group, saved in zip(groups, record.get("groups", groups), strict=True):
        group.update(saved)
    return {"state": state, "param_groups": groups}


def _row_state(checkpoint: Checkpoint, name: str, table: ClassTable) -> dict[str, Tensor] | None:
    """What an optimizer remembered of the rows of `table`; None if it had not stepped."""
    prefix, stored = f"{_join('model', name)}.", table.state_dict().keys()
    keys = (key for key in checkpoint.tensors if key.startswith(prefix))
    found = {key.removeprefix(prefix): checkpoint.tensors[key] for key in keys}
    state = {key: value for key, value in found.items() if key not in stored}
    count = checkpoint.state["extra"][_join(name, EXTRA)].get("num_updates", 0)
    shapes = table.row_state_shapes(_formula(table))
    if not count or not shapes:
        return None
    empty = {  # a table without biases keeps nothing of them, and saves no piece of nothing
        key: torch.empty(shape) for key, shape in shapes.items() if shape and not shape[0]
    }
    layout = {"layout": table.layout()} if isinstance(table, ShardedTable) else {}
    return {"step": torch.tensor(count, device="cpu"), **layout, **empty, **state}


def _formula(table: ClassTable) -> RowUpdate:
    optimizer: Any = table.gradients.optimizer  # the one that loads, so that it is there
    return optimizer.update_of(table.gradients.anchor)  # type: ignore[no-any-return]


def _rows_by_number(optimizer: torch.optim.Optimizer) -> dict[int, ClassTable]:
    """Tables whose anchors are parameters of `optimizer`, by the number of the parameter."""
    several = optimizer.optimizers if isinstance(optimizer, Combined) else (optimizer,)
    of_rows = [one for one in several if isinstance(one, RowOptimizer)]
    tables = {id(anchor): queue.rows for one in of_rows for anchor, queue in one._queues.items()}
    params = (p for group in optimizer.param_groups for p in group["params"])
    return {number: tables[id(p)] for number, p in enumerate(params) if id(p) in tables}  # type: ignore[misc]


def sharded_tables(model: nn.Module) -> dict[str, ShardedTable]:
    """By the name that their rows have in a checkpoint."""
    return {
        f"model.{name}" if name else "model": module
        for name, module in model.named_modules()
        if isinstance(module, ShardedTable)
    }


def ranks_of_model(model: nn.Module) -> Ranks | None:
    """The ranks that share its tables; None in one process."""
    found = [table.ranks for table in sharded_tables(model).values()]
    if any(ranks is not found[0] for ranks in found):
        raise UsageError(
            "the tables of this model are shared by different groups of ranks. Save each in a "
            "folder of its own."
        )
    return found[0] if found else None
