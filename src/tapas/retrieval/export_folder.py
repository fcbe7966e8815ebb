"""The folder that `tapas export --to FOLDER` writes, opened as a `Recommender`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.errors import DataError, UsageError
from tapas.retrieval.embeddings import load_embeddings
from tapas.retrieval.encoder_export import load_encoder
from tapas.retrieval.recommender import Recommender
from tapas.tables import LocalTable
from tapas.version import __version__

EXPORT_RECORD = "export.json"
EXPORT_FORMAT = 1


def is_export(path: Path) -> bool:
    return (path / EXPORT_RECORD).exists()


class ExportedModel(Recommender):
    """The model of an export: its encoder, class rows and item keys."""

    def __init__(self, path: Path, device: str | torch.device | None = None):
        from tapas.data.vocabulary import Vocabulary

        record = _record(path)
        rows = load_embeddings(path / "embeddings.safetensors")
        self._encoder = load_encoder(path / "encoder.pt2")
        keys = Vocabulary.load(path / "items.parquet", kind="item")
        self._table = LocalTable(*rows.weight.shape, device=device)
        with torch.no_grad():
            self._table.weight.copy_(rows.weight)
            self._table.bias.copy_(rows.bias)
        super().__init__(
            name=f"export {path}",
            item_keys=keys,
            log=None,
            history_length=self._encoder.history_length,
            score=str(record.get("score", "score")),  # an older export does not say
            exclude_seen=bool(record.get("exclude_seen", False)),
            fixed_width=True,
        )

    def queries(self, items: Tensor, lengths: Tensor) -> Tensor:
        return self._encoder(items, lengths).to(self._table.device)

    def ranked(
        self, items: Tensor, lengths: Tensor, k: int, exclude: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        table = self._table
        topk = table.topk_log_prob if self.score == "probability" else table.topk
        return topk(self.queries(items, lengths), k, exclude=exclude)

    def class_vectors(self) -> Tensor:
        return self._table.weight

    def training_counts(self) -> NDArray[np.int64]:
        return self.item_keys.counts


def _record(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads((path / EXPORT_RECORD).read_text(encoding="utf-8"))
        found = record["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path / EXPORT_RECORD} cannot be read: {error}.") from error
    if not isinstance(found, int):
        raise DataError(f"{path / EXPORT_RECORD} has no format number: tapas did not write it.")
    if found > EXPORT_FORMAT:
        raise UsageError(
            f"{path} has export format {found}; this is tapas {__version__}, which reads formats "
            f"up to {EXPORT_FORMAT}. Upgrade tapas-softmax."
        )
    return record
