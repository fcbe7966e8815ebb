"""`tapas demo`: all steps from a log to a report, in a few minutes."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tapas.atomic_file import OutputFolder
from tapas.cli.exit_codes import report_errors
from tapas.cli.options import AsJson
from tapas.cli.progress import Advance, EvaluationLines, progress_bar
from tapas.cli.serve import PORT
from tapas.cli.terminal import print_lines, print_table, say, status
from tapas.errors import UsageError
from tapas.escapes import shell_path, shell_word
from tapas.training.trainer import Progress

if TYPE_CHECKING:
    from tapas.comparison.demo import DemoResult
    from tapas.page import Lists
    from tapas.training.run_folder import RunFolder


def demo(
    files: Annotated[
        list[str] | None, typer.Argument(hidden=True, help="Refused: the demo brings its own log.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the runs and the report. Must be new.",
        ),
    ] = Path("demo"),
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of training steps of each model. Default: 2000, and what is chosen for "
            "the third; 1200 on the made-up log.",
        ),
    ] = None,
    synthetic: Annotated[
        bool,
        typer.Option(
            "--synthetic",
            help="Use the made-up log, even if the real one is installed.",
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
    """Try everything on one log: train, evaluate, report.

    The log is 1.47 million real grocery purchases of 2,469 households, if the extra [demo] is
    installed; otherwise a made-up log of listeners who follow serials and playlists. One model is
    trained with plain sampled softmax and one with TAPAS, with the same n, batches and steps. A
    third model is what `tapas train` makes with no option given: settings chosen from the log, and
    counting parts beside the softmax.

    The results are a table with three simple baselines, recommendations of the third model for
    three users, and report.html with everything.
    """
    with report_errors():
        if files:
            log = shell_path(files[0])
            raise typer.BadParameter(
                f"the demo brings its own log, but got {files[0]!r}. For a log of your own: tapas "
                f"inspect {log}, then tapas train {log} --out run."
            )
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(
                f"{out} exists and is not an empty folder. Remove it, or choose another --out."
            )
        with _emptied_on_error(out):
            finished = _run(out, steps, synthetic, seed)
        if as_json:
            print_lines(*finished.document.splitlines())
        else:
            _print(finished.found, finished.people)
        status(f"Wrote {out / 'report.html'}, {out / 'results.json'} and a run for each model.")
        user = finished.people[0].name.split()[-1]
        run = shell_path(finished.run)
        items = "" if finished.items is None else f" --items {shell_path(finished.items)}"
        status("For a log of your own: `tapas inspect LOG`, then `tapas train LOG --out run`.")
        status(f"Report: {out / 'report.html'}")
        print_lines(
            "Next:",
            f"  tapas recommend {run} --user {shell_word(user)}",
            f"  tapas serve {run}{items}    # then open http://127.0.0.1:{PORT}/",
            err=True,
        )


@contextmanager
def _emptied_on_error(out: Path) -> Iterator[None]:
    """Remove what was written to `out`, new or empty before, if the demo does not finish."""
    existed = out.exists()
    try:
        yield
    except BaseException:
        if out.is_dir():
            for path in out.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if not existed:
                out.rmdir()
        raise


class _Finished(NamedTuple):
    found: "DemoResult"
    people: list["Lists"]
    document: str
    run: Path  # of the model that made the lists
    items: Path | None  # the names of its items, if their keys are no words


def _run(out: Path, steps: int | None, synthetic: bool, seed: int) -> _Finished:
    folder = OutputFolder(out)
    from tapas.comparison import demo as showcase
    from tapas.comparison.groceries import write_item_table

    log = showcase.find_demo_log(out, synthetic)
    status(log.about)
    runs: dict[str, RunFolder] = {}
    seconds: dict[str, float] = {}
    for number, name in enumerate(showcase.VARIANTS, start=1):
        status(f"Training model {number} of {len(showcase.VARIANTS)}: {name}.")
        lines = EvaluationLines(status)
        with progress_bar(name, "steps") as advance:

            def watch(
                tick: Progress, advance: Advance = advance, lines: EvaluationLines = lines
            ) -> None:
                best = "" if tick.best is None else f"best MAP@20 {tick.best:.4f}"
                advance(tick.step, tick.steps, best)
                lines.show(tick)

            runs[name], seconds[name] = showcase.train_variant(
                log,
                out,
                name,
                steps,
                seed,
                watch=watch,
                status=status if name in (showcase.PLAIN, showcase.CHOSEN) else _quiet,
            )
    status("Ranking all items for every test user, with each model and baseline.")
    found = showcase.evaluate_variants(log, runs, seconds)
    people = showcase.some_people(runs[showcase.CHOSEN], log)
    document = showcase.as_document(log, found, runs, seed)
    page = showcase.make_page(log, found, people, runs)
    folder.write({"report.html": page, "results.json": (document + "\n").encode()})
    items = None
    if log.products is not None:
        items = out / "items.csv"
        write_item_table(log.products, items)
    return _Finished(found, people, document, runs[showcase.CHOSEN].path, items)


def _quiet(words: str) -> None:
    """Drop status lines about the log: the first model has printed them."""


def _print(found: "DemoResult", people: list["Lists"]) -> None:
    from tapas.comparison.demo import HEADING, remarks, table_rows, verdict
    from tapas.page import Marked

    for words in verdict(found):
        say(words)
    print_lines("")
    say(next(iter(found.evaluations.values())).describe_points())
    print_lines("")
    print_table(HEADING, table_rows(found))
    for words in remarks(found):
        say(words)
    for person in people:
        print_lines("", person.name)
        for title, items in person.lists.items():
            print_lines(f"  {title}")
            for item in items:
                print_lines(f"    {item}{'  <- taken next' if isinstance(item, Marked) else ''}")
