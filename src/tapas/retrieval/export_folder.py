"""The folder that `tapas export --to FOLDER` writes, opened as a `Recommender`."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tapas.checksums import Checksum, check_files, is_checksum, not_as_saved, read_json
from tapas.encoders import latest
from tapas.errors import DataError, UsageError
from tapas.mixture import Mixture, Past, TablePrediction
from tapas.regular_file import check_stored
from tapas.retrieval.counting_parts import read_counting_parts
from tapas.retrieval.embeddings import load_embeddings
from tapas.retrieval.encoder_export import ExportedEncoder, load_encoder
from tapas.retrieval.encoder_weights import WeightsEncoder, read_encoder
from tapas.retrieval.recommender import Recommender
from tapas.shapes import check_device
from tapas.tables import LocalTable
from tapas.version import check_format

EXPORT_RECORD, RUN_RECORD = "export.json", "run.json"
ENCODER_WEIGHTS, ENCODER_PROGRAM = "encoder.safetensors", "encoder.pt2"
COUNTING = "counting.safetensors"
READ = ("embeddings.safetensors", "items.parquet", ENCODER_WEIGHTS, COUNTING)  # by this library
EXPORT_FORMAT = 2  # with counting parts, which versions that read only 1 would leave out


def is_export(path: Path) -> bool:
    """Whether `path` is an export. A folder with run.json is a run, whatever else lies in it."""
    return os.path.lexists(path / EXPORT_RECORD) and not os.path.lexists(path / RUN_RECORD)


class ExportedModel(Recommender):
    """The model of an export: its encoder, class rows and item keys.

    An export of an earlier version has its encoder only as a program, which is loaded with `trust`.
    """

    def __init__(
        self, path: Path, device: str | torch.device | None = None, *, trust: bool = False
    ):
        from tapas.data.vocabulary import Vocabulary

        record = read_export_record(path)
        expected = export_checksums(path, record) or {}
        read = {path / name for name in READ}
        try:
            check_files({file: each for file, each in expected.items() if file in read})
        except DataError as error:
            raise DataError(f"{error} Export the run again.") from None
        rows = load_embeddings(_file(path / "embeddings.safetensors"))
        keys = Vocabulary.load(_file(path / "items.parquet"), kind="item")
        if len(keys) != len(rows.weight):
            raise DataError(
                f"{path} has {len(keys):,} items in items.parquet and {len(rows.weight):,} rows in "
                "embeddings.safetensors; expected as many. Export the run again."
            )
        self._encoder = _encoder(path, record, rows.weight, trust=trust)
        device = check_device("device", device)
        self._table = LocalTable(*rows.weight.shape, device="meta")  # rows stay in their file
        for name, values in (("weight", rows.weight), ("bias", rows.bias)):
            placed = values.to(device, torch.float32)
            setattr(self._table, name, nn.Parameter(placed, requires_grad=False))
        self._table.gradients.follow_rows()
        if isinstance(self._encoder, WeightsEncoder):
            self._encoder.to(self._table.device)
        self._mixture: Mixture | None = None
        reads = self._encoder.history_length
        if "reads" in record:  # the events that counting parts read
            self._mixture = read_counting_parts(_file(path / COUNTING), len(keys))
            reads = max(reads, record["reads"])
        super().__init__(
            name=f"export {path}",
            item_keys=keys,
            log=None,
            history_length=reads,
            score=str(record.get("score", "score")),  # an older export does not say
            exclude_seen=bool(record.get("exclude_seen", False)),
            fixed_width=isinstance(self._encoder, ExportedEncoder),
        )

    @property
    def output_table(self) -> LocalTable:
        return self._table

    @property
    def mixture(self) -> Mixture | None:
        return self._mixture

    def queries(self, items: Tensor, lengths: Tensor) -> Tensor:
        query: Tensor = self._encoder(*latest(items, lengths, self._encoder.history_length))
        return query.to(self._table.device)

    def predict(self, items: Tensor, lengths: Tensor, age: Tensor | None = None) -> TablePrediction:
        past = None
        if self._mixture is not None:
            past = Past.of(items.cpu(), lengths.cpu(), age)
        return TablePrediction(self._table, self.queries(items, lengths), self._mixture, past)

    def class_vectors(self) -> Tensor:
        return self._table.weight

    def training_counts(self) -> NDArray[np.int64]:
        return self.item_keys.counts


def _encoder(
    path: Path, record: dict[str, Any], rows: Tensor, *, trust: bool
) -> WeightsEncoder | ExportedEncoder:
    """The encoder from its weights, or from the program of an older export if that is trusted."""
    if "encoder" in record:
        return read_encoder(_file(path / ENCODER_WEIGHTS), record["encoder"], rows)
    if not trust:
        raise UsageError(
            f"{path} was exported by an earlier version of tapas, with its encoder only as a "
            f"program ({ENCODER_PROGRAM}), which could do anything that you can. Export the run "
            "again, or add --trust (in Python trust=True) if you know who made the folder."
        )
    return load_encoder(_file(path / ENCODER_PROGRAM), trust=True)


def _file(path: Path) -> Path:
    """`path`, a file of the folder; DataError if it is missing or no regular file."""
    try:
        return check_stored(path)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}. Export the run again."
        ) from error


def read_export_record(path: Path) -> dict[str, Any]:
    """The content of export.json; DataError if it is damaged, UsageError if it is newer."""
    record = read_json(path / EXPORT_RECORD)
    check_format(path / EXPORT_RECORD, record, "export", EXPORT_FORMAT)
    if record.get("score", "score") not in ("score", "probability"):
        raise DataError(
            f"{path / EXPORT_RECORD}: score is {record['score']!r}; expected 'score' or "
            "'probability'. Export the run again."
        )
    reads = record.get("reads", 1)
    if type(reads) is not int or reads < 1:
        raise DataError(
            f"{path / EXPORT_RECORD}: reads is {reads!r}; expected how many events of a history "
            "the model reads. Export the run again."
        )
    return record


def export_checksums(path: Path, record: dict[str, Any]) -> dict[Path, Checksum] | None:
    """The checksums of the files of an export; None if an earlier version wrote it."""
    files = record.get("files")
    if files is None:
        return None
    if not isinstance(files, dict) or not all(map(is_checksum, files.values())):
        raise not_as_saved(path / EXPORT_RECORD)
    return {path / Path(name).name: each for name, each in files.items()}
