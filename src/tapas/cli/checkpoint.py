"""`tapas checkpoint`: what is in one, one with more classes, a run with the items of a new log."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tapas.cli.exit_codes import FAILED, report_errors
from tapas.cli.options import AsJson, Cache, Item, Time, User, cache_folder
from tapas.cli.terminal import status
from tapas.errors import UsageError

app = typer.Typer(
    name="checkpoint",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Say what is in a checkpoint, or add classes to one or items to a run.",
)
At = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="Folder of a run, its checkpoints, or one step of them."),
]
Step = Annotated[int | None, typer.Option(metavar="N", help="Step; the newest one if left out.")]
Out = Annotated[
    Path,
    typer.Option(
        metavar="FOLDER",
        help="Must be new. With --to, a folder called step-00000400 is found as step 400.",
    ),
]


@app.command()
def info(path: At, step: Step = None, as_json: AsJson = False) -> None:
    """Say what a checkpoint holds, and whether it is whole. Ends with 1 if it is not."""
    with report_errors():
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
            status(f"tapas: {found['problem']}")
            raise typer.Exit(FAILED)


@app.command()
def grow(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="Folder of a run; with --to also its checkpoints, or one step of them.",
        ),
    ],
    out: Out,
    to: Annotated[
        int | None,
        typer.Option(min=1, max=10**12, metavar="N", help="Classes, old and new."),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="Log with new items, for a run; several times, or as a glob."
        ),
    ] = None,
    initial: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="With --to: where row optimizer state starts, such as sum=0.1; the run's own "
            "start, or the default of the optimizer, if left out.",
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Step; if left out, the newest one, with --log the best one."
        ),
    ] = None,
    user: User = None,
    item: Item = None,
    time: Time = None,
    cache: Cache = None,
) -> None:
    """Write a checkpoint with more classes, or a run with the items of a newer log.

    With --to N, for loops of your own, FOLDER becomes one checkpoint of N classes. Old rows
    stay as they are. New rows are drawn as a new table of N classes with the same seed draws
    them, new biases are the smallest old one, and row optimizer state starts anew.

    With --log FILE, for a run of `tapas train`, FOLDER becomes a run on that log. Items that
    PATH knows keep their rows, new ones start as in a new run, with the bias of their
    frequency. `tapas train --resume FOLDER` trains it; evaluate and recommend work at once.
    Name the old files beside the new ones if their events shall count, too. The log is read as
    that of the run; --user, --item and --time say where its columns have other names.

    Needs memory for all rows at once. The source is not touched.
    """
    with report_errors():
        if (to is None) == (log is None):
            raise UsageError(
                "say what to grow to: --to N classes, for a loop of your own, or --log FILE, for "
                "a run of `tapas train`."
            )
        if log is None:
            _grow_checkpoint(path, step, out, to or 0, initial or [])
        elif initial:
            raise UsageError("--initial goes with --to N; a run knows where its rows start.")
        else:
            named = {"user": user, "item": item, "time": time}
            columns = {role: name for role, name in named.items() if name is not None}
            _grow_run(path, step, out, log, columns, cache_folder(cache))


def _grow_checkpoint(path: Path, step: int | None, out: Path, to: int, initial: list[str]) -> None:
    from tapas.checkpoints.describe import find_checkpoint
    from tapas.checkpoints.grow import NewRows
    from tapas.checkpoints.grow import grow as grown
    from tapas.training.config import build_config, read_toml
    from tapas.training.grow import new_rows
    from tapas.training.run_folder import CONFIG, RECORD

    new = NewRows(initial=dict(map(_start, initial)))
    found = find_checkpoint(path, step)
    run = found.absolute().parent.parent
    if (run / RECORD).exists():  # which says how its rows start
        new = replace(new_rows(build_config(read_toml(run / CONFIG))), initial=new.initial)
    used = grown(found, out, to, new)
    told = ", ".join(f"{name} at {value:g}" for name, value in sorted(used.items()))
    state = f" Their row optimizer state starts with {told}." if told else ""
    status(f"Wrote {out} from {found}, with {to:,} classes.{state}")


def _grow_run(
    path: Path, step: int | None, out: Path, log: list[str], columns: dict[str, str], cache: Path
) -> None:
    from tapas.training.grow import grow_run
    from tapas.training.run_folder import open_run

    grown = grow_run(
        open_run(path), log, out, cache=cache, step=step, columns=columns, status=status
    )
    status(
        f"Wrote {out} from {grown.checkpoint}: {grown.num_known:,} items keep their rows "
        f"({grown.num_missing:,} of them are not in the new log), {grown.num_new:,} are new."
    )
    status(f"Next: `tapas train --resume {out}`, `tapas evaluate {out}`.")


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
