"""The report of a comparison: README.md, report.html and the document of --json."""

from dataclasses import asdict
from statistics import fmean
from typing import Any

from tapas.comparison.figures import about_lines, draw_quality, quality_charts
from tapas.comparison.recommendation import recommend_method
from tapas.comparison.results import Comparison, MethodResults
from tapas.comparison.settings import (
    command_of,
    describe_budget,
    describe_log,
    describe_test_points,
)
from tapas.comparison.tables import (
    BASELINE_HEADING,
    DETAILS_HEADING,
    EXCESS_HEADING,
    HEADING,
    baseline_table_rows,
    details_table_rows,
    excess_rows,
    loss_of,
    num_test_points,
    quality,
    ranked,
    recall_of,
    seed_sentences,
    table_rows,
)
from tapas.page import (
    Block,
    Charts,
    Command,
    Heading,
    Paragraph,
    Picture,
    Table,
    as_html,
    as_markdown,
)
from tapas.phrases import counted

README, PAGE = "README.md", "report.html"
QUALITY = "quality-over-time.png"
TITLE = "Which method, for this data?"
HOW_TO_READ = (
    "All scores are exact, over all classes, on test points. ± is the distance to the farther end "
    "of a 95 % interval, from resampling blocks of users and seeds together. The difference from "
    "the best is in MAP@20 and paired: same test points, same seeds. If its interval includes 0, "
    "there is no significant difference. The best was chosen by these numbers, which flatters it "
    "a little."
)
ABOUT_DETAILS = (
    "Loss: full softmax cross-entropy. Head: the fewest classes with half of the training events. "
    "Tail: the classes left when the fewest classes with 90 % of the events are removed. Scores "
    "per example: classes whose logit is computed for one position. Peak memory: of the training "
    "process, log and encoder included, before evaluation."
)
EQUAL = (
    "The same for all methods: log, split, encoder, dimension, batches and their order, optimizer "
    "family, n (the subsets of a partitioned vocabulary are 10 n, because they serve many "
    "batches), number of trials, and training time. The time of a step, batch and encoder "
    "included, is measured on one thread, one method at a time. Training time divided by step "
    "time is the number of steps, so that running several methods at once changes nothing.",
    "Half of the time goes to the search: the learning rate of the rows and at most one setting of "
    "the method, from fixed lists, chosen by MAP@20 on validation points with a separate seed. A "
    "diverged trial counts as 0. The other half goes to the final runs. They alone see test "
    "points. A final run is evaluated at seven moments, and its score is that of the best moment "
    "by MAP@20 on validation points, as training keeps its best checkpoint.",
)


def write_report(comparison: Comparison) -> dict[str, bytes]:
    """The files of the report, by name. Without results there is no figure."""
    pictures = {}
    if any(each.curve for each in comparison.methods):
        pictures[QUALITY] = draw_quality(comparison)
    blocks = make_blocks(comparison)
    return {
        README: as_markdown(TITLE, blocks).encode(),
        PAGE: as_html(TITLE, blocks).encode(),
        **pictures,
    }


def make_blocks(comparison: Comparison) -> list[Block]:
    """The report from top to bottom."""
    settings = comparison.settings
    num_points = num_test_points(comparison)
    return [
        Paragraph(f"{describe_log(settings)} {describe_budget(settings)}"),
        Command(command_of(settings)),
        *(Paragraph(words, "rule") for words in recommend_method(comparison).sentences),
        *([Paragraph(describe_test_points(settings, num_points))] if num_points else []),
        Heading("Quality over time"),
        *_quality_blocks(comparison),
        *_baseline_blocks(comparison),
        Heading("What was the same for all"),
        *(Paragraph(words) for words in EQUAL),
        *_skipped_blocks(comparison),
        Heading("Where it ran"),
        Paragraph(_describe_machine(settings)),
    ]


def as_document(comparison: Comparison) -> dict[str, Any]:
    """The report for --json: numbers of each contender, best first, and the recommendation."""
    rule = recommend_method(comparison)
    found = []
    for each in ranked(comparison):
        loss, best = loss_of(each), each.finals[0]["run"]
        found.append(
            {
                "name": each.name,
                "map@20": asdict(quality(each)),
                "loss": None if loss is None else asdict(loss),
                "precision@1": _mean(each, "precision@1"),
                "recall@20": _mean(each, "recall@20"),
                "ndcg@20": _mean(each, "ndcg@20"),
                "recall": {name: recall_of(each, name) for name in ("head", "middle", "tail")},
                "seeds": len(each.finals),
                "steps": best["steps"],
                "step_seconds": each.step_seconds,
                "scores_per_example": each.scores_per_example,
                "peak_bytes": each.peak_bytes,
                "rows_lr": best["rows_lr"],
                "knob": None if each.knob is None else {each.knob: best["knob"]},
                "state": each.state or None,
            }
        )
    without = {each.name: each.state for each in comparison.methods if not each.finals}
    return {
        "methods": found,
        "without_result": without,
        "references": {each.title: each.result["map@20"] for each in comparison.baselines},
        "rule": {
            "choice": rule.choice,
            "as_good": list(rule.as_good),
            "words": " ".join(rule.sentences),
        },
    }


def _mean(method: MethodResults, name: str) -> float | None:
    """None if the results are of an earlier version, which did not have this metric."""
    known = [float(result[name]) for result in method.finals if name in result]
    return fmean(known) if len(known) == len(method.finals) else None


def _quality_blocks(comparison: Comparison) -> list[Block]:
    blocks: list[Block] = []
    if any(each.curve for each in comparison.methods):
        note = (
            f"{about_lines(comparison)} Grey and without a name: methods that are not among the "
            "best three. The second chart is the MAP@20 of the table below, on all test points."
        )
        picture = Picture(QUALITY, "MAP@20 on test points over seconds of training")
        blocks.append(Charts(quality_charts(comparison), note, picture))
    blocks += [Paragraph(words) for words in seed_sentences(comparison)]
    blocks += [Table(HEADING, table_rows(comparison)), Paragraph(HOW_TO_READ, "note")]
    details = details_table_rows(comparison)
    if details:
        blocks += [
            Heading("Details"),
            Table(DETAILS_HEADING, details),
            Paragraph(ABOUT_DETAILS, "note"),
        ]
    return blocks


def _baseline_blocks(comparison: Comparison) -> list[Block]:
    if not comparison.baselines:
        return []
    blocks: list[Block] = [
        Heading("Without training"),
        Paragraph("On the same test points. A method that does not beat these is of no use."),
        Table(BASELINE_HEADING, baseline_table_rows(comparison)),
    ]
    excess = excess_rows(comparison)
    if excess:
        blocks += [
            Paragraph(
                "The log is synthetic, and its true distribution is known. A model's loss minus "
                "that of the truth, on the same targets, is its distance from the truth in nats "
                "(Kullback-Leibler divergence)."
            ),
            Table(EXCESS_HEADING, excess),
        ]
    return blocks


def _skipped_blocks(comparison: Comparison) -> list[Block]:
    """What was not run or diverged, and why."""
    lines = [
        f"{each.title}: {each.state}."
        for each in comparison.methods
        if each.state and not each.seeds_done
    ]
    for each in comparison.methods:
        lost = sum("diverged" in trial for trial in each.trials)
        if lost:
            lines.append(f"{each.title}: {lost} of {len(each.trials)} trials diverged.")
    if not lines and seed_sentences(comparison):
        return []
    if not lines:
        return [Heading("Left out"), Paragraph("Nothing: every method ran as planned.")]
    return [Heading("Left out"), *(Paragraph(line) for line in lines)]


def _describe_machine(settings: Any) -> str:
    machine = settings.get("machine", {})
    versions = [f"{name} {machine[name]}" for name in ("tapas", "torch", "python", "commit")
                if machine.get(name)]  # fmt: skip
    cores = machine.get("cores")
    where = f"{counted(cores, 'core')}; " if cores else ""
    return f"{where}{', '.join(versions)}. Every number is in the .jsonl files beside this page."
