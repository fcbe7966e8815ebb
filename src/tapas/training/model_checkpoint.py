"""A model and its optimizer as a checkpoint, on one rank or many.

Tensors are named model.<name in the state dict> and optimizer.<parameter>.<name>. The rows of
a sharded table are saved as pieces, each by the rank that keeps it, and loaded by any number
of ranks; all other tensors are the same on every rank and saved once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tapas.errors import UsageError
from tapas.tables import ShardedTable
from tapas.tables.ranks import Ranks
from tapas.training.checkpoint import Checkpoint, CheckpointFolder
from tapas.training.checkpoint_files import JSON
from tapas.training.checkpoint_rows import ShardRows

if TYPE_CHECKING:
    from tapas.engines.pieces import Piece


def save_checkpoint(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    state: Mapping[str, JSON] | None = None,
    keep: int = 2,
) -> Path:
    """Save what `load_checkpoint` needs; all ranks call it. Returns the folder of the checkpoint.

    The last `keep` in `folder` stay. `state` is anything of yours that JSON can hold. An
    encoder within DistributedDataParallel is saved as it is without: pass `ddp.module`.
    """
    tensors, extra = model_state(model)
    if optimizer is not None:
        tensors |= optimizer_state(optimizer)
    checkpoints = CheckpointFolder(Path(folder), keep=keep)
    record = {"extra": extra, "yours": dict(state or {})}
    return checkpoints.save(step, tensors, record, ranks=ranks_of_model(model))


def load_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    step: int | None = None,
) -> tuple[int, dict[str, Any]] | None:
    """Load the newest checkpoint in `folder`, or that of `step`: its step and your `state`.

    None if there is none yet, so that a script which torchrun starts again goes on by itself.
    It does not matter how many ranks have saved it.
    """
    checkpoints = CheckpointFolder(Path(folder))
    if step is None and not checkpoints.steps():
        return None
    ranks = ranks_of_model(model)
    checkpoint = read_checkpoint(checkpoints, model, step, ranks)
    load_model_state(model, checkpoint)
    if optimizer is not None:
        load_optimizer_state(optimizer, checkpoint)
    if ranks is not None:
        ranks.last_checkpoint = f"step {checkpoint.step} in {checkpoints.folder}"
    return checkpoint.step, checkpoint.state.get("yours", {})


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
    """Tensors by name, rows of a shard as a piece of all, and the plain values beside them."""
    whole = model.state_dict()
    tensors: dict[str, Tensor | Piece] = {
        f"model.{k}": v for k, v in whole.items() if isinstance(v, Tensor)
    }
    for prefix, table in sharded_tables(model).items():
        for name, rows in table.local_rows().items():
            if len(rows):  # a table without biases has none
                tensors[f"{prefix}.{name}"] = _piece(table, rows)
    extra = {k: v for k, v in whole.items() if not isinstance(v, Tensor)}
    for prefix in sharded_tables(model):  # pieces are nobody's in particular
        name = f"{prefix}._extra_state".removeprefix("model.")
        extra[name] = {k: v for k, v in extra[name].items() if k != "rank"}
    return tensors, extra


def _piece(table: ShardedTable, rows: Tensor) -> "Piece":
    from tapas.engines.pieces import Piece  # slow to import, and seldom needed

    return Piece(rows, table.placement.start(table.ranks.rank), table.num_classes)


def load_model_state(model: nn.Module, checkpoint: Checkpoint) -> None:
    named = {k: v for k, v in checkpoint.tensors.items() if k.startswith("model.")}
    whole = {k.removeprefix("model."): v for k, v in named.items()}
    own = model.state_dict()
    tensors = {name for name, value in own.items() if isinstance(value, Tensor)}
    if tensors != whole.keys():
        odd = sorted(tensors ^ whole.keys())
        raise UsageError(
            f"step {checkpoint.step} is of another model: {odd[0]} is "
            f"{'not in it' if odd[0] in tensors else 'in it, but not in this one'} "
            f"({len(odd)} such names). Build the model, and its row optimizer, as they were saved."
        )
    for name, tensor in whole.items():
        mine = own.get(name)
        if isinstance(mine, Tensor) and mine.shape != tensor.shape:
            raise UsageError(
                f"step {checkpoint.step} has {name} of shape {tuple(tensor.shape)}, the model "
                f"{tuple(mine.shape)}. A checkpoint that has grown, or is of other settings, needs "
                "a model of its own size: tapas.training.load_checkpoint."
            )
    model.load_state_dict(whole | checkpoint.state["extra"])


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"optimizer.{index}.{name}": value
        for index, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


def load_optimizer_state(optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    state: dict[int, dict[str, Any]] = {}
    for key, value in checkpoint.tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


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
