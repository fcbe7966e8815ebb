"""The models that `tapas recommend` can open: a run, or an exported folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tapas.errors import DataError, UsageError
from tapas.retrieval import Recommender
from tapas.version import __version__

if TYPE_CHECKING:
    from tapas.data.event_log import EventLog
    from tapas.data.vocabulary import Vocabulary

EXPORT_RECORD = "export.json"
EXPORT_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A recommender, the keys of its items, and the log of its users; an export has no log."""

    recommender: Recommender
    item_keys: "Vocabulary"
    log: "EventLog | None"


def open_model(path: Path, step: int | None = None) -> ModelSource:
    if (path / EXPORT_RECORD).exists():
        if step is not None:
            raise UsageError(
                f"{path} is an export, which has one checkpoint only. Leave out --step."
            )
        return _open_export(path)
    return _open_run(path, step)


def _open_run(path: Path, step: int | None) -> ModelSource:
    from tapas.training.model import Prediction
    from tapas.training.run_evaluation import load_model
    from tapas.training.run_folder import open_run

    run = open_run(path)
    model, _ = load_model(run, step)
    rare_id = run.log.item_keys.rare_id

    def topk(prediction: Prediction, k: int, exclude: Tensor | None) -> tuple[Tensor, Tensor]:
        exclude = _with(exclude, len(prediction.query), rare_id)
        return prediction.topk(min(k, model.head.num_classes), exclude)

    recommender = Recommender(
        encode=model.predict, topk=topk, history_length=run.config.model.history
    )
    return ModelSource(recommender, run.log.item_keys, run.log)


def _open_export(path: Path) -> ModelSource:
    from tapas.data.vocabulary import Vocabulary
    from tapas.retrieval import load_embeddings, load_encoder
    from tapas.tables import LocalTable

    try:
        found = json.loads((path / EXPORT_RECORD).read_text(encoding="utf-8"))["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path / EXPORT_RECORD} cannot be read: {error}.") from error
    if not isinstance(found, int):
        raise DataError(f"{path / EXPORT_RECORD} has no format number: tapas did not write it.")
    if found > EXPORT_FORMAT:
        raise UsageError(
            f"{path} has export format {found}; this is tapas {__version__}, which reads formats "
            f"up to {EXPORT_FORMAT}. Upgrade tapas-softmax."
        )
    embeddings = load_embeddings(path / "embeddings.safetensors")
    encoder = load_encoder(path / "encoder.pt2")
    keys = Vocabulary.load(path / "items.parquet", kind="item")
    num_classes, dim = embeddings.weight.shape
    table = LocalTable(num_classes, dim)
    with torch.no_grad():
        table.weight.copy_(embeddings.weight)
        table.bias.copy_(embeddings.bias)

    def topk(query: Tensor, k: int, exclude: Tensor | None) -> tuple[Tensor, Tensor]:
        exclude = _with(exclude, len(query), keys.rare_id)
        return table.topk(query, min(k, num_classes), exclude=exclude)

    recommender = Recommender(encode=encoder, topk=topk, history_length=encoder.history_length)
    return ModelSource(recommender, keys, None)


def _with(exclude: Tensor | None, num_queries: int, rare_id: int | None) -> Tensor | None:
    """`exclude` (B, E) with one more column: the class of merged rare items, if there is one."""
    if rare_id is None:
        return exclude
    column = torch.full((num_queries, 1), rare_id)
    return column if exclude is None else torch.cat([exclude, column], dim=1)
