"""Finding a checkpoint and describing its contents."""

from pathlib import Path
from typing import Any

from tapas.checkpoints.files import STATE, complete_in, read_record, verify
from tapas.checkpoints.folder import CheckpointFolder
from tapas.errors import DataError, TapasError, UsageError

CHECKPOINTS = "checkpoints"  # name of the folder in a run


def find_checkpoint(path: Path, step: int | None = None) -> Path:
    """The folder of one checkpoint.

    `path` is a run, its folder of checkpoints, or one checkpoint. `step` defaults to the newest.
    Raises UsageError if there is no such checkpoint.
    """
    if (path / STATE).exists():
        if step is not None and (number := read_record(path)["step"]) != step:
            raise UsageError(f"{path} is the checkpoint of step {number}, not of step {step}.")
        return path
    for folder in (path / CHECKPOINTS, path):
        there = CheckpointFolder(folder)
        if there.steps():
            return there.find(step)[1]
    if not path.exists():
        raise UsageError(f"there is no folder {path}.")
    raise UsageError(
        f"{path} holds no checkpoint. Expected the folder of a run, its folder '{CHECKPOINTS}', "
        "or one checkpoint in it."
    )


def check_others(path: Path, described: Path) -> list[dict[str, Any]]:
    """Which other checkpoints are beside the one `described`, if `path` is not that one itself."""
    found: list[dict[str, Any]] = []
    if path == described:
        return found
    for step, folder in sorted(complete_in(described.parent).items()):
        if folder != described:
            best = problem = None
            try:
                best = read_record(folder)["best"]
                verify(folder)
            except TapasError as error:
                problem = str(error)
            found.append({"step": step, "best": best, "valid": problem is None, "problem": problem})
    return found


def describe(folder: Path) -> dict[str, Any]:
    """The contents of the checkpoint in `folder`, and whether it is valid."""
    record, problem = read_record(folder), None
    try:
        verify(folder)
    except DataError as error:
        problem = str(error)
    tables = [
        {
            "name": name,
            "classes": table["num_classes"],
            "dim": table["dim"],
            "dtype": table["tensors"]["weight"]["dtype"],
            "order": table["order"]["kind"],
            "optimizer_state": sorted({state_key(tensor) for tensor in table["tensors"]} - {""}),
            "updates": record["numbers"].get(name, {}).get("num_updates", 0),
        }
        for name, table in record["tables"].items()
    ]
    return {
        "path": str(folder),
        "step": record["step"],
        "best": record["best"],
        "format": record["format"],
        "tapas": record["tapas"],
        "processes": record["processes"],
        "bytes": sum(each["bytes"] for each in record["files"].values()),
        "tables": tables,
        "valid": problem is None,
        "problem": problem,
    }


def state_key(tensor: str) -> str:
    """The optimizer's name of a row tensor: "sum" for weight_sum and bias_sum, "" for weight."""
    return tensor.partition("_")[2]
