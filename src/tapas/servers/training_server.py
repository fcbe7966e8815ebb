"""`TrainingServer`: a row server of a run, which starts from a checkpoint and saves its rows."""

from pathlib import Path

import torch

from tapas.atomic_file import atomic_write
from tapas.checkpoints.rows import TableRows, WriteFailed, Written, write_rows
from tapas.checksums import write_json
from tapas.data.splits import split_log
from tapas.errors import DataError
from tapas.servers.messages import Version
from tapas.servers.row_server import RowServer
from tapas.tables.shard import Shard
from tapas.training.build import bias_from_counts, table_specs
from tapas.training.run_folder import RESTORE, RunFolder, open_run, read_restore_point


def restore_point(run: Path) -> int | None:
    """The step of the checkpoint from which servers start; None for the start of the run."""
    file = run / RESTORE
    if not file.exists():
        return None
    try:
        return read_restore_point(file)
    except DataError as error:
        raise DataError(f"{error} Continue with --resume.") from None


def set_restore_point(run: Path, step: int | None) -> None:
    with atomic_write(run / RESTORE) as unfinished:
        write_json(unfinished, {"step": step})


class TrainingServer(RowServer):
    """A row server that can save its rows; its tables are named as in checkpoints."""

    def save(self, folder: str) -> tuple[Written | WriteFailed, Version, int]:
        """Write all rows of this server into `folder` and flush them to disk.

        The last item is the step of the checkpoint that this process started from.
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
    """Server `number` of the run at `path`, at its start or at its restore point."""
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
    """Load the rows of server `number` from the checkpoint of `step` into `shards`."""
    wanted = {name: shard.row_range for name, shard in shards.items()}
    num_readers = run.config.service.servers + 1  # the encoder server reads the last
    found = run.checkpoints.load_rows(step, wanted, reader=number, num_readers=num_readers)
    for name, shard in shards.items():
        for key, rows in shard.row_tensors().items():
            if len(rows):  # empty for the biases of a table without them
                rows.copy_(found.tensors[f"{name}.{key}"])
        shard.num_updates = found.numbers[name]["num_updates"]
