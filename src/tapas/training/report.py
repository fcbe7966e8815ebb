"""`report.html` of a run: what it learned from, how training went, and how good the model is.

`tapas train` writes it, `tapas evaluate` writes it again with what it found. One file without links
to others, so that it can be sent to somebody.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tapas.atomic_file import atomic_write
from tapas.charts import Estimate, Line, interval_chart, line_chart, share_chart
from tapas.data.description import describe, describe_period, describe_reading, describe_split
from tapas.data.splits import NONE, split_log
from tapas.durations import duration
from tapas.errors import TapasError
from tapas.escapes import shell_join, shell_path, shell_word
from tapas.evaluation.intervals import Interval
from tapas.evaluation.tables import (
    ABOUT_BUCKETS,
    BUCKET_HEADING,
    bucket_rows,
    metric_label,
    plus_minus,
)
from tapas.evaluation.verdict import LEAST_USERS
from tapas.heads.own_method import is_own
from tapas.page import Block, Charts, Command, Heading, Paragraph, Table, as_html
from tapas.phrases import counted
from tapas.training.advice import advise_evaluated, run_again, whole_log_command
from tapas.training.build import resolve_config
from tapas.training.config import as_tables
from tapas.training.journal import END, JOURNAL, SETTING, read_journal
from tapas.training.memory_plan import in_units
from tapas.training.model_facts import ModelFacts
from tapas.training.recipe import Choice
from tapas.training.run_evaluation import RunsEvaluation, evaluate_runs
from tapas.training.run_folder import REPORT, RunFolder, open_run
from tapas.training.validation import describe_head
from tapas.version import __version__

SHOWN = ("map", "ndcg", "recall", "mrr")
CUTOFFS = (5, 10, 20)
MOST_JUDGED = 2_000  # validation users after training: about as long as an evaluation during it
MOST_FILES = 3  # of a log that are named
Journal = Sequence[Mapping[str, Any]]
PARTS = {
    "softmax": "softmax: the trained network",
    "copy": "copy: items that the user had before",
    "follow": "follow: what followed the latest items in training, as counted",
}
ABOUT_METRICS = (
    "All are between 0 and 1, and more is better. Recall: how many of the items that came next are "
    "in the list; MAP, NDCG and MRR: whether they stand at its top, too."
)


def try_to_report(folder: Path, status: Callable[[str], None], *, judge: bool) -> None:
    """Write the report of a run that has just ended, and say where it is, or why there is none.

    With `judge` it says how good the model is, by validation users. A report since which nothing
    was learned stays: `tapas evaluate` may have written it.
    """
    with _or_warning(folder / REPORT, status):
        if _is_newest(folder):
            return
        run, found = open_run(folder), None
        if judge and run.config.split.kind != NONE:
            most = min(MOST_JUDGED, run.config.loop.validation_examples)
            found = evaluate_runs([run], split="validation", limit=most, inspect=True)
        write_report(run, found)


def renew_report(run: RunFolder, found: RunsEvaluation, status: Callable[[str], None]) -> None:
    """Write the report of `run` with what an evaluation `found`, and say where it is."""
    with _or_warning(run.path / REPORT, status):
        write_report(run, found)


def _is_newest(folder: Path) -> bool:
    report, journal = folder / REPORT, folder / JOURNAL
    return report.is_file() and report.stat().st_mtime_ns >= journal.stat().st_mtime_ns


@contextmanager
def _or_warning(path: Path, status: Callable[[str], None]) -> Iterator[None]:
    """Whatever goes wrong is a warning: a run and its numbers are complete without a report."""
    try:
        yield
    except Exception as error:
        reason = str(error) if isinstance(error, TapasError) else f"{type(error).__name__}: {error}"
        status(f"Warning: the report was not written: {reason}")
    else:
        status(f"Report: {path}")


def write_report(run: RunFolder, found: RunsEvaluation | None = None) -> None:
    """Write `report.html` of `run`, with what an evaluation `found`."""
    with atomic_write(run.path / REPORT) as file:
        file.write_text(report_page(run, found), encoding="utf-8")


def report_page(run: RunFolder, found: RunsEvaluation | None = None) -> str:
    """The page, as HTML."""
    path = run.path / JOURNAL
    journal = read_journal(path) if path.exists() else []
    facts = None if found is None else found.facts
    blocks = [
        Paragraph(_introduction(run)),
        *_quality(run, found),
        *_parts(facts),
        *_training(run, journal),
        *_samples(facts),
        *_choices(run, journal),
        *_log_sheet(run),
        *_next(run, found),
        Paragraph(f"Written by tapas {__version__}.", "note"),
    ]
    return as_html(f"Run {_name(run)}", blocks)


def _name(run: RunFolder) -> str:
    return run.path.resolve().name


def _introduction(run: RunFolder) -> str:
    files = [Path(file).name for file in run.config.log.files]
    named = ", ".join(files[:MOST_FILES])
    if len(files) > MOST_FILES:
        named += f" and {counted(len(files) - MOST_FILES, 'more file')}"
    return f"A model that predicts which items a user takes next, trained on {named}."


def _quality(run: RunFolder, found: RunsEvaluation | None) -> list[Block]:
    heading = Heading("How good it is")
    if run.config.split.kind == NONE:
        words = (
            "It has learned from all events, so there are none to judge it by. What is known of "
            "its quality is in the report of the run that it is like."
        )
        return [heading, Paragraph(words)]
    if found is None:
        return [heading, Paragraph("Not known yet: tapas evaluate adds it to this page.")]
    evaluation, few = found.evaluation, found.num_users < LEAST_USERS
    ours, name = evaluation.scores["model"], _name(run)
    if len(found.steps) > 1:  # runs go by their paths
        name = next(iter(found.steps))
    scores = {name if n == "model" else n: each for n, each in evaluation.scores.items()}
    users = counted(found.num_users, f"{evaluation.part} user")
    charts = {
        f"MAP@20 of {users}": [
            _estimate(name, each.metrics["map@20"], few, marked=each is ours)
            for name, each in scores.items()
        ],
        "Recall@20 of frequent and rare items": [
            _estimate(f"{name}, {counted(b.num_targets, 'target')}", b.recall, few, marked=True)
            for name, b in ours.buckets.items()
            if b.recall is not None
        ],
    }
    held_out = "Judged by events that no training has seen"
    if evaluation.part == "validation":
        held_out = "Judged by the validation events, which the checkpoint was chosen by, too"
    steps = "; ".join(f"{name}, step {step:,}" for name, step in found.steps.items())
    bars = "" if few else " Bars and ±: 95 % intervals (bootstrap over users)."
    return [
        heading,
        *(Paragraph(words, "rule") for words in found.verdict()),
        Charts(
            {title: interval_chart(each, title=title) for title, each in charts.items()},
            f"{held_out}: {evaluation.describe_points()} Checkpoint: {steps}.{bars}",
        ),
        Table(
            ("", *scores),
            [
                (metric_label(name), *(plus_minus(s.metrics[name], few) for s in scores.values()))
                for name in (f"{metric}@{k}" for metric in SHOWN for k in CUTOFFS)
            ],
        ),
        Paragraph(ABOUT_METRICS, "note"),
        Table(BUCKET_HEADING, bucket_rows(ours, few)),
        Paragraph(ABOUT_BUCKETS, "note"),
    ]


def _estimate(name: str, found: Interval, few: bool, *, marked: bool) -> Estimate:
    """Without an interval for `few` users."""
    low, high = (math.nan, math.nan) if few else (found.low, found.high)
    return Estimate(name, found.mean, low, high, marked)


def _parts(facts: ModelFacts | None) -> list[Block]:
    if facts is None or len(facts.listed) < 2:
        return []
    rows = {"listed items": facts.listed} | ({"hits": facts.hits} if facts.hits else {})
    words = "; ".join(PARTS[name] for name in facts.listed)
    title = "The part that gave an item most of its probability"
    return [
        Heading("Which part of the model proposed what"),
        Charts(
            {title: share_chart(rows, title=title)},
            f"{words[0].upper()}{words[1:]}. Hits: listed items that came next. From the lists of "
            f"{counted(facts.num_lists, 'user')}.",
        ),
    ]


def _training(run: RunFolder, journal: Journal) -> list[Block]:
    blocks: list[Block] = [Heading("Training")]
    evaluations = [entry for entry in journal if entry["event"] == "evaluate"]
    if evaluations:
        blocks += _curves(evaluations)
    return [*blocks, Table(("", ""), _effort(run, journal), words=True)]


def _curves(evaluations: Journal) -> list[Block]:
    def line(name: str, field: str) -> Line:
        return Line(name, [(float(e["step"]), _number(e, field, math.nan)) for e in evaluations])

    best = max(evaluations, key=lambda entry: _number(entry, "map@20", -math.inf))
    if "map@20" not in best:  # nothing is held out
        title = "Loss, in nats"
        return [
            Charts({title: line_chart([line("training", "train_loss")], x="step", title=title)})
        ]
    mark = float(best["step"]), f"best: step {best['step']:,}"
    lines = {
        "Loss, in nats": [line("training", "train_loss"), line("validation", "loss")],
        "Lists for validation users": [line("MAP@20", "map@20"), line("NDCG@20", "ndcg@20")],
    }
    note = (
        "The best step is that of the highest MAP@20; its checkpoint is the model. The training "
        "loss is that of the method, over a sample of the items unless it is a full softmax, and "
        "with dropout; the validation loss is exact and of the whole model. So the two need not "
        "meet."
    )
    charts = {t: line_chart(each, x="step", title=t, mark=mark) for t, each in lines.items()}
    return [Charts(charts, note)]


def _number(entry: Mapping[str, Any], name: str, otherwise: float) -> float:
    value = entry.get(name)
    return otherwise if value is None else float(value)


def _effort(run: RunFolder, journal: Journal) -> list[tuple[str, str]]:
    """What was trained, and in which time and memory, as far as the journal has it."""
    config = run.config
    done = max((int(entry["step"]) for entry in journal), default=0)
    rows = [
        ("method", describe_head(config.head, run.log.num_items)),
        ("encoder", f"{config.model.encoder}, {config.model.dim} dimensions"),
        (
            "steps",
            f"{done:,} of at most {config.loop.steps:,}, {config.loop.batch:,} histories each",
        ),
    ]
    ends = [entry for entry in journal if entry["event"] == END]
    seconds, steps = (sum(_number(e, name, 0.0) for e in ends) for name in ("seconds", "steps"))
    if not seconds or not steps:
        return rows
    split = split_log(run.log, config.split)
    passes = steps / resolve_config(config, run.log, split)[1].steps_per_epoch
    events = passes * int(split.train_counts.sum())
    killed = "" if steps >= done else f", for {steps:,.0f} of the steps: a process was killed"
    rows += [
        ("time", f"{duration(seconds)}, evaluations included{killed}"),
        ("training events", f"{events:,.0f} read, {events / seconds:,.0f} a second"),
    ]
    if peak := max(_number(entry, "peak_bytes", 0.0) for entry in ends):
        where = " in the main process, without workers and servers" * bool(config.service.servers)
        rows.append(("memory", f"{in_units(peak)} at most{where}"))
    return rows


def _samples(facts: ModelFacts | None) -> list[Block]:
    if facts is None or not facts.gradients:
        return []
    about = (
        "Training looks at a sample of the items in each step. The gradient cosine compares that "
        "with all items, for some of the users above: with 1 the sample is as good as all, with 0 "
        "it says nothing."
    )
    return [
        Heading("Were there enough samples?"),
        Paragraph(f"{facts.gradients[0].upper()}{facts.gradients[1:]}"),
        Paragraph(about, "note"),
    ]


def _choices(run: RunFolder, journal: Journal) -> list[Block]:
    """What was chosen and is in force: time limits, searches and edits may have changed it."""
    tables = as_tables(run.config)

    def now(name: str) -> str:
        section, _, field = name.partition(".")
        return Choice(name, tables.get(section, {}).get(field), "").as_words()["value"]

    chosen = {entry["name"]: entry for entry in journal if entry["event"] == SETTING}
    rows = [
        (str(name), str(entry["value"]), str(entry["reason"]))
        for name, entry in chosen.items()
        if entry["value"] == now(name)
    ]
    if not rows:
        return []
    return [
        Heading("What was chosen from the log, and why"),
        Table(("setting", "value", "reason"), rows, words=True),
        Paragraph("All settings are in config.toml; any of them can be given instead.", "note"),
    ]


def _log_sheet(run: RunFolder) -> list[Block]:
    found = describe(run.log)
    low, middle, high = found.events_per_user
    rows = [
        ("events", f"{found.num_events:,}"),
        ("users", f"{found.num_users:,}"),
        ("items", f"{found.num_items:,}"),
        ("time", describe_period(run.log)),
        ("events of a user", f"{middle:,} (median); 8 of 10 users have {low:,} to {high:,}"),
        ("items with the same time", f"{found.items_per_basket:.1f} on average"),
        ("events that repeat an item of the user", f"{100 * found.repeats:.1f} %"),
        ("events of the most frequent fifth of the items", f"{100 * found.top_fifth:.0f} %"),
        ("items seen once", f"{100 * found.seen_once:.0f} %"),
    ]
    split = split_log(run.log, run.config.split)
    words = [*describe_reading(run.log.report), *describe_split(run.log, split), *found.remarks]
    return [
        Heading("The log"),
        Table(("", ""), rows, words=True),
        *(Paragraph(each, "note") for each in words),
    ]


def _next(run: RunFolder, found: RunsEvaluation | None) -> list[Block]:
    """Commands, each under what it is for."""
    path, method = shell_path(run.path), run.config.head.method
    own = method if is_own(method) else None
    named = "" if own is None else f" --method {shell_word(own)}"
    commands = {}
    if run.config.split.kind != NONE and (found is None or found.evaluation.part != "test"):
        commands["How good it is for the test users, beside counting:"] = (
            f"tapas evaluate {path}{named}"
        )
    if found is not None and (advice := advise_evaluated(run, found)):
        options = [option for each in advice for option in each.options]
        why = "; ".join(each.reason for each in advice)
        commands[f"A run that may be better, as {why}:"] = shell_join([*run_again(run), *options])
    commands["What to show a user:"] = f"tapas recommend {path} --user ...{named}"
    commands["Items that are taken in the same places as another:"] = (
        f"tapas similar {path} --item ...{named}"
    )
    commands["To look into it in a browser, and to answer other programs:"] = (
        f"tapas serve {path}{named}"
    )
    if run.config.split.kind != NONE:
        whole = whole_log_command(run.path, own)
        commands["Once you like it, a model that learns from the held-out events, too:"] = whole
    blocks: list[Block] = [Heading("Next")]
    for what, command in commands.items():
        blocks += [Paragraph(what), Command(command)]
    return blocks
