"""`tapas checkpoint`: what is in one, and one with more classes."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tapas.cli.exit_codes import FAILED, one_line_endings
from tapas.cli.options import AsJson, talk
from tapas.errors import UsageError

app = typer.Typer(
    name="checkpoint",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Say what is in a checkpoint, or add classes to one.",
)
At = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="Folder of a run, its checkpoints, or one step of them."),
]
Step = Annotated[int | None, typer.Option(metavar="N", help="Step; the newest one if left out.")]
Out = Annotated[
    Path,
    typer.Option(
        metavar="FOLDER", help="To be made. Called step-00000400, a run finds it as step 400."
    ),
]


@app.command()
def info(path: At, step: Step = None, as_json: AsJson = False) -> None:
    """Say what a checkpoint holds, and whether it is whole. Ends with 1 if it is not."""
    with one_line_endings():
        from tapas.checkpoints.describe import describe, find_checkpoint

        found = describe(find_checkpoint(path, step))
        if as_json:
            typer.echo(json.dumps(found, indent=1))
        else:
            several = "" if found["processes"] == 1 else "es"
            best = ", the best so far" if found["best"] else ""
            typer.echo(f"{found['path']}: step {found['step']:,}{best}")
            typer.echo(
                f"rows of {found['processes']} process{several} "
                f"(format {found['format']}, tapas {found['tapas']})"
            )
            for table in found["tables"]:
                state = ", ".join(table["optimizer_state"]) or "none"
                typer.echo(
                    f"{table['name']}: {table['classes']:,} classes, dim {table['dim']}, "
                    f"{table['dtype']}, optimizer state: {state}, {table['updates']:,} updates"
                )
            typer.echo(f"{found['bytes']:,} bytes, {'whole' if found['whole'] else 'damaged'}")
        if not found["whole"]:
            talk(f"tapas: {found['problem']}")
            raise typer.Exit(FAILED)


@app.command()
def grow(
    path: At,
    to: Annotated[int, typer.Option(min=1, max=10**12, metavar="N", help="Classes, old and new.")],
    out: Out,
    initial: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Where row optimizer state starts, such as sum=0.1; the run's own start, or the "
            "default of the optimizer, if left out.",
        ),
    ] = None,
    step: Step = None,
) -> None:
    """Write a checkpoint with more classes.

    Old rows stay as they are. New rows are drawn as a new table of N classes with the same
    seed draws them, new biases are the smallest old one, and row optimizer state starts anew.
    Needs memory for all of it at once. The source is not touched.
    """
    with one_line_endings():
        from tapas.checkpoints.describe import find_checkpoint
        from tapas.checkpoints.grow import grow as grown

        starts = dict(map(_start, initial or ()))
        found = find_checkpoint(path, step)
        used = grown(found, out, to, initial=starts, **_of_run(found))
        told = ", ".join(f"{name} at {value:g}" for name, value in sorted(used.items()))
        state = f" Their row optimizer state starts with {told}." if told else ""
        talk(f"Wrote {out} from {found}, with {to:,} classes.{state}")


def _of_run(checkpoint: Path) -> dict[str, Any]:
    """What the run that `checkpoint` is of says of new rows; nothing outside of a run."""
    from tapas.training.build import build_row_optimizer, table_plans
    from tapas.training.config import build_config, read_toml
    from tapas.training.run_folder import CONFIG, RECORD

    run = checkpoint.absolute().parent.parent
    if not (run / RECORD).exists():
        return {}
    config = build_config(read_toml(run / CONFIG))
    zero = {name for name, plan in table_plans(config).items() if plan.at_zero}
    return {"optimizer": build_row_optimizer(config.optimizer), "zero_tables": zero}


def _start(given: str) -> tuple[str, float]:
    name, _, value = given.partition("=")
    try:
        start = float(value)
    except ValueError:
        start = -1.0
    if not 0 <= start < float("inf"):
        raise UsageError(
            f"--initial must be a name and a number of at least 0, as sum=0.1, got '{given}'."
        )
    return name, start
