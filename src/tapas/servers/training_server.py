"""The servers of a run: each begins its shard of every table, or loads it, and saves it."""

import json
from pathlib import Path

import torch

from tapas.atomic_file import atomic_write
from tapas.checkpoints.rows import TableRows, WriteFailed, Written, write_rows
from tapas.data.splits import split_log
from tapas.errors import DataError
from tapas.servers.messages import Version
from tapas.servers.row_server import RowServer
from tapas.tables.shard import Shard
from tapas.training.build import bias_from_counts, table_specs
from tapas.training.run_folder import RunFolder, open_run

FILE = "restore.json"


def restore_point(run: Path) -> int | None:
    """The step of the checkpoint to go on from; None is the beginning."""
    file = run / FILE
    try:
        step = json.loads(file.read_text(encoding="utf-8"))["step"]
        return None if step is None else int(step)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is damaged: {error}. Go on with --resume.") from error


def set_restore_point(run: Path, step: int | None) -> None:
    with atomic_write(run / FILE) as unfinished:
        unfinished.write_text(json.dumps({"step": step}) + "\n", encoding="utf-8")


class TrainingServer(RowServer):
    """A server that can save its rows; its tables have the names that checkpoints give them."""

    def save(self, folder: str) -> tuple[Written | WriteFailed, Version, int]:
        """Write all rows kept here into `folder`, on the disk when this returns.

        The last is the step of the checkpoint that this process began from.
        """
        with self._locked("save"):
            kept = {
                name: TableRows(shard.row_range, shard.row_tensors())
                for name, shard in self.shards.items()
            }
            return (
                write_rows(Path(folder), self.number, kept),
                self._current_version(),
                self.restored,
            )


def start_server(path: Path, number: int) -> TrainingServer:
    """Server `number` of the run at `path`, as it began or as its checkpoint has it."""
    run = open_run(path)
    specs = table_specs(run.config, run.log.num_items)
    step = restore_point(path)
    if step is not None:
        shards = {name: spec.shard(number) for name, spec in specs.items()}
        load_rows(run, step, number, shards)
        return TrainingServer(number, shards, applied_below=step)
    bias = bias_from_counts(split_log(run.log, run.config.split).train_counts)
    shards = {}
    for name, spec in specs.items():
        start = bias[spec.layout().ids_of(number)] if spec.has_bias else None
        shards[name] = spec.shard(number, start)
    return TrainingServer(number, shards)


@torch.no_grad()
def load_rows(run: RunFolder, step: int, number: int, shards: dict[str, Shard]) -> None:
    """Fill `shards` with what the checkpoint of `step` has for server `number`."""
    wanted = {name: shard.row_range for name, shard in shards.items()}
    parts = run.config.service.servers + 1  # the last is that of the encoder
    found = run.checkpoints.load_rows(step, wanted, part=number, parts=parts)
    for name, shard in shards.items():
        for key, rows in shard.row_tensors().items():
            if len(rows):  # a table without biases has none
                rows.copy_(found.tensors[f"{name}.{key}"])
        shard.num_updates = found.numbers[name]["num_updates"]
