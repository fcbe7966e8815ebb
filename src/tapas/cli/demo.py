"""`tapas demo`: all steps from a log to a report, in a few minutes."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapas.atomic_file import OutputFolder
from tapas.cli.exit_codes import report_errors
from tapas.cli.options import AsJson
from tapas.cli.progress import Advance, progress_bar
from tapas.cli.terminal import print_table, say, status
from tapas.errors import UsageError
from tapas.training.trainer import Progress

if TYPE_CHECKING:
    from tapas.comparison.demo import DemoResult
    from tapas.comparison.page import Lists
    from tapas.training.run_folder import RunFolder


def demo(
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the runs and the report. Must be new.",
        ),
    ] = Path("demo"),
    steps: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of training steps. The third model makes 2 steps for every 25.",
        ),
    ] = 2000,
    synthetic: Annotated[
        bool,
        typer.Option(
            "--synthetic",
            help="Use the synthetic log, even if the real one is installed.",
        ),
    ] = False,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Random seed: the same seed gives the same numbers.",
        ),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Try everything on a grocery log: train, evaluate, report.

    The log is 1.47 million real grocery purchases of 2,469 households, if the extra [demo] is
    installed; otherwise a synthetic log of the same kind. One model is trained with plain sampled
    softmax and one with TAPAS, with the same n, batches and steps. A third model, also with
    TAPAS, can copy from the history (model.copy). It reads longer windows in fewer steps, so
    it is not part of that comparison.

    The results are a table with three simple baselines, recommendations of the third model for
    three households, and report.html with everything.
    """
    with report_errors():
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(
                f"{out} exists and is not an empty folder. Remove it, or choose another --out."
            )
        folder = OutputFolder(out)
        from tapas.comparison import demo as showcase

        log = showcase.find_demo_log(out, synthetic)
        status(log.name)
        runs: dict[str, RunFolder] = {}
        seconds: dict[str, float] = {}
        for name in showcase.VARIANTS:
            status(f"Training with {name}.")
            with progress_bar(name, "steps") as advance:

                def watch(tick: Progress, advance: Advance = advance) -> None:
                    best = "" if tick.best is None else f"best MAP@20 {tick.best:.4f}"
                    advance(tick.step, tick.steps, best)

                runs[name], seconds[name] = showcase.train_variant(
                    log, out, name, steps, seed, status=_quiet if runs else status, watch=watch
                )
        found = showcase.evaluate_variants(runs, seconds)
        people = showcase.some_people(runs[showcase.COPYING], log.words)
        document = showcase.as_document(log, found, steps, seed)
        page = showcase.make_page(log, found, people, runs)
        folder.write({"report.html": page, "results.json": (document + "\n").encode()})
        if as_json:
            typer.echo(document)
        else:
            _print(found, people)
        status(f"Wrote {out / 'report.html'}, {out / 'results.json'} and a run for each model.")


def _quiet(words: str) -> None:
    """Drop status lines about the log: the first model has printed them."""


def _print(found: "DemoResult", people: list["Lists"]) -> None:
    from tapas.comparison.demo import HEADING, remarks, table_rows, verdict
    from tapas.comparison.page import Marked

    for words in verdict(found):
        say(words)
    typer.echo()
    say(next(iter(found.evaluations.values())).describe_points())
    typer.echo()
    print_table(HEADING, table_rows(found))
    for words in remarks(found):
        say(words)
    for person in people:
        typer.echo(f"\n{person.name}")
        for title, items in person.lists.items():
            typer.echo(f"  {title}")
            for item in items:
                typer.echo(f"    {item}{'  <- taken next' if isinstance(item, Marked) else ''}")
