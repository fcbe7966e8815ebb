"""`tapas evaluate`: runs on held-out events, beside baselines, lists from files and each other."""

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapas.cli.exit_codes import report_errors
from tapas.cli.options import AsJson, BestStep, OwnMethods, import_methods
from tapas.cli.progress import progress_bar
from tapas.cli.terminal import print_json, print_lines, print_table, say, status
from tapas.cli.torchrun import ranks_of_this_job
from tapas.errors import UsageError
from tapas.escapes import shell_path
from tapas.evaluation.intervals import Interval
from tapas.evaluation.scores import CUTOFFS, LIST_LENGTH
from tapas.evaluation.tables import (
    ABOUT_BUCKETS,
    BUCKET_HEADING,
    bucket_rows,
    metric_label,
    plus_minus,
)
from tapas.evaluation.verdict import LEAST_USERS

if TYPE_CHECKING:
    from tapas.training.run_evaluation import RunsEvaluation
    from tapas.training.run_folder import RunFolder

COLUMNS = 4  # of a table with intervals that fit into 80 characters
SHOWN = ("map", "recall", "ndcg")  # of the best k items


def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Folder of a run, or of several with the same log and split.",
        ),
    ],
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Also judge the lists in this file (Parquet, CSV or JSON lines), with columns "
            "user, item, and rank or score, made from the events before the cut (see --points). "
            "May be repeated.",
        ),
    ] = None,
    points: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Evaluate nothing; write the events that a model may know (user, item, time) and "
            "which users are judged, so that another system can make lists for them.",
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            metavar="test|validation",
            help="Which held-out events to use.",
        ),
    ] = "test",
    step: BestStep = None,
    exclude_seen: Annotated[
        bool | None,
        typer.Option(
            "--exclude-seen/--keep-seen",
            help="Leave out items that the user has had before, or keep them in the lists. "
            "Default: as the run was trained.",
        ),
    ] = None,
    users: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Judge a sample of N users, always the same; `tapas compare` judges that of 3000.",
        ),
    ] = None,
    k: Annotated[
        int,
        typer.Option(
            "--k",
            min=1,
            max=LIST_LENGTH,
            metavar="N",
            help="Show metrics of the best N items of each list. --all shows 5, 10 and 20, too.",
        ),
    ] = LIST_LENGTH,
    show_all: Annotated[
        bool,
        typer.Option("--all", help="Show all metrics, each with its interval."),
    ] = False,
    method: OwnMethods = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs with counting, and with your own lists.

    Each held-out user is judged at one point, the first behind the cut, by the next items. Lists
    are exact: all items are ranked. The baselines are the most popular items, the items that the
    user had most often, and the items that most often followed those of the user's last basket.
    Differences are paired: same users, with a 95 % interval (bootstrap over users).

    Several runs are shown side by side, each compared with the first. A second table shows how
    the first does on frequent and on rare items.

    Under torchrun the ranks share the work, and each loads its shard of the class vectors.
    """
    with report_errors():
        from tapas.training.advice import advise_evaluated, after_evaluation
        from tapas.training.report import renew_report
        from tapas.training.run_evaluation import evaluate_runs
        from tapas.training.run_folder import open_run

        import_methods(method)
        _check_usage(runs, against or [], points, step)
        folders = [open_run(run) for run in runs]
        with (
            ranks_of_this_job(runs[0], None) as ranks,
            progress_bar("ranking", "examples", shown=ranks.is_main) as advance,
        ):
            if points is not None:
                if ranks.is_main:
                    _write_points(folders[0], points, on, exclude_seen, users, as_json)
                return
            found = evaluate_runs(
                folders,
                split=on,
                step=step,
                exclude_seen=exclude_seen,
                limit=users,
                cutoffs=sorted({k, *CUTOFFS}),
                against=against or [],
                inspect=True,
                on_progress=lambda done, total: advance(done, total, ""),
                ranks=ranks,
            )
        if not ranks.is_main:
            return
        for counts in found.lists.values():
            status(str(counts))
        if found.lists:
            status(
                "Lists are judged fairly only if made without the held-out events. "
                f"`tapas evaluate {shell_path(folders[0].path)} --points known.parquet` writes all "
                "others, which `tapas recommend RUN --history known.parquet --out lists.parquet` "
                "can read."
            )
        renew_report(folders[0], found, status)
        verdict, advice = found.verdict(), advise_evaluated(folders[0], found)
        if as_json:
            report = {
                "step": next(iter(found.steps.values())),
                **dataclasses.asdict(found.evaluation),
            }
            report |= {
                "steps": found.steps,
                "lists": {name: dataclasses.asdict(each) for name, each in found.lists.items()},
                "verdict": verdict,
                "advice": [dataclasses.asdict(each) for each in advice],
            }
            print_json(_finite(report), indent=1, allow_nan=False)
            return
        for words in verdict:
            say(words)
        print_lines("")
        _print(found, k, show_all)
        print_lines(*after_evaluation(folders[0], found, advice), err=True)


def _check_usage(
    runs: list[Path], against: list[Path], points: Path | None, step: int | None
) -> None:
    for paths in (runs, against):
        files = [path.resolve() for path in paths]  # a link is the same run
        twice = next((path for i, path in enumerate(paths) if files[i] in files[:i]), None)
        if twice is not None:
            raise UsageError(f"{twice} is given twice. Name each once.")
    if len(runs) > 1 and step is not None:
        raise UsageError("--step can be used with one RUN only.")
    if points is not None and (len(runs) > 1 or against):
        raise UsageError("--points can be used with one RUN and without --against only.")


def _write_points(
    run: "RunFolder",
    path: Path,
    on: str,
    exclude_seen: bool | None,
    limit: int | None,
    as_json: bool,
) -> None:
    from tapas.data.known_events import known_events
    from tapas.data.splits import split_log
    from tapas.data.table_files import check_suffix, write_frame
    from tapas.evaluation.evaluate import held_out
    from tapas.training.run_evaluation import list_options

    check_suffix(path)
    if path.exists():
        raise UsageError(f"{path} exists. Remove it, or choose another file.")
    split, options = split_log(run.log, run.config.split), list_options(run, exclude_seen)
    num_targets = run.config.head.next_items
    judged, _ = held_out(
        run.log, split, options, split_name=on, num_targets=num_targets, limit=limit
    )
    columns = known_events(run.log, split, judged, split_name=on)
    write_frame(path, columns)
    num_events = len(columns["user"])
    if as_json:
        print_json({"events": num_events, "users": len(judged), "out": str(path)})
    status(
        f"Wrote the {num_events:,} events before the cut to {path}. Make lists of 20 items for "
        f"the {len(judged):,} users whose column judged is true, as a file with columns user, "
        f"item and rank, and judge them with "
        f"`tapas evaluate {shell_path(run.path)} --against FILE`."
    )


def _names(found: "RunsEvaluation") -> dict[str, str]:
    """The names for the reader: of several runs, "model" is the path of the first."""
    first, *others = found.steps
    order = ["model", *others, *found.lists]
    order += [name for name in found.evaluation.scores if name not in order]
    return {name: first if name == "model" and others else name for name in order}


def _print(found: "RunsEvaluation", k: int, show_all: bool) -> None:
    """Print the points, a table of metrics, one of frequent and rare items, and differences."""
    evaluation, names = found.evaluation, _names(found)
    scores = {shown: evaluation.scores[name] for name, shown in names.items()}
    steps = [f"{path}, step {step:,}" for path, step in found.steps.items()]
    checkpoints = f"Checkpoint{'s' if len(steps) > 1 else ''}: {'; '.join(steps)}."
    say(f"{evaluation.describe_points()} {checkpoints}")
    print_lines("")
    few = found.num_users < LEAST_USERS

    first, *rest = [*(f"{metric}@{k}" for metric in SHOWN), "precision@1"]
    rows = [
        [name, plus_minus(each.metrics[first], few), *(f"{each.metrics[m].mean:.4f}" for m in rest)]
        for name, each in scores.items()
    ]
    print_table(["", *map(metric_label, (first, *rest))], rows)
    if not few:
        say("±: distance to the farther end of the 95 % interval (bootstrap over users).")
    print_lines("")
    if show_all:
        for start in range(0, len(scores), COLUMNS):
            some = dict(list(scores.items())[start : start + COLUMNS])
            rows = [
                [
                    metric_label(name),
                    *(plus_minus(each.metrics.get(name), few) for each in some.values()),
                ]
                for name in evaluation.scores["model"].metrics
            ]
            rows.append(["items shown", *(f"{each.coverage:,}" for each in some.values())])
            print_table(["", *some], rows)
            print_lines("")
        say("MAP@20 ÷ hits: divided by the hits instead of the targets, as in the TAPAS paper.")
        print_lines("")
    if len(found.steps) > 1:
        say(f"Frequent and rare items, for {names['model']}:")
    print_table(BUCKET_HEADING, bucket_rows(evaluation.scores["model"], few))
    say(ABOUT_BUCKETS)
    if few:
        return
    print_lines("")
    print_table(
        (f"{names['model']} minus", "difference in MAP@20", ""),
        [
            [names[name], lead.format(sign=True), _word(lead)]
            for name, lead in ((name, evaluation.lead[name]) for name in names if name != "model")
        ],
    )


def _word(lead: Interval) -> str:
    if lead.above_zero:
        return "better"
    return "worse" if lead.below_zero else "no significant difference"


def _finite(value: Any) -> Any:
    """`value` with None for numbers that JSON does not have, such as infinite intervals."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
