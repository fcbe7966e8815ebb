"""Saving and loading a model and its optimizers, in one process or on many ranks.

Tensors are named model.<name in the state dict> and optimizer.<parameter>.<name>; the state of a
row optimizer is saved with its rows, as model.<table>.<name>. Rows are saved by the process that
keeps them; all other tensors are the same on every rank and saved once. Plain numbers, such as
the step of a head and learning rates, are in state.json.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from tapas.checkpoints.files import JSON
from tapas.checkpoints.folder import Checkpoint, CheckpointFolder, Contents
from tapas.checkpoints.rows import TableRows
from tapas.errors import UsageError
from tapas.exact_state import ExactState, pack
from tapas.optim import Combined, RowOptimizer, RowUpdate
from tapas.tables import ClassTable
from tapas.tables.ranks import ONE_PROCESS, Ranks
from tapas.version import __version__

Optimizers: TypeAlias = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None
EXTRA_STATE = "_extra_state"  # as torch calls it
WHOSE = ("rank", "num_shards", "placement")  # numbers that tell which rows a table keeps
NOT_ROWS = ("step", "layout")  # entries of row optimizer state that have no rows


def save_checkpoint(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizer: Optimizers = None,
    *,
    state: Mapping[str, JSON] | None = None,
    keep: int = 2,
) -> Path:
    """Save a checkpoint of `model` into `folder`; returns the folder of the checkpoint.

    All ranks must call this. The last `keep` checkpoints are kept.

    Args:
        optimizer: one optimizer or a list of all.
        state: your own data, of types that JSON can store.

    For a model inside DistributedDataParallel, pass `ddp.module`.
    """
    contents = contents_of(model, as_one(optimizer, model))
    checkpoints = CheckpointFolder(Path(folder), keep=keep)
    return checkpoints.save(step, contents, state or {}, ranks=ranks_of_model(model))


def load_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: Optimizers = None,
    *,
    step: int | None = None,
) -> tuple[int, dict[str, Any]] | None:
    """Load the newest checkpoint in `folder`, or that of `step`.

    Returns its step and your `state`, or None if there is no checkpoint yet, so that a script that
    torchrun restarts can call this at its start. Any number of ranks may have saved it. Raises
    UsageError if it belongs to another model or optimizer, DataError if it is damaged.
    """
    optimizer = as_one(optimizer, model)
    checkpoints = CheckpointFolder(Path(folder))
    if step is None and not checkpoints.steps():
        return None
    ranks = ranks_of_model(model)
    checkpoint = read_checkpoint(checkpoints, model, step, ranks)
    with ranks.share_errors():  # if one rank cannot load it, no rank does
        state = None if optimizer is None else saved_state(optimizer, checkpoint, model)
        ranks.gather_numbers("load a model")
    load_model_state(model, checkpoint)
    if optimizer is not None and state is not None:
        optimizer.load_state_dict(state)
    ranks.last_checkpoint = f"step {checkpoint.step} in {checkpoints.folder}"
    return checkpoint.step, checkpoint.state


def as_one(optimizer: Optimizers, model: nn.Module) -> torch.optim.Optimizer | None:
    """All optimizers as one. Raises UsageError if the optimizer of a class table is missing."""
    if optimizer is None:
        return None
    if not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = Combined(*optimizer)
    if isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner  # wrapped by accelerate
    known = {id(table) for table in _rows_by_number(optimizer).values()}
    for name, module in _exact_modules(model).items():
        if (
            isinstance(module, ClassTable)
            and module.gradients.optimizer
            and id(module) not in known
        ):
            raise UsageError(
                f"the rows of {name or 'the table'} are updated by a "
                f"{type(module.gradients.optimizer).__name__}, which was not passed: its learning "
                "rate and state would be lost. Pass all optimizers: [dense, rows]."
            )
    return optimizer


def read_checkpoint(
    checkpoints: CheckpointFolder,
    model: nn.Module,
    step: int | None,
    ranks: Ranks,
    *,
    everything: bool = True,
    to_train: bool = True,
) -> Checkpoint:
    """Load what this rank needs of the checkpoint of `step`, by default the newest.

    Unless it is `to_train`, the state of row optimizers is left out, and rows stay in the file
    where that is possible: see `CheckpointFolder.load`.
    """
    ranges = {
        _join("model", name): module.row_range
        for name, module in model.named_modules()
        if isinstance(module, ClassTable) and module.ranks.is_distributed
    }
    return checkpoints.load(
        step, ranges=ranges, ranks=ranks, everything=everything, to_train=to_train
    )


def contents_of(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Contents:
    """What this process saves of `model` and `optimizer`."""
    modules, aliases = _exact_modules(model), _aliases(model)
    tensors: dict[str, Tensor] = {}
    rows: dict[str, dict[str, Tensor]] = {}
    for key, tensor in model.state_dict().items():
        name, _, last = key.rpartition(".")
        if name in aliases or (last == EXTRA_STATE and name in modules):
            continue
        if isinstance(modules.get(name), ClassTable):
            rows.setdefault(name, {})[last] = tensor
        else:
            tensors[f"model.{key}"] = tensor
    tables: dict[str, TableRows] = {}
    numbers: dict[str, JSON] = {}
    for name, module in modules.items():
        found = module.state_numbers()
        if isinstance(module, ClassTable):
            state = module.gradients.state
            found = {key: number for key, number in found.items() if key not in WHOSE}
            if "step" in state:
                found["num_updates"] = int(state["step"])
            if name in rows:  # rows on servers are saved there
                moved = {key: value for key, value in state.items() if key not in NOT_ROWS}
                tables[_join("model", name)] = TableRows(module.row_range, rows[name] | moved)
        numbers[_join("model", name)] = found
    if optimizer is None:
        return Contents(tensors, tables, numbers)
    tensors |= optimizer_state(optimizer)
    numbers |= _optimizer_numbers(optimizer)
    return Contents(tensors, tables, numbers, optimizer_record(optimizer))


def _exact_modules(model: nn.Module) -> dict[str, ExactState]:
    return {
        name: module for name, module in model.named_modules() if isinstance(module, ExactState)
    }


def _aliases(model: nn.Module) -> dict[str, str]:
    """Further names of tables that have several names, and the first name of each."""
    first = {id(module): name for name, module in _exact_modules(model).items()}
    every = model.named_modules(remove_duplicate=False)
    tables = ((name, module) for name, module in every if isinstance(module, ClassTable))
    return {name: first[id(module)] for name, module in tables if name != first[id(module)]}


def _is_alias(name: str, aliases: Mapping[str, str]) -> bool:
    return name.rpartition(".")[0] in aliases


def _join(*names: str) -> str:
    return ".".join(name for name in names if name)


def load_model_state(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Load `model`; UsageError, and no change, if names or shapes of tensors differ.

    Tensors on "meta" are replaced by those of `checkpoint`, without a copy.
    """
    named = {k: v for k, v in checkpoint.tensors.items() if k.startswith("model.")}
    saved = {k.removeprefix("model."): v for k, v in named.items()}
    numbers = _numbers(model, checkpoint.numbers)
    aliases = _aliases(model)
    here = {
        k: v
        for k, v in model.state_dict().items()
        if k not in numbers and not _is_alias(k, aliases)
    }
    waiting = [
        f"{name}." if name else ""
        for name, module in _exact_modules(model).items()
        if isinstance(module, ClassTable) and module.row_optimizer is None
    ]
    # the state of an attached row optimizer is loaded by that optimizer
    saved = {k: v for k, v in saved.items() if k in here or not k.startswith(tuple(waiting))}
    if here.keys() != saved.keys():
        odd = sorted(here.keys() ^ saved.keys())
        raise UsageError(
            f"the checkpoint of step {checkpoint.step} ({checkpoint.origin}) belongs to another "
            f"model: {odd[0]} is "
            f"{'missing in it' if odd[0] in here else 'in it, but not in this model'} "
            f"({len(odd)} such names). Build the model and its row optimizer as they were saved, "
            f"or use the version that saved it; this is tapas {__version__}."
        )
    for name, tensor in saved.items():
        if here[name].shape != tensor.shape:
            raise UsageError(
                f"the checkpoint of step {checkpoint.step} has {name} of shape "
                f"{tuple(tensor.shape)}; the model has {tuple(here[name].shape)}. Build the model "
                "with the sizes of the checkpoint; it may have grown."
            )
    saved |= numbers
    for alias, first in aliases.items():
        known = [k for k in saved if k.rpartition(".")[0] == first]
        saved |= {_join(alias, k.rpartition(".")[2]): saved[k] for k in known}
    if without_values := {name: saved[name] for name, tensor in here.items() if tensor.is_meta}:
        model.load_state_dict(without_values, strict=False, assign=True)
    others = {name: value for name, value in saved.items() if name not in without_values}
    model.load_state_dict(others, strict=not without_values)


def _numbers(model: nn.Module, saved: Mapping[str, Any]) -> dict[str, Tensor]:
    """The plain numbers of the model as saved, except those that tell which rows it keeps."""
    found = {}
    for name, module in _exact_modules(model).items():
        before = saved.get(_join("model", name), {})
        here = WHOSE if isinstance(module, ClassTable) else ()
        known = {
            key: number if key in here else before.get(key, number)
            for key, number in module.state_numbers().items()
        }
        found[_join(name, EXTRA_STATE)] = pack(known)
    return found


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """State tensors of `optimizer` by name, without row state, which is saved with the rows."""
    rows = _rows_by_number(optimizer)
    return {
        f"optimizer.{index}.{name}": value
        for index, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
        if isinstance(value, Tensor) and index not in rows
    }


def _optimizer_numbers(optimizer: torch.optim.Optimizer) -> dict[str, JSON]:
    """State of `optimizer` that is not a tensor, by name as in `optimizer_state`."""
    found: dict[str, JSON] = {}
    for index, state in optimizer.state_dict()["state"].items():
        numbers = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
        for name, value in numbers.items():
            if not isinstance(value, int | float | str | None):
                raise UsageError(
                    f"the optimizer's state {index}.{name} is of type {type(value).__name__}, "
                    "which a checkpoint cannot store. Save that optimizer yourself in `state`."
                )
        if numbers:
            found[f"optimizer.{index}"] = numbers
    return found


def optimizer_record(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Class and hyperparameters of each optimizer, as stored in state.json."""
    several = optimizer.optimizers if isinstance(optimizer, Combined) else (optimizer,)
    return [
        {"kind": type(one).__name__, "param_groups": [_group(group) for group in one.param_groups]}
        for one in several
    ]


def _group(group: Mapping[str, Any]) -> dict[str, JSON]:
    numbers = {k: _plain(v) for k, v in group.items() if k not in ("params", "param_names")}
    return {"num_params": len(group["params"]), **numbers}


def _kinds(record: Sequence[Any]) -> list[JSON]:
    """Class and sizes of the parameter groups of each optimizer."""
    return [[one["kind"], [group["num_params"] for group in one["param_groups"]]] for one in record]


def _plain(value: Any) -> JSON:
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, Tensor) else value


def load_optimizer_state(optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    """Load an optimizer without class tables; UsageError if it differs from the saved one."""
    optimizer.load_state_dict(saved_state(optimizer, checkpoint))


def saved_state(
    optimizer: torch.optim.Optimizer, checkpoint: Checkpoint, model: nn.Module | None = None
) -> dict[str, Any]:
    """The saved state dict of `optimizer`; UsageError if another optimizer was saved.

    `model` holds the class tables that it updates.
    """
    saved, here = checkpoint.optimizers, optimizer_record(optimizer)
    if saved and _kinds(saved) != _kinds(here):
        raise UsageError(
            f"the checkpoint of step {checkpoint.step} has the optimizers {_kinds(saved)} (class "
            f"and sizes of groups); got {_kinds(here)}. Build them as they were saved. Nothing was "
            "loaded."
        )
    state: dict[int, dict[str, Any]] = {}
    for key, value in checkpoint.tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    for key, numbers in checkpoint.numbers.items():
        if key.startswith("optimizer."):
            state.setdefault(int(key.removeprefix("optimizer.")), {}).update(numbers)
    names = {id(module): name for name, module in model.named_modules()} if model else {}
    for number, table in _rows_by_number(optimizer).items():
        if (found := _row_state(checkpoint, names[id(table)], table)) is not None:
            state[number] = found
            table.check_row_state(_formula(table), found)
    groups = optimizer.state_dict()["param_groups"]
    known = [group for one in saved or here for group in one["param_groups"]]
    for group, before in zip(groups, known, strict=True):
        group.update({key: value for key, value in before.items() if key != "num_params"})
    return {"state": state, "param_groups": groups}


def _row_state(checkpoint: Checkpoint, name: str, table: ClassTable) -> dict[str, Tensor] | None:
    """The row optimizer state of `table`; None if the optimizer had made no step."""
    prefix, stored = f"{_join('model', name)}.", table.state_dict().keys()
    keys = (key for key in checkpoint.tensors if key.startswith(prefix))
    found = {key.removeprefix(prefix): checkpoint.tensors[key] for key in keys}
    state = {key: value for key, value in found.items() if key not in stored}
    count = checkpoint.numbers[_join("model", name)].get("num_updates", 0)
    if not count or not table.row_state_shapes(_formula(table)):
        return None
    return {"step": torch.tensor(count, device="cpu"), **table.row_state_layout(), **state}


def _formula(table: ClassTable) -> RowUpdate:
    optimizer: Any = table.gradients.optimizer  # not None: it is being loaded
    return optimizer.update_of(table.gradients.anchor)  # type: ignore[no-any-return]


def _rows_by_number(optimizer: torch.optim.Optimizer) -> dict[int, ClassTable]:
    """Tables whose anchors are parameters of `optimizer`, by index of the parameter."""
    several = optimizer.optimizers if isinstance(optimizer, Combined) else (optimizer,)
    of_rows = [one for one in several if isinstance(one, RowOptimizer)]
    tables = {id(anchor): queue.rows for one in of_rows for anchor, queue in one._queues.items()}
    params = (p for group in optimizer.param_groups for p in group["params"])
    return {number: tables[id(p)] for number, p in enumerate(params) if id(p) in tables}  # type: ignore[misc]


def ranks_of_model(model: nn.Module) -> Ranks:
    """The ranks that share the tables of `model`; UsageError if they differ between tables."""
    tables = (module for module in model.modules() if isinstance(module, ClassTable))
    found = [table.ranks for table in tables if table.ranks.is_distributed]
    if any(ranks is not found[0] for ranks in found):
        raise UsageError(
            "the tables of this model are shared by different groups of ranks. Save them in "
            "separate folders."
        )
    return found[0] if found else ONE_PROCESS
