"""`tapas evaluate`: metrics of a run on held-out events, next to simple baselines."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from tapas.cli.exit_codes import report_errors
from tapas.cli.options import AsJson
from tapas.cli.progress import progress_bar
from tapas.cli.torchrun import ranks_of_this_job
from tapas.evaluation.intervals import Interval


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
    as_json: AsJson = False,
) -> None:
    """Evaluate a run on held-out events, next to three baselines.

    Lists are exact: all items are ranked. Every metric has a 95 % interval (bootstrap over
    users). The baselines are the most popular items, the items that the user had most often, and
    the items that most often followed those of the user's last basket. A second table shows how
    the model does on frequent and on rare items.

    Under torchrun the ranks share the work, and each loads its part of the class vectors.
    """
    with report_errors():
        from tapas.training.run_evaluation import evaluate_run
        from tapas.training.run_folder import open_run

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
        console = Console(highlight=False)
        scores = found.scores["model"]
        seen = "may be recommended again"
        if found.exclude_seen:
            seen = f"left out, also of the targets ({found.split['seen_targets']:,} of them)"
        console.print(
            f"{scores.num_examples:,} examples of {found.part}, checkpoint step {at:,}. "
            f"The next {found.num_targets} items are to be found among all items; items taken "
            f"before {seen}."
        )
        names = [name for name in scores.metrics if name != "loss"]
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("")
        for who in found.scores:
            table.add_column(who, justify="right")
        for name in names:
            table.add_row(name, *(_short(each.metrics[name]) for each in found.scores.values()))
        if "loss" in scores.metrics:
            table.add_row("softmax loss", _short(scores.metrics["loss"]))
        table.add_row("items shown", *(f"{each.coverage:,}" for each in found.scores.values()))
        console.print(table)
        buckets = Table(box=box.SIMPLE_HEAD)
        for heading in ("items", "how many", "targets", "recall@20", "share of lists"):
            buckets.add_column(heading, justify="left" if heading == "items" else "right")
        for name, bucket in scores.buckets.items():
            recall = "" if bucket.recall is None else _short(bucket.recall)
            buckets.add_row(
                name,
                f"{bucket.num_classes:,}",
                f"{bucket.num_targets:,}",
                recall,
                f"{bucket.share:.1%}",
            )
        console.print(buckets)
        console.print(
            "Head: the items that hold half of the training events; tail: the rarest, with the "
            "last 10 %. Unseen items are in no training event: they stay among the "
            "targets."
        )
        for name, lead in found.lead.items():
            console.print(
                f"MAP@20 against {name}: {lead.mean:+.4f} ({lead.low:+.4f} to {lead.high:+.4f})"
            )


def _finite(value: Any) -> Any:
    """`value` with None for every number that JSON does not have, such as an endless interval."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _short(interval: Interval) -> str:
    half = (interval.high - interval.low) / 2
    return f"{interval.mean:.4f} ±{half:.4f}"
