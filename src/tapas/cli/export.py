"""`tapas export`: item vectors, a FAISS index or the encoder, in files for other systems."""

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from tapas.checksums import checksum, with_checksum
from tapas.cli.exit_codes import report_errors
from tapas.cli.export_readme import export_readme
from tapas.cli.options import AsJson, OwnMethods, import_methods
from tapas.cli.terminal import print_json, status
from tapas.errors import UsageError
from tapas.retrieval.export_folder import (
    ENCODER_PROGRAM,
    ENCODER_WEIGHTS,
    EXPORT_FORMAT,
    EXPORT_RECORD,
    is_export,
)
from tapas.version import __version__

if TYPE_CHECKING:
    from tapas.training.model import SequenceModel
    from tapas.training.run_folder import RunFolder

QUERIES = 1_000  # histories; half of them tune an index, half measure its recall
KEYS_SUFFIX = ".keys.json"


@dataclass(frozen=True, slots=True)
class Written:
    """What an export contains: in words, and as fields of --json."""

    words: str
    numbers: dict[str, Any]


Writer = Callable[["RunFolder", "SequenceModel", int, Path], Written]


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")],
    to: Annotated[
        Path,
        typer.Option(
            metavar="PATH",
            help="What to write, by its ending: a FAISS index (.faiss), item vectors "
            "(.safetensors, "
            ".parquet) or the encoder (.pt2). A name without an ending is a new folder with "
            "everything that `tapas recommend`, or a program without tapas, needs.",
        ),
    ],
    index: Annotated[
        str | None,
        typer.Option(
            metavar="exact|hnsw|ivf",
            help="Kind of the FAISS index. Default: exact for a .faiss file, and a folder has no "
            "index.",
        ),
    ] = None,
    recall: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="With --index hnsw or ivf: share of the exact top 20 that the index must find. "
            "Default: 0.95.",
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Step of the checkpoint. Default: the best one.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace what is there: a file, or an exported folder."),
    ] = False,
    method: OwnMethods = None,
    as_json: AsJson = False,
) -> None:
    """Write item vectors, a FAISS index or the encoder to files.

    The score of an item is query · vector + bias. Searching a FAISS index with queries of the
    encoder gives these scores; the key of row i is entry i of the .keys.json file beside the
    index. The effort of an approximate index is raised until it finds enough of the exact lists
    of the model's own histories; if it cannot, no file is written.

    Of a model with model.copy only the softmax part can be exported, without the part that
    copies from the history, and no folder. A failed export leaves no file.
    """
    with report_errors():
        from tapas.training.run_evaluation import load_model
        from tapas.training.run_folder import open_run

        writers: dict[str, Writer] = {
            ".faiss": partial(_faiss, kind=index or "exact", recall=recall),
            ".safetensors": _safetensors,
            ".parquet": _parquet,
            ".pt2": _encoder,
            "": partial(_folder, kind=index, recall=recall, force=force),
        }
        if to.suffix not in writers:
            raise UsageError(
                f"cannot tell what to write to {to}: its name must end in "
                f"{', '.join(s for s in writers if s)}, or have no ending for a folder."
            )
        _check_options(to, index, recall)
        _check_free(to, force)
        import_methods(method)
        folder = open_run(run)
        copies = folder.config.model.copy
        if copies and not to.suffix:
            raise UsageError(
                f"{run} was trained with model.copy, and the part that copies from the history "
                "cannot be exported. Recommend from the run itself, or train without it."
            )
        model, at = load_model(folder, step)
        written = writers[to.suffix](folder, model, at, to)
        numbers = written.numbers
        if copies:
            numbers["part"] = "softmax"
            status(
                f"{to} has only the softmax part, not the part that copies from the history "
                "(model.copy): its lists differ from those of `tapas recommend`."
            )
        if as_json:
            print_json({"path": str(to), "step": at, **numbers})
        files = f"{to} and {_keys_file(to).name}" if to.suffix == ".faiss" else str(to)
        status(f"Wrote {files} from checkpoint step {at:,}: {written.words}.")


def _check_options(to: Path, index: str | None, recall: float | None) -> None:
    """Refuse options that would have no effect."""
    if index is not None and to.suffix not in (".faiss", ""):
        raise UsageError(f"--index is for a .faiss file or a folder; {to} has no index.")
    if recall is not None and not 0 < recall <= 1:
        raise UsageError(f"--recall must be above 0 and at most 1, got {recall}.")
    if recall is not None and index in (None, "exact"):
        raise UsageError("--recall is for --index hnsw or ivf: an exact index finds everything.")


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
    beside = [_keys_file(to)] if to.suffix == ".faiss" else []
    for path in (to, *beside):
        if path.exists() and not force:
            raise UsageError(f"{path} exists. Choose another --to or add --force.")


def _rows(model: "SequenceModel") -> tuple[torch.Tensor, torch.Tensor]:
    weight, bias = model.output_table.rows(torch.arange(model.head.num_classes))
    return weight, bias


def _keys(folder: "RunFolder") -> list[str | int]:
    import numpy as np

    return folder.log.item_keys.keys(np.arange(folder.log.num_items))


def _keys_file(index: Path) -> Path:
    return index.with_suffix(KEYS_SUFFIX)


def _safetensors(folder: "RunFolder", model: "SequenceModel", at: int, to: Path) -> Written:
    from tapas.retrieval import export_embeddings

    export_embeddings(to, *_rows(model), _keys(folder))
    return _vectors(model)


def _parquet(folder: "RunFolder", model: "SequenceModel", at: int, to: Path) -> Written:
    from tapas.data.table_files import write_frame

    weight, bias = _rows(model)
    write_frame(to, {"key": _keys(folder), "vector": weight.numpy(), "bias": bias.numpy()})
    return _vectors(model)


def _vectors(model: "SequenceModel") -> Written:
    items, dim = model.head.num_classes, model.head.dim
    return Written(
        f"vectors ({dim} dimensions) and biases of {items:,} items", {"items": items, "dim": dim}
    )


def _queries(folder: "RunFolder", model: "SequenceModel") -> torch.Tensor:
    """Queries of the encoder for the histories of up to 1,000 users, spread over the log."""
    import numpy as np

    from tapas.data.windows import gather_histories

    log = folder.log
    num_users = len(log.offsets) - 1
    users = np.unique(np.linspace(0, num_users - 1, min(QUERIES, num_users)).astype(np.int64))
    items, lengths, _ = gather_histories(
        log.items, log.offsets[users], log.offsets[users + 1], folder.config.model.history
    )
    with torch.no_grad():
        return model.query(torch.from_numpy(items), torch.from_numpy(lengths))


def _faiss(
    folder: "RunFolder",
    model: "SequenceModel",
    at: int,
    to: Path,
    kind: str,
    recall: float | None,
) -> Written:
    from tapas.atomic_file import atomic_write
    from tapas.retrieval.faiss_index import MEASURED_AT, WANTED_RECALL, build_index

    query, (weight, bias) = _queries(folder, model), _rows(model)
    keys: list[str | int | None] = [*_keys(folder)]
    rare = folder.log.item_keys.rare_id
    if rare is not None:  # never recommended: give it the lowest score that a query can have
        lowest = bias.min() - weight.norm(dim=1).max() * query.norm(dim=1).max()
        weight, bias = weight.index_fill(0, torch.tensor([rare]), 0), bias.clone()
        bias[rare] = lowest
        keys[rare] = None
    built = build_index(weight, bias, kind, query=query, recall=recall or WANTED_RECALL)
    with atomic_write(_keys_file(to)) as unfinished:
        unfinished.write_text(json.dumps(keys, ensure_ascii=False) + "\n", encoding="utf-8")
        built.save(to)
    numbers: dict[str, Any] = {"index": kind, "items": len(keys), "keys": _keys_file(to).name}
    words = f"{kind if kind == 'exact' else kind.upper()} index of {len(keys):,} items"
    k = min(MEASURED_AT, len(keys))
    measured = f"measured with {built.num_queries:,} histories"
    for name, value in built.effort.items():
        words += f", recall@{k} {built.recall:.3f} at {name} {value:,}, {measured}"
    found = None if built.recall is None else round(built.recall, 4)
    numbers |= {f"recall@{k}": found, **built.effort, "histories": built.num_queries}
    return Written(words, numbers)


def _encoder(folder: "RunFolder", model: "SequenceModel", at: int, to: Path) -> Written:
    from tapas.retrieval import export_encoder
    from tapas.retrieval.encoder_export import QueryModule

    history = folder.config.model.history
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


def _weights(folder: "RunFolder", model: "SequenceModel", to: Path) -> dict[str, Any]:
    """Write the weights of the encoder; returns its settings, for export.json."""
    from tapas.retrieval.encoder_weights import write_encoder

    config = folder.config.model
    inputs = None
    if model.input_table is not None:
        inputs, _ = model.inputs.rows(torch.arange(model.inputs.num_classes))
    write_encoder(to, model.encoder, inputs)
    sizes = {n: getattr(config, n) for n in ("dim", "history", "layers", "attention_heads")}
    return {"kind": config.encoder, **sizes, "precision": folder.config.loop.precision}


@contextmanager
def _unfinished(to: Path, force: bool) -> Iterator[Path]:
    """Yield a folder that becomes `to` when the block ends; UsageError if it cannot."""
    from tapas.atomic_file import is_taken, make_folder, unfinished_folder

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
    folder: "RunFolder",
    model: "SequenceModel",
    at: int,
    to: Path,
    kind: str | None,
    recall: float | None,
    force: bool,
) -> Written:
    from tapas.data.event_log import VOCABULARIES

    with _unfinished(to, force) as unfinished:
        shutil.copyfile(folder.log.folder / VOCABULARIES["item"], unfinished / "items.parquet")
        written = [
            _safetensors(folder, model, at, unfinished / "embeddings.safetensors"),
            _encoder(folder, model, at, unfinished / ENCODER_PROGRAM),
        ]
        settings = _weights(folder, model, unfinished / ENCODER_WEIGHTS)
        if kind is not None:
            file = unfinished / "index.faiss"
            written.append(_faiss(folder, model, at, file, kind, recall))
        numbers = {name: value for part in written for name, value in part.numbers.items()}
        serving = {
            "score": "probability" if model.head.targets_softmax else "score",
            "exclude_seen": folder.config.loop.exclude_seen,
            "encoder": settings,
        }
        readme = export_readme(
            at,
            numbers,
            index=written[-1].words if kind else None,
            has_rare=folder.log.item_keys.rare_id is not None,
        )
        (unfinished / "README.txt").write_text(readme, encoding="utf-8")
        about = {"format": EXPORT_FORMAT, "tapas": __version__, "step": at}
        files = {file.name: checksum(file) for file in sorted(unfinished.iterdir())}
        record = with_checksum({**about, **numbers, **serving, "files": files})
        text = json.dumps(record, indent=1) + "\n"
        (unfinished / EXPORT_RECORD).write_text(text, encoding="utf-8")
    said = ["encoder", *(part.words for part in (written[0], *written[2:]))]
    return Written(f"{'; '.join(said)}; README.txt says how to use them", numbers)
