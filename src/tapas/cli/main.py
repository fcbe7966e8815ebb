"""The command line's front door."""

from typing import Annotated

import typer

from tapas.cli.checkpoint import app as checkpoint
from tapas.cli.cite import cite
from tapas.cli.compare import compare
from tapas.cli.demo import demo
from tapas.cli.evaluate import evaluate
from tapas.cli.export import export
from tapas.cli.info import info
from tapas.cli.inspect import inspect
from tapas.cli.plan import plan
from tapas.cli.recommend import recommend
from tapas.cli.train import train
from tapas.version import __version__

app = typer.Typer(
    name="tapas",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tapas {__version__}")
        raise typer.Exit


@app.callback()
def tapas(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    """Softmax models over a hundred thousand to a billion classes, trained with TAPAS.

    Start with `tapas demo`: the whole journey on a real log, in a few minutes. Then, with
    your own: inspect, train, evaluate, recommend, export.
    """


app.command()(inspect)
app.command()(plan)
app.command()(train)
app.command()(evaluate)
app.command()(recommend)
app.command()(export)
app.command()(compare)
app.command()(cite)
app.command()(demo)
app.command()(info)
app.add_typer(checkpoint)
