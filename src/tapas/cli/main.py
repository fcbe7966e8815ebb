"""The `tapas` command and its subcommands."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
import typer
from typer.core import TyperGroup

from tapas.cli.cache import cache
from tapas.cli.checkpoint import app as checkpoint
from tapas.cli.cite import cite
from tapas.cli.compare import compare
from tapas.cli.demo import demo
from tapas.cli.evaluate import evaluate
from tapas.cli.export import export
from tapas.cli.flag_hints import Command
from tapas.cli.info import info
from tapas.cli.inspect import inspect
from tapas.cli.plan import plan
from tapas.cli.rank_errors import error_file, report_error
from tapas.cli.recommend import recommend
from tapas.cli.serve import serve
from tapas.cli.similar import similar
from tapas.cli.terminal import print_lines
from tapas.cli.torchrun import default_threads
from tapas.cli.train import train
from tapas.cli.verify import verify
from tapas.escapes import printable, shortened
from tapas.version import __version__

SURROGATE = re.compile("[\ud800-\udfff]")  # a byte that is not UTF-8, as Python has it


class Commands(TyperGroup):
    """The commands, whose errors show arguments as `printable` does."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        for argument in args:
            if SURROGATE.search(argument):
                words = f"'{printable(argument)}' is not UTF-8. Rename the file or folder."
                raise typer.BadParameter(shortened(words))
        with _printable_errors():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _printable_errors():
            return super().invoke(ctx)


@contextmanager
def _printable_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "message"):  # one of click
            error.message = shortened(printable(error.message))
        raise


app = typer.Typer(
    name="tapas",
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_lines(f"tapas {__version__}")
        raise typer.Exit


@app.callback()
def tapas(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Train softmax models over many classes with TAPAS.

    With a log of your own, go from top to bottom: inspect, train, evaluate, recommend, export.
    Without one, start with `tapas demo`, which takes a few minutes.
    """


for command in (
    inspect, train, evaluate, recommend, similar, export, serve, compare, plan, demo, verify, cite,
    cache, info,
):  # fmt: skip
    app.command(cls=Command)(command)
app.add_typer(checkpoint)


def run() -> None:
    """Run the command of this process. Ranks of torchrun print a wrong usage once, not each."""
    torch.set_num_threads(default_threads())
    try:
        code = app(prog_name="tapas", standalone_mode=error_file() is None)
    except Exception as error:
        if not hasattr(error, "show") or not hasattr(error, "exit_code"):  # not one of click
            raise
        words, code = error.format_message(), error.exit_code  # type: ignore[attr-defined]
        report_error(words, code, error.show, try_again=False)
    raise SystemExit(code)
