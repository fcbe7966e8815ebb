"""`tapas similar`: items whose vectors are close to those of an item, or of many."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from tapas.cli.exit_codes import report_errors
from tapas.cli.list_output import Names, print_list, report_skipped, write_lists
from tapas.cli.options import (
    AsJson,
    BestStep,
    ListsFile,
    OwnMethods,
    ReplaceOut,
    RunOrExport,
    Trust,
    import_methods,
)
from tapas.cli.terminal import print_json, status
from tapas.errors import UsageError
from tapas.phrases import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tapas.retrieval import Recommender

NAMES = Names("item", "similar", "cosine")


def similar(
    source: RunOrExport,
    item: Annotated[
        str | None, typer.Option(metavar="KEY", help="List the items similar to this one.")
    ] = None,
    items: Annotated[
        str | None,
        typer.Option(
            metavar="all|FILE",
            help="List those of all items, or of the items in a file: Parquet, CSV, JSON lines, or "
            "one id per line.",
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column of the item ids in a file. Default: guessed."),
    ] = None,
    out: ListsFile = None,
    force: ReplaceOut = False,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of items to list. Default: 20, or all if there are fewer.",
        ),
    ] = None,
    step: BestStep = None,
    method: OwnMethods = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Find similar items, by the vectors of the model.

    Similar are items that follow the same histories: those whose output vectors have the highest
    cosine. All items are compared, exactly; an item is not in its own list.

    For one item the list is printed on stdout, one line per item: rank, item, cosine. Many are
    written to --out, one row per pair: item, rank, similar, cosine.
    """
    with report_errors():
        if (item is None) == (items is None):
            raise UsageError("give one of --item KEY or --items all|FILE.")
        if (items is None) != (out is None):
            raise UsageError("--items needs --out FILE, and --out needs --items.")
        if column is not None and items in (None, "all"):
            raise UsageError("--column is for --items FILE. Leave it out.")
        if out is not None:
            from tapas.data.table_files import check_new

            check_new(out, force)
        from tapas.training.load import load

        import_methods(method)
        model = load(source, step=step, trust=trust)
        top = model.check_k(top, "--top", others=True)
        keys = model.item_keys
        if out is None:
            ids = keys.ids([str(item)])
            lists = model.neighbours(ids, top)
            print_list(lists, keys, NAMES, {"item": item}, as_json=as_json)
            return
        if items == "all":
            ids = np.flatnonzero(np.arange(len(keys)) != keys.rare_id)
        else:
            ids = _known(Path(str(items)), column, model)
        who = counted(len(ids), "item")
        status(f"Finding the {top} most similar of {model.num_items:,} items for {who}.")
        rows = write_lists(
            out, model.neighbours(ids, top), keys.gather(ids), keys, NAMES, what="comparing"
        )
        if as_json:
            print_json({"items": len(ids), "rows": rows, "out": str(out)})
        status(f"Wrote {counted(rows, 'similar item')} for {who} to {out}.")


def _known(path: Path, column: str | None, model: "Recommender") -> "NDArray[np.int64]":
    """The ids of the items in a file; others are skipped and counted."""
    from tapas.data.histories import find_keys, read_keys

    found = find_keys(model.item_keys, read_keys(path, model.item_keys, column, model.source))
    skipped = {"unknown": found.num_unknown, "without a key": found.no_key}
    report_skipped("item", skipped, found.first_bad)
    if found.repeated:
        status(f"{counted(found.repeated, 'repeated item')} left out: one list each.")
    ids = found.ids[found.ids >= 0]
    if not len(ids):
        raise UsageError(f"{path} has no item that the model knows.")
    return ids
