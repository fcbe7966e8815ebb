"""Finding a checkpoint, and saying what is in it."""

from pathlib import Path
from typing import Any

from tapas.checkpoints.files import STATE, read_record, verify
from tapas.checkpoints.folder import CheckpointFolder
from tapas.errors import DataError, UsageError

CHECKPOINTS = "checkpoints"  # the folder of them in that of a run


def find_checkpoint(path: Path, step: int | None = None) -> Path:
    """The folder of one step at `path`: a run, its checkpoints (the newest), or the step itself."""
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
        f"{path} holds no checkpoint. Expected the folder of a run, its '{CHECKPOINTS}' or one "
        "step of them."
    )


def describe(folder: Path) -> dict[str, Any]:
    """What the checkpoint in `folder` is, and whether it is whole."""
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
        "whole": problem is None,
        "problem": problem,
    }


def state_key(tensor: str) -> str:
    """What an optimizer calls it: "sum" of weight_sum and bias_sum; "" of weight and bias."""
    return tensor.partition("_")[2]
