"""`tapas export`: item vectors, a FAISS index or the encoder, in files for other systems."""

from pathlib import Path
from typing import Annotated

import typer

from tapas.cli.exit_codes import report_errors
from tapas.cli.options import AsJson, BestStep, OwnMethods, import_methods
from tapas.cli.terminal import print_json, status


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
    step: BestStep = None,
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

    Only a folder has the counting parts of a model (model.copy, model.follow); other files have
    its softmax part alone. A failed export leaves no file.
    """
    with report_errors():
        from tapas.training.export import check_target, export_model
        from tapas.training.run_folder import open_run

        check_target(to, index=index, recall=recall, force=force)
        import_methods(method)
        written = export_model(open_run(run), step, to, index=index, recall=recall, force=force)
        numbers = written.numbers
        if "part" in numbers:
            status(
                f"{to} has only the softmax part, not the counting parts (model.copy, "
                "model.follow): its lists differ from those of `tapas recommend`. A folder, a "
                "--to without an ending, has all parts."
            )
        if as_json:
            print_json({"path": str(to), **numbers})
        files = f"{to} and {numbers['keys']}" if to.suffix == ".faiss" else str(to)
        status(f"Wrote {files} from checkpoint step {numbers['step']:,}: {written.words}.")
