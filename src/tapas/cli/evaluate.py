"""`tapas evaluate`: metrics of a run on held-out events, next to simple baselines."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from tapas.cli.exit_codes import report_errors
from tapas.cli.options import AsJson, OwnMethods, import_methods
from tapas.cli.progress import progress_bar
from tapas.cli.terminal import decimals_of, low_to_high, print_table, say
from tapas.cli.torchrun import ranks_of_this_job
from tapas.evaluation.evaluate import Evaluation
from tapas.evaluation.intervals import Interval

SHOWN = ("map@20", "recall@20", "ndcg@20", "precision@1")
LABELS = {
    "map@20": "MAP@20",
    "ndcg@20": "NDCG@20",
    "map@20-hits": "MAP@20 ÷ hits",
    "mrr@20": "MRR@20",
    "loss": "softmax loss",
}


def evaluate(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="Folder of the run.",
        ),
    ],
    on: Annotated[
        str,
        typer.Option(
            metavar="test|validation",
            help="Which held-out events to use.",
        ),
    ] = "test",
    step: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Step of the checkpoint. Default: the best one.",
        ),
    ] = None,
    exclude_seen: Annotated[
        bool | None,
        typer.Option(
            "--exclude-seen/--keep-seen",
            help="Leave out items that the user has had before, or keep them in the lists. "
            "Default: as the run was trained.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Evaluate the first N users only.",
        ),
    ] = None,
    show_all: Annotated[
        bool,
        typer.Option("--all", help="Show all metrics, not only the most important four."),
    ] = False,
    method: OwnMethods = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run on held-out events, next to three baselines.

    Lists are exact: all items are ranked. Every metric has a 95 % interval (bootstrap over
    users). The baselines are the most popular items, the items that the user had most often, and
    the items that most often followed those of the user's last basket. A second table shows how
    the model does on frequent and on rare items.

    Under torchrun the ranks share the work, and each loads its shard of the class vectors.
    """
    with report_errors():
        from tapas.training.run_evaluation import evaluate_run
        from tapas.training.run_folder import open_run

        import_methods(method)
        folder = open_run(run)
        with (
            ranks_of_this_job(run, None) as ranks,
            progress_bar("ranking", "examples", shown=ranks.is_main) as advance,
        ):
            found, at = evaluate_run(
                folder,
                split=on,
                step=step,
                exclude_seen=exclude_seen,
                limit=limit,
                on_progress=lambda done, total: advance(done, total, ""),
                ranks=ranks,
            )
        if not ranks.is_main:
            return
        if as_json:
            report = _finite({"step": at, **dataclasses.asdict(found)})
            typer.echo(json.dumps(report, indent=1, allow_nan=False))
            return
        _print(found, at, show_all)


def _print(found: Evaluation, step: int, show_all: bool) -> None:
    """Print a table of metrics, one of frequent and rare items, and who is better."""
    say(_describe_examples(found, step))
    typer.echo()
    scores = found.scores.values()
    others = [name for name in found.scores["model"].metrics if name not in SHOWN]
    names = [*SHOWN, *others] if show_all else SHOWN
    decimals = decimals_of(each.metrics[name] for each in scores for name in SHOWN)
    rows = []
    for name in names:
        known = [each.metrics.get(name) for each in scores]
        rows.append(
            [LABELS.get(name, name), *("" if i is None else i.plus_minus(decimals) for i in known)]
        )
    if show_all:
        rows.append(["items shown", *(f"{each.coverage:,}" for each in scores)])
    print_table(["", *found.scores], rows)
    if found.scores["model"].num_examples > 1:
        say("±: distance to the farther end of the 95 % interval (bootstrap over users).")
    if show_all:
        say("MAP@20 ÷ hits: divided by the hits instead of the targets, as in the TAPAS paper.")
    typer.echo()
    print_table(
        ("items", "number", "targets", "recall@20", "share of lists"), _bucket_rows(found, decimals)
    )
    say(
        "Head: the most frequent items, with half of the training events; tail: the rarest, with "
        "the last 10 %; unseen: in no training event."
    )
    typer.echo()
    print_table(
        ("model minus", "difference in MAP@20", ""),
        [
            [name, low_to_high(lead, 4, sign=True), _verdict(lead)]
            for name, lead in found.lead.items()
        ],
    )
    better = [name for name, lead in found.lead.items() if lead.below_zero]
    if better:
        say(f"Beware: {', '.join(better)}, without any training, beats the model.")


def _describe_examples(found: Evaluation, step: int) -> str:
    seen = "may be recommended again"
    if found.exclude_seen:
        num_seen = found.split["seen_targets"]
        seen = f"are left out of lists and targets ({num_seen:,} targets)"
    num_users = found.scores["model"].num_examples
    users = "user" if num_users == 1 else "users"
    return (
        f"{found.part.capitalize()} events of {num_users:,} {users}, one list of 20 items each, "
        f"from the checkpoint of step {step:,}. Targets are the next {found.num_targets} items; "
        f"all items are ranked. Items that a user had before {seen}."
    )


def _bucket_rows(found: Evaluation, decimals: int) -> list[list[str]]:
    rows = []
    for name, bucket in found.scores["model"].buckets.items():
        counts = [f"{bucket.num_classes:,}", f"{bucket.num_targets:,}"]
        recall = "" if bucket.recall is None else low_to_high(bucket.recall, decimals)
        rows.append([name, *counts, recall, f"{100 * bucket.share:.1f} %"])
    return rows


def _verdict(lead: Interval) -> str:
    if lead.above_zero:
        return "better"
    return "worse" if lead.below_zero else "no significant difference"


def _finite(value: Any) -> Any:
    """`value` with None for numbers that JSON does not have, such as infinite intervals."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
