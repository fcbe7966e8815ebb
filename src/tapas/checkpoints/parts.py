"""Checkpoints of tables on servers: each writes and reads its own rows, in its own process.

    server j    write_shards    __j_0.distcp in the folder that CheckpointFolder.save has made
                load_shard      its rows of what anyone saved
    the others  load_rest       the encoder, the optimizer: what is no table

The process that saves hands `CheckpointFolder.save` a way to ask the servers. The result is
what as many ranks would have saved.
"""

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tapas.checkpoints.folder import Checkpoint, CheckpointFolder
from tapas.checkpoints.rows import ShardRows, read_rest, read_shards
from tapas.checkpoints.saving import Unwritten
from tapas.tables.shard import Shard

if TYPE_CHECKING:
    from tapas.checkpoints.piece_plans import Part


def write_shards(folder: Path, number: int, tables: Mapping[str, Shard]) -> "Part | Unwritten":
    """Write the rows of server `number` into `folder`, which exists; on the disk on return.

    `tables` are by the names that they have in a checkpoint, such as "model.head.table". A
    disk that is full is an answer, too, so that all servers are heard before anything is
    given up. Bears being called twice.
    """
    from tapas.checkpoints.pieces import Piece, Pieces, write_part

    held: dict[str, Pieces] = {}
    for prefix, shard in tables.items():
        start, total = shard.whole.start(shard.number), shard.whole.num_classes
        for name, rows in shard.row_tensors().items():
            if len(rows):
                held[f"{prefix}.{name}"] = Piece(rows, start, total)
            elif number == 0:  # a table without biases has none, and says so once
                held[f"{prefix}.{name}"] = rows
    try:
        return write_part(folder, number, held)
    except OSError as error:
        code = error.errno or errno.EIO
        return Unwritten(number, code, error.strerror or os.strerror(code))


def load_shard(
    folder: CheckpointFolder,
    step: int | None,
    shards: Mapping[str, ShardRows],
    *,
    part: int,
    parts: int,
) -> Checkpoint:
    """The rows of `shards` in the checkpoint of `step`, by default the newest; no other tensor.

    `shards` are by names such as "model.head.table". It does not matter who saved it. `parts`
    processes that load at once share the work of checking, and this is number `part` of them;
    so a server that loads what as many have saved checks the file that it had written itself.
    """
    step, at, record = folder.verified(step, part=part, parts=parts)
    return Checkpoint(step, read_shards(at, record, shards), record["state"])


def load_rest(
    folder: CheckpointFolder, step: int | None = None, *, part: int = 0, parts: int = 1
) -> Checkpoint:
    """What is no table in the checkpoint of `step`, by default the newest, read without any rows.

    Checks its share of the files, as in `load_shard`; all of them, rows too, if `parts` is 1.
    """
    step, at, record = folder.verified(step, part=part, parts=parts)
    return Checkpoint(step, read_rest(at, record), record["state"])
