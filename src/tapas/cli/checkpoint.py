"""`tapas checkpoint`: describe a checkpoint, or grow one to more classes or a newer log."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tapas.cli.exit_codes import FAILED, report_errors
from tapas.cli.options import (
    AsJson,
    Cache,
    Item,
    OwnMethods,
    Time,
    User,
    Weight,
    cache_folder,
    import_methods,
)
from tapas.cli.terminal import print_json, print_lines, print_table, status
from tapas.errors import UsageError
from tapas.escapes import shell_path, shell_word
from tapas.heads.own_method import is_own

app = typer.Typer(
    name="checkpoint",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Describe a checkpoint, or add classes or new items.",
)
At = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="Folder of a run, of its checkpoints, or of one step."),
]
Step = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Step of the checkpoint. Default: the newest one.",
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        metavar="FOLDER",
        help="Folder to write to. Must be new. With --to, call it step-00000400 to have it found"
        " as "
        "step 400.",
    ),
]


@app.command()
def info(path: At, step: Step = None, as_json: AsJson = False) -> None:
    """Describe a checkpoint and verify its checksums.

    Those of the other checkpoints in the folder are verified, too. The exit code is 1 if one is
    damaged.
    """
    with report_errors():
        from tapas.checkpoints.describe import check_others, describe, find_checkpoint

        folder = find_checkpoint(path, step)
        found = {**describe(folder), "others": check_others(path, folder)}
        if as_json:
            print_json(found, indent=1)
        else:
            _print(found)
        damaged = [each["problem"] for each in (found, *found["others"]) if not each["valid"]]
        for problem in damaged:
            status(f"tapas: {problem}")
        if damaged:
            raise typer.Exit(FAILED)


def _print(found: dict[str, Any]) -> None:
    best = ", the best so far" if found["best"] else ""
    by = "1 process" if found["processes"] == 1 else f"{found['processes']:,} processes"
    print_lines(found["path"])
    print_lines(f"step {found['step']:,}{best}; saved by {by} with tapas {found['tapas']}")
    print_lines(f"{found['bytes']:,} bytes, {'valid' if found['valid'] else 'damaged'}")
    if found["others"]:
        print_lines(f"other checkpoints: {_others(found)}")
    print_lines("")
    print_table(
        ("table", "classes", "dim", "type", "updates", "optimizer state"),
        [
            [
                table["name"],
                f"{table['classes']:,}",
                f"{table['dim']:,}",
                table["dtype"],
                f"{table['updates']:,}",
                ", ".join(table["optimizer_state"]) or "none",
            ]
            for table in found["tables"]
        ],
    )


def _others(found: dict[str, Any]) -> str:
    """The other checkpoints; of several that were the best when saved only the last still is."""
    best = max((each["step"] for each in (found, *found["others"]) if each["best"]), default=None)
    return "; ".join(
        f"step {each['step']:,}{', the best' if each['step'] == best else ''}, "
        f"{'valid' if each['valid'] else 'damaged'}"
        for each in found["others"]
    )


@app.command()
def grow(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="Folder of a run; with --to also of its checkpoints, or of one step.",
        ),
    ],
    out: Out,
    to: Annotated[
        int | None,
        typer.Option(min=1, max=10**12, metavar="N", help="Number of classes in all, old and new."),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Newer log, for a run of `tapas train`; a glob, or several times --log.",
        ),
    ] = None,
    initial: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="With --to: initial optimizer state of the new rows, such as sum=0.1. Default: "
            "that of the run, or of the optimizer.",
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Step of the checkpoint. Default: the newest one; with --log, the best one.",
        ),
    ] = None,
    user: User = None,
    item: Item = None,
    time: Time = None,
    weight: Weight = None,
    cache: Cache = None,
    method: OwnMethods = None,
) -> None:
    """Add classes to a checkpoint, or new items to a run.

    With --to N, for training loops of your own, a checkpoint of N classes is written. Old rows do
    not change. New rows are initialised like those of a new table of N classes with the same
    seed, new biases are the smallest old bias, and the optimizer state of new rows starts afresh.

    With --log FILE, for a run of `tapas train`, a run on that log is written. Known items keep
    their rows; new items start as in a new run, with a bias from their frequency. Continue it
    with `tapas train --resume FOLDER`; evaluate and recommend work at once. To train on the old
    events, too, name the old files with --log as well. The log is read like that of the run;
    --user, --item, --time and --weight are for columns with other names.

    Needs memory for all rows at once. PATH is not changed.
    """
    with report_errors():
        import_methods(method)
        if (to is None) == (log is None):
            raise UsageError(
                "give either --to N, for a training loop of your own, or --log FILE, for a run of "
                "`tapas train`."
            )
        if log is None:
            _grow_checkpoint(path, step, out, to or 0, initial or [])
        elif initial:
            raise UsageError(
                "--initial can be used with --to only; --log uses the settings of the run."
            )
        else:
            named = {"user": user, "item": item, "time": time, "weight": weight}
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
    state = f" The optimizer state of new rows starts with {told}." if told else ""
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
        f"Wrote {out} from {grown.checkpoint}: {grown.num_known:,} known items "
        f"({grown.num_missing:,} not in the new log), {grown.num_new:,} new items."
    )
    method = open_run(out).config.head.method
    run = shell_path(out) + (f" --method {shell_word(method)}" if is_own(method) else "")
    status(f"Next: `tapas train --resume {run}`, `tapas evaluate {run}`.")


def _start(given: str) -> tuple[str, float]:
    name, _, value = given.partition("=")
    try:
        start = float(value)
    except ValueError:
        start = -1.0
    if not 0 <= start < float("inf"):
        raise UsageError(
            f"--initial must be a name and a number of at least 0, such as sum=0.1, got '{given}'."
        )
    return name, start
