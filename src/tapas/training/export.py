"""Writing a trained model for other systems: item vectors, a FAISS index, the encoder, or all."""

import copy
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tapas.atomic_file import atomic_pair, is_taken, make_folder, unfinished_folder
from tapas.checksums import checksum, write_json
from tapas.data.event_log import VOCABULARIES
from tapas.data.table_files import write_frame
from tapas.data.windows import gather_histories
from tapas.errors import UsageError
from tapas.retrieval import export_embeddings, export_encoder
from tapas.retrieval.counting_parts import write_counting_parts
from tapas.retrieval.encoder_export import QueryModule
from tapas.retrieval.encoder_weights import write_encoder
from tapas.retrieval.export_folder import (
    COUNTING,
    ENCODER_PROGRAM,
    ENCODER_WEIGHTS,
    EXPORT_FORMAT,
    EXPORT_RECORD,
    is_export,
)
from tapas.retrieval.faiss_index import MEASURED_AT, WANTED_RECALL, build_index
from tapas.training.export_readme import export_readme
from tapas.training.model import SequenceModel
from tapas.training.run_evaluation import load_model
from tapas.training.run_folder import RunFolder
from tapas.version import __version__

QUERIES = 1_000  # histories; half of them tune an index, half measure its recall
KEYS_SUFFIX = ".keys.json"
ENDINGS = (".faiss", ".safetensors", ".parquet", ".pt2", "")  # the last is that of a folder


@dataclass(frozen=True, slots=True)
class Written:
    """What an export contains: in words, and as fields of --json."""

    words: str
    numbers: dict[str, Any]


def check_target(to: Path, *, index: str | None, recall: float | None, force: bool) -> None:
    """Raise UsageError if this cannot be written to `to`, before any work is done."""
    if to.suffix not in ENDINGS:
        raise UsageError(
            f"cannot tell what to write to {to}: its name must end in "
            f"{', '.join(s for s in ENDINGS if s)}, or have no ending for a folder."
        )
    if index is not None and to.suffix not in (".faiss", ""):
        raise UsageError(f"--index is for a .faiss file or a folder; {to} has no index.")
    if recall is not None and not 0 < recall <= 1:
        raise UsageError(f"--recall must be above 0 and at most 1, got {recall}.")
    if recall is not None and index in (None, "exact"):
        raise UsageError("--recall is for --index hnsw or ivf: an exact index finds everything.")
    _check_free(to, force)


def export_model(
    run: RunFolder,
    step: int | None,
    to: Path,
    *,
    index: str | None = None,
    recall: float | None = None,
    force: bool = False,
) -> Written:
    """Write the model of a run at `step`, by default its best, to `to`, as its ending says.

    `index` is the kind of the FAISS index, `recall` the share of the exact lists that it must
    find. `force` replaces an export in the folder `to`. A failure leaves no file.
    """
    model, at = load_model(run, step, whole_log=True)
    if to.suffix == ".faiss":
        written = _faiss(run, model, to, index or "exact", recall)
    elif to.suffix == ".safetensors":
        written = _safetensors(run, model, to)
    elif to.suffix == ".parquet":
        written = _parquet(run, model, to)
    elif to.suffix == ".pt2":
        written = _encoder(run, model, to)
    else:
        written = _folder(run, model, at, to, index, recall, force)
    part = {"part": "softmax"} if model.mixture is not None and to.suffix else {}
    return Written(written.words, {"step": at, **written.numbers, **part})


def _check_free(to: Path, force: bool) -> None:
    """Refuse to overwrite anything without --force, and with it any folder but an export."""
    if to.is_dir() and to.samefile(Path.cwd()):
        raise UsageError(
            f"{to} is the working directory, which cannot be replaced. Choose another --to, such "
            f"as {to / 'export'}."
        )
    if not to.suffix and to.is_dir():
        if not any(to.iterdir()):
            return
        if not is_export(to):
            raise UsageError(
                f"{to} exists and is not an exported folder, nor empty. Choose another --to."
            )
    if force:
        return
    if to.exists():
        raise UsageError(f"{to} exists. Choose another --to or add --force.")
    if to.suffix == ".faiss" and _keys_file(to).exists():
        raise UsageError(
            f"{_keys_file(to)} exists, which would have the keys of {to}. Choose another --to or "
            "add --force."
        )


def _rows(model: SequenceModel) -> tuple[torch.Tensor, torch.Tensor]:
    weight, bias = model.output_table.rows(torch.arange(model.head.num_classes))
    return weight, bias


def _keys(run: RunFolder) -> list[str | int]:
    return run.log.item_keys.keys(np.arange(run.log.num_items))


def _keys_file(index: Path) -> Path:
    return index.with_suffix(KEYS_SUFFIX)


def _safetensors(run: RunFolder, model: SequenceModel, to: Path) -> Written:
    export_embeddings(to, *_rows(model), _keys(run))
    return _vectors(model)


def _parquet(run: RunFolder, model: SequenceModel, to: Path) -> Written:
    weight, bias = _rows(model)
    write_frame(to, {"key": _keys(run), "vector": weight.numpy(), "bias": bias.numpy()})
    return _vectors(model)


def _vectors(model: SequenceModel) -> Written:
    items, dim = model.head.num_classes, model.head.dim
    return Written(
        f"vectors ({dim} dimensions) and biases of {items:,} items", {"items": items, "dim": dim}
    )


def _queries(run: RunFolder, model: SequenceModel) -> torch.Tensor:
    """Queries of the encoder for the histories of up to 1,000 users, spread over the log."""
    log = run.log
    num_users = len(log.offsets) - 1
    users = np.unique(np.linspace(0, num_users - 1, min(QUERIES, num_users)).astype(np.int64))
    items, lengths, _ = gather_histories(
        log.items, log.offsets[users], log.offsets[users + 1], run.config.model.history
    )
    with torch.no_grad():
        return model.query(torch.from_numpy(items), torch.from_numpy(lengths))


def _faiss(
    run: RunFolder, model: SequenceModel, to: Path, kind: str, recall: float | None
) -> Written:
    query, (weight, bias) = _queries(run, model), _rows(model)
    keys: list[str | int | None] = [*_keys(run)]
    rare = run.log.item_keys.rare_id
    if rare is not None:  # never recommended: give it the lowest score that a query can have
        lowest = bias.min() - weight.norm(dim=1).max() * query.norm(dim=1).max()
        weight, bias = weight.index_fill(0, torch.tensor([rare]), 0), bias.clone()
        bias[rare] = lowest
        keys[rare] = None
    built = build_index(weight, bias, kind, query=query, recall=recall or WANTED_RECALL)
    with atomic_pair(to, _keys_file(to)) as (index, listed):  # other keys would be wrong answers
        listed.write_text(json.dumps(keys, ensure_ascii=False) + "\n", encoding="utf-8")
        built.write(index)
    numbers: dict[str, Any] = {"index": kind, "items": len(keys), "keys": _keys_file(to).name}
    words = f"{kind if kind == 'exact' else kind.upper()} index of {len(keys):,} items"
    k = min(MEASURED_AT, len(keys))
    measured = f"measured with {built.num_queries:,} histories"
    for name, value in built.effort.items():
        words += f", recall@{k} {built.recall:.3f} at {name} {value:,}, {measured}"
    found = None if built.recall is None else round(built.recall, 4)
    numbers |= {f"recall@{k}": found, **built.effort, "histories": built.num_queries}
    return Written(words, numbers)


def _encoder(run: RunFolder, model: SequenceModel, to: Path) -> Written:
    history = run.config.model.history
    weight, _ = model.inputs.rows(torch.arange(model.inputs.num_classes))
    module = QueryModule(weight, copy.deepcopy(model.encoder))
    example = torch.zeros(3, history, dtype=torch.int64), torch.tensor([1, history, 2])
    example[1].clamp_(max=history)
    export_encoder(module, to, example)
    return Written(
        f"encoder from items (B, {history}) and lengths (B,), both int64, to queries "
        f"(B, {model.head.dim})",
        {"history": history, "dim": model.head.dim},
    )


def _weights(run: RunFolder, model: SequenceModel, to: Path) -> dict[str, Any]:
    """Write the weights of the encoder; returns its settings, for export.json."""
    config = run.config.model
    inputs = None
    if model.input_table is not None:
        inputs, _ = model.inputs.rows(torch.arange(model.inputs.num_classes))
    write_encoder(to, model.encoder, inputs)
    sizes = {n: getattr(config, n) for n in ("dim", "history", "layers", "attention_heads")}
    return {"kind": config.encoder, **sizes, "precision": run.config.loop.precision}


@contextmanager
def unfinished_export(to: Path, force: bool) -> Iterator[Path]:
    """Yield a folder that becomes `to` when the block ends; UsageError if it cannot."""
    try:
        make_folder(to.parent)
        with unfinished_folder(to, replaces=EXPORT_RECORD if force else None) as unfinished:
            yield unfinished
    except UsageError as error:  # from a file inside, which is named by its unfinished path
        raise UsageError(str(error).replace(str(unfinished), str(to))) from error
    except OSError as error:
        if is_taken(error) and to.exists():
            raise UsageError(
                f"another command has just written {to}. Choose another --to or add --force."
            ) from error
        raise UsageError(f"cannot write {to}: {error.strerror}. Choose another --to.") from error


def _folder(
    run: RunFolder,
    model: SequenceModel,
    at: int,
    to: Path,
    kind: str | None,
    recall: float | None,
    force: bool,
) -> Written:
    with unfinished_export(to, force) as unfinished:
        shutil.copyfile(run.log.folder / VOCABULARIES["item"], unfinished / "items.parquet")
        written = [
            _safetensors(run, model, unfinished / "embeddings.safetensors"),
            _encoder(run, model, unfinished / ENCODER_PROGRAM),
        ]
        settings = _weights(run, model, unfinished / ENCODER_WEIGHTS)
        if model.mixture is not None:
            write_counting_parts(unfinished / COUNTING, model.mixture)
        if kind is not None:
            file = unfinished / "index.faiss"
            written.append(_faiss(run, model, file, kind, recall))
        numbers = {name: value for part in written for name, value in part.numbers.items()}
        serving: dict[str, Any] = {
            "score": "probability" if model.head.targets_softmax else "score",
            "exclude_seen": run.config.loop.exclude_seen,
            "encoder": settings,
        }
        if model.mixture is not None:
            serving["reads"] = run.config.model.reads
        readme = export_readme(
            at,
            numbers,
            index=written[-1].words if kind else None,
            has_rare=run.log.item_keys.rare_id is not None,
            has_counts=model.mixture is not None,
        )
        (unfinished / "README.txt").write_text(readme, encoding="utf-8")
        about = {
            "format": 1 if model.mixture is None else EXPORT_FORMAT,  # which older versions refuse
            "tapas": __version__,
            "step": at,
        }
        files = {file.name: checksum(file) for file in sorted(unfinished.iterdir())}
        record = {**about, **numbers, **serving, "files": files}
        write_json(unfinished / EXPORT_RECORD, record)
    said = ["encoder", *(part.words for part in (written[0], *written[2:]))]
    return Written(f"{'; '.join(said)}; README.txt says how to use them", numbers)
