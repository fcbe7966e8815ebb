"""The commands `figure-3`, `figure-4` and `sweeps`, and `table-1 --data`: real data sets."""

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from experiments.options import RESULTS, Draw, Out, Quick, Workers, home_of
from experiments.overview import (
    PACES,
    all_claims,
    read_evidence,
    read_paces,
    real_ledger,
    write_overview,
)
from experiments.quick import quick_figure, quick_page, say_quick
from experiments.real.cells import (
    SetRuns,
    SweepPoint,
    around_the_default,
    floors_run,
    known,
    larger_floor,
    top_variants,
)
from experiments.real.pace import ROUNDS, measure_pace
from experiments.real.page import loss_page, map_page, pace_page, sweeps_page
from experiments.real.runs import execute, open_set
from experiments.real.sets import SETS, SYNTHETIC, Place, find_set
from tapas.atomic_file import OutputFolder
from tapas.cli.exit_codes import report_errors
from tapas.cli.options import Cache, cache_folder
from tapas.cli.progress import run_progress
from tapas.cli.terminal import print_lines, status
from tapas.comparison.ledger import Ledger, Result
from tapas.comparison.process_pool import run_missing
from tapas.comparison.settings import keep_settings, read_settings, refuse_others
from tapas.errors import UsageError

Data = Annotated[
    Path,
    typer.Option(metavar="FOLDER", help="Folder with the files of the sets; see docs/evidence.md."),
]
Names = Annotated[
    str,
    typer.Option("--sets", metavar="NAMES", help=f"Some of {','.join(SETS)}, separated by commas."),
]
WORKERS = min(2, os.cpu_count() or 1)  # each holds a model of up to a gigabyte
ALL = ",".join(SETS)


def figures(
    out: Out = RESULTS,
    data: Data = Path("data"),
    sets: Names = ALL,
    cache: Cache = None,
    quick: Quick = False,
    draw: Draw = False,
    workers: Workers = WORKERS,
) -> None:
    """MAP@20 and softmax loss on five sets.

    Figures 3 and 4, from the same runs: several sample sizes, r = 1 and 8, both rules, and
    baselines. Finished runs are kept: you can stop at any time, and the same command continues.
    Several hours on two cores for all sets; choose some with --sets.
    """
    with report_errors():
        if not draw:
            _train(_sets_to_run(sets, out, quick), Place(data, cache_folder(cache)), workers)
        _write_figures(home_of(out, quick), quick=quick)


def measure_paces(
    out: Path, data: Path, sets: str, cache: Path | None, *, quick: bool, draw: bool
) -> None:
    """Table 1 in one process: steps per second of every cell of figure 3."""
    home = home_of(out, quick)
    measured = read_paces(home)
    for set_runs, ledger in [] if draw else _sets_to_run(sets, out, quick):
        place = Place(data, cache_folder(cache))
        rounds = 2 if quick else ROUNDS
        measured[set_runs.name] = measure_pace(set_runs, ledger, place, rounds=rounds)
        status(f"measured {set_runs.shown_name}")
        text = json.dumps({k: [asdict(p) for p in v] for k, v in measured.items()}, indent=1)
        OutputFolder(home / PACES.parent).write({PACES.name: (text + "\n").encode()})
    _write_figures(home, quick=quick)


def sweeps(
    out: Out = RESULTS,
    data: Data = Path("data"),
    sets: Names = "rust",
    cache: Cache = None,
    quick: Quick = False,
    draw: Draw = False,
    workers: Workers = WORKERS,
) -> None:
    """Vary one setting at a time, and the selection rule."""
    with report_errors():
        from experiments.real.figures import sweeps_figure
        from tapas.comparison.figure_style import as_png

        place, home = Place(data, cache_folder(cache)), home_of(out, quick)
        pages, files = {}, {}
        for set_runs, ledger in _sets_to_run(sets, out, quick):
            if not draw:
                _check_settings(ledger.path.with_suffix(".json"), set_runs, place)
            floors = floors_run(ledger) if draw else _floors(set_runs, ledger, place)
            trials = [
                *around_the_default(set_runs, ledger, floors),
                *top_variants(set_runs, ledger),
            ]
            if not draw:
                runs, go = [trial.run for trial in trials], partial(execute, place=place)
                with run_progress() as follow:
                    run_missing(ledger, runs, go, follow(set_runs.shown_name), workers=workers)
            name = set_runs.shown_name
            pages[name] = known(trials, ledger)
            panels, starts = _panels(pages[name])
            title = f"{set_runs.real_set.title}: one setting at a time"
            figure = sweeps_figure(panels, title, starts)
            files[f"{name}.png"] = as_png(quick_figure(figure) if quick else figure)
        page = sweeps_page(pages)
        files["README.md"] = (quick_page(page) if quick else page).encode()
        OutputFolder(home / "sweeps").write(files)
        status(f"Wrote {home / 'sweeps' / 'README.md'}.")


COMMANDS = {"figure-3": figures, "figure-4": figures, "sweeps": sweeps}
ABOUT = {  # what each is about, and minutes on two cores
    "figure-3": ("MAP@20 rises with r on real data; n=1000, r=8 is as good as n=8000.", "240"),
    "figure-4": ("The full softmax loss does not get better. The same runs as figure-3.", "240"),
    "sweeps": (
        "Not a claim of the paper: the effect of each setting, and variants of its rule.",
        "30",
    ),
}


def _sets_to_run(names: str, out: Path, quick: bool) -> list[tuple[SetRuns, Ledger]]:
    wanted = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if not wanted:
        raise UsageError(f"--sets names no set. Known: {ALL}.")
    found = [find_set(name) for name in wanted]
    if quick:  # one made-up log in place of all sets
        say_quick()
        status(f"It replaces {', '.join(wanted)}, whose files are not read.")
        found = [SYNTHETIC]
    home = home_of(out, quick)
    return [(SetRuns(each, quick=quick), real_ledger(home, each.name)) for each in found]


def _train(sets: Sequence[tuple[SetRuns, Ledger]], place: Place, workers: int) -> None:
    for set_runs, _ in sets:
        set_runs.real_set.find(place)  # a missing file is reported before hours of work
    go = partial(execute, place=place)
    with run_progress() as follow:
        for set_runs, ledger in sets:
            status(f"{set_runs.shown_name}: reading the log")
            _check_settings(ledger.path.with_suffix(".json"), set_runs, place)
            for stage in set_runs.stages:
                name = f"{set_runs.shown_name}: {stage.__name__.replace('_', ' ')}"
                run_missing(ledger, stage(ledger), go, follow(name), workers=workers)


def _check_settings(path: Path, set_runs: SetRuns, place: Place) -> None:
    """Refuse to add to results of other data or of another model."""
    settings = set_runs.real_set.settings(set_runs.real_set.open(place))
    path.parent.mkdir(parents=True, exist_ok=True)
    keep_settings(path, settings)
    before = read_settings(path, away="both")
    other = [name for name, value in settings.items() if before.get(name) != value]
    refuse_others(other, f"beside {path}")


def _write_figures(home: Path, *, quick: bool) -> None:
    """Draw all figures and write all pages, from runs and step times."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.figure import Figure

    from experiments.real.figures import sizes_figure, steps_figure, tail_figure, time_figure
    from tapas.comparison.figure_style import as_png

    def png(figure: Figure) -> bytes:
        return as_png(quick_figure(figure) if quick else figure)

    found = read_evidence(home, quick=quick)
    claims = [] if quick else all_claims(home)
    files: dict[str, dict[str, bytes]] = {
        "figure-3": {
            "figure.png": png(steps_figure(found, "map@20")),
            "samples.png": png(sizes_figure(found)),
            "README.md": map_page(found, claims).encode(),
        },
        "figure-4": {
            "figure.png": png(steps_figure(found, "loss")),
            "tail.png": png(tail_figure(found)),
            "README.md": loss_page(found, claims).encode(),
        },
    }
    if any(each.paces for each in found):
        files["figure-3"]["time.png"] = png(time_figure(found))
        files["table-1"] = {"README.md": pace_page(found, claims).encode()}
    for name, content in files.items():
        OutputFolder(home / name).write(content)
        status(f"Wrote {home / name / 'README.md'}.")
    if not quick:
        write_overview(home, claims)
    for claim in claims:
        if claim.study in files:
            print_lines(claim.one_line)


def _floors(set_runs: SetRuns, ledger: Ledger, place: Place) -> list[float]:
    _, split = open_set(set_runs.real_set, place)
    return larger_floor(set_runs, ledger, int(split.train_counts.sum()))


Point = tuple[float | str, float, float | None]  # value, MAP@20, loss


def _panels(
    trials: Sequence[tuple[SweepPoint, Result]],
) -> tuple[dict[str, list[Point]], dict[str, float | str]]:
    """The points drawn for each setting, and its default."""
    panels: dict[str, list[Point]] = {}
    starts: dict[str, float | str] = {}
    for trial, result in trials:
        value = trial.words if trial.setting in ("score_queries", "beta") else trial.value
        if trial.is_default:
            starts[trial.setting] = value
        if "diverged" not in result:
            point = (value, result["map@20"], result["loss"])
            panels.setdefault(trial.setting, []).append(point)
    return {name: points for name, points in panels.items() if len(points) > 1}, starts
