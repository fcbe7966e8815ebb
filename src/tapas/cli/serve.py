"""`tapas serve`: trained models behind HTTP, as an explorer and an API."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapas.cli.exit_codes import report_errors
from tapas.cli.options import OwnMethods, Trust, import_methods
from tapas.cli.terminal import print_lines, status
from tapas.errors import UsageError, choice
from tapas.phrases import counted

if TYPE_CHECKING:
    from tapas.data.item_table import ItemTable
    from tapas.web.server import Address

PORT = 8321


def serve(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs, or of exports; the first leads."),
    ],
    items: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Table with one row for each item, for names and other columns: Parquet, CSV or "
            "JSON lines.",
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE=NAME",
            help="Column of the item keys in --items, as in item=sku, or of their names, as in "
            "name=title; may be repeated. Default: guessed.",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="Address to listen on. Others than those of this machine need --token.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, metavar="N", help="Port to listen on, 0 for a free one."),
    ] = PORT,
    token: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File whose first line clients must send as a bearer token, or type as the "
            "password in a browser.",
        ),
    ] = None,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload", help="Take newer checkpoints as they appear, without dropping a request."
        ),
    ] = False,
    index: Annotated[
        str | None,
        typer.Option(
            metavar="hnsw|ivf",
            help="Find items through an approximate index of FAISS, whose recall is measured and "
            "printed. Default: score all items, exactly.",
        ),
    ] = None,
    method: OwnMethods = None,
    trust: Trust = False,
) -> None:
    """Serve models: an explorer for people, an API for programs.

    The page at / finds users and items, compares the lists of several runs, and shows a map of the
    items; /docs describes the API. The address is printed on stdout once requests are answered.
    SIGTERM and Ctrl-C let requests under way be answered.
    """
    with report_errors():
        from tapas.native.memory import keep_large_arrays_apart
        from tapas.web.indexed_model import KINDS, IndexedModel
        from tapas.web.models import Models, open_folder
        from tapas.web.server import Address, read_token
        from tapas.web.server import serve as answer_requests

        keep_large_arrays_apart()
        import_methods(method)
        columns = _columns(column, items)
        if index is not None:
            choice("index", index, dict.fromkeys(KINDS))
        address = Address(host, port)
        secret = None if token is None else read_token(token)
        if secret is None and not address.is_loopback:
            raise UsageError(
                f"--host {host} lets other machines ask. Add --token FILE, a file with a token "
                "that clients must send, or leave --host out."
            )
        with address.bind() as listening:
            opened = partial(open_folder, index=index, items=items, columns=columns, trust=trust)
            models = Models(runs, opened)
            for model in models:
                status(f"Serving {model.model.name}: {counted(model.num_items, 'item')}.")
                if model.table is not None:
                    status(f"{items}: {_found(model.table, model.num_items)}.")
                if isinstance(model, IndexedModel):
                    judged = counted(model.num_judged, "history", "histories")
                    status(
                        f"Approximate: lists of the {index} index have {100 * model.recall:.1f} % "
                        f"of the exact lists of 20, for {judged}."
                    )
            answer_requests(
                models,
                listening,
                host=host,
                token=secret,
                reload=reload,
                ready=_announce,
                status=status,
            )


def _announce(address: "Address") -> None:
    status(f"Explorer: {address.url}/, API: {address.url}/docs. Ctrl-C stops.")
    print_lines(address.url)


def _columns(given: list[str] | None, items: Path | None) -> dict[str, str]:
    found = {}
    for each in given or []:
        role, equals, name = each.partition("=")
        if not equals or items is None:
            raise UsageError(
                f"--column {each}: expected item=NAME or name=NAME, for a column of --items FILE."
            )
        found[role] = name
    return found


def _found(table: "ItemTable", num_items: int) -> str:
    """What a table knows of the items."""
    names = "names" if table.names is not None else "no names"
    groups = f", on the map {', '.join(table.groups)}" if table.groups else ""
    others = [name for name in table.columns.columns if name not in table.groups]
    rest = f", on pages of items only {', '.join(others)}" if others else ""
    return f"{names}{groups}{rest} for {table.num_found:,} of {num_items:,} items"
