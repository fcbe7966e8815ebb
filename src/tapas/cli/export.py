"""`tapas export`: item vectors, a FAISS index or the encoder, in files for other systems."""

import copy
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from tapas.cli.exit_codes import report_errors
from tapas.cli.options import AsJson, OwnMethods, import_methods
from tapas.cli.terminal import status
from tapas.errors import UsageError
from tapas.retrieval.export_folder import EXPORT_FORMAT, EXPORT_RECORD
from tapas.version import __version__

if TYPE_CHECKING:
    from tapas.training.model import SequenceModel
    from tapas.training.run_folder import RunFolder

QUERIES = 1_000  # of real users, to tune an index and to measure its recall
NEIGHBOURS = 20
Writer = Callable[["RunFolder", "SequenceModel", Path], dict[str, Any]]


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")],
    to: Annotated[
        Path,
        typer.Option(
            metavar="PATH",
            help="What to write, by its ending: a FAISS index (.faiss), item vectors "
            "(.safetensors, "
            ".parquet) or the encoder (.pt2). A name without an ending is a new folder with "
            "everything that `tapas recommend` needs.",
        ),
    ],
    index: Annotated[
        str,
        typer.Option(
            metavar="exact|hnsw|ivf",
            help="Kind of the FAISS index.",
        ),
    ] = "exact",
    step: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Step of the checkpoint. Default: the best one.",
        ),
    ] = None,
    method: OwnMethods = None,
    as_json: AsJson = False,
) -> None:
    """Write item vectors, a FAISS index or the encoder to files.

    The score of an item is query · vector + bias. In a FAISS index the bias is one more
    dimension, so append a 1 to your queries. The recall of the index, compared with exact lists,
    is measured and printed.

    Of a model with model.copy only the softmax part can be exported, without the part that
    copies from the history, and no folder. A failed export leaves no file.
    """
    with report_errors():
        from tapas.training.run_evaluation import load_model
        from tapas.training.run_folder import open_run

        writers: dict[str, Writer] = {
            ".faiss": partial(_faiss, kind=index),
            ".safetensors": _safetensors,
            ".parquet": _parquet,
            ".pt2": _encoder,
            "": _folder,
        }
        if to.suffix not in writers:
            raise UsageError(
                f"cannot tell what to write to {to}: its name must end in "
                f"{', '.join(s for s in writers if s)}, or have no ending for a folder."
            )
        import_methods(method)
        folder = open_run(run)
        copies = folder.config.model.copy
        if copies and not to.suffix:
            raise UsageError(
                f"{run} was trained with model.copy, and the part that copies from the history "
                "cannot be exported. Recommend from the run itself, or train without it."
            )
        model, at = load_model(folder, step)
        numbers = writers[to.suffix](folder, model, to)
        if copies:
            numbers["part"] = "softmax"
            status(
                f"{to} has only the softmax part, not the part that copies from the history "
                "(model.copy): its lists differ from those of `tapas recommend`."
            )
        if as_json:
            typer.echo(json.dumps({"path": str(to), "step": at, **numbers}))
        said = ", ".join(f"{name} {value}" for name, value in numbers.items())
        status(f"Wrote {to} from checkpoint step {at:,} ({said}).")


def _rows(model: "SequenceModel") -> tuple[torch.Tensor, torch.Tensor]:
    weight, bias = model.output_table.rows(torch.arange(model.head.num_classes))
    return weight, bias


def _keys(folder: "RunFolder") -> list[str | int]:
    import numpy as np

    return folder.log.item_keys.keys(np.arange(folder.log.num_items))


def _safetensors(folder: "RunFolder", model: "SequenceModel", to: Path) -> dict[str, Any]:
    from tapas.retrieval import export_embeddings

    export_embeddings(to, *_rows(model), _keys(folder))
    return {"items": model.head.num_classes, "dim": model.head.dim}


def _parquet(folder: "RunFolder", model: "SequenceModel", to: Path) -> dict[str, Any]:
    from tapas.data.table_files import write_frame

    weight, bias = _rows(model)
    write_frame(to, {"key": _keys(folder), "vector": weight.numpy(), "bias": bias.numpy()})
    return {"items": model.head.num_classes, "dim": model.head.dim}


def _queries(folder: "RunFolder", model: "SequenceModel") -> torch.Tensor:
    """Queries of the encoder for the histories of up to 1,000 users."""
    from tapas.data.windows import gather_histories

    log = folder.log
    end = log.offsets[1 : QUERIES + 1]
    items, lengths, _ = gather_histories(
        log.items, log.offsets[: len(end)], end, folder.config.model.history
    )
    return model.query(torch.from_numpy(items), torch.from_numpy(lengths))


def _faiss(folder: "RunFolder", model: "SequenceModel", to: Path, kind: str) -> dict[str, Any]:
    from tapas.retrieval import build_index, measured_recall

    query = _queries(folder, model)
    built = build_index(*_rows(model), kind, query=query)
    built.save(to)
    k = min(NEIGHBOURS, model.head.num_classes)
    _, exact = model.head.topk(query, k)
    recall = measured_recall(built, query, exact, k)
    return {"index": kind, f"recall@{k}": round(recall, 4), "queries": len(query)}


def _encoder(folder: "RunFolder", model: "SequenceModel", to: Path) -> dict[str, Any]:
    from tapas.retrieval import export_encoder
    from tapas.retrieval.encoder_export import QueryModule

    history = folder.config.model.history
    weight, _ = model.inputs.rows(torch.arange(model.inputs.num_classes))
    module = QueryModule(weight, copy.deepcopy(model.encoder))
    example = torch.zeros(3, history, dtype=torch.int64), torch.tensor([1, history, 2])
    example[1].clamp_(max=history)
    export_encoder(module, to, example)
    return {"history": history}


def _folder(folder: "RunFolder", model: "SequenceModel", to: Path) -> dict[str, Any]:
    from tapas.data.event_log import VOCABULARIES

    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(f"{to} exists and is not an empty folder. Choose another --to.")
    unfinished = to.with_name(f".{to.name}.{os.getpid()}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)  # left by a process that was killed
        unfinished.mkdir(parents=True)
        shutil.copyfile(folder.log.folder / VOCABULARIES["item"], unfinished / "items.parquet")
        numbers = _safetensors(folder, model, unfinished / "embeddings.safetensors")
        numbers |= _encoder(folder, model, unfinished / "encoder.pt2")
        serving = {
            "score": "probability" if model.head.targets_softmax else "score",
            "exclude_seen": folder.config.loop.exclude_seen,
        }
        record = {"format": EXPORT_FORMAT, "tapas": __version__, **numbers, **serving}
        file = unfinished / EXPORT_RECORD
        file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        unfinished.rename(to)  # replaces an empty folder
    except OSError as error:
        raise UsageError(f"cannot write {to}: {error.strerror}. Choose another --to.") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return numbers
