"""Everything that a comparison says, for README.md, report.html and --json."""

from dataclasses import asdict
from statistics import fmean
from typing import Any

from tapas.comparison.figures import draw_quality
from tapas.comparison.page import (
    Block,
    Command,
    Heading,
    Paragraph,
    Picture,
    Table,
    as_html,
    as_markdown,
)
from tapas.comparison.recommendation import recommend_method
from tapas.comparison.results import Comparison, MethodResults
from tapas.comparison.settings import budget_words, command_of, log_words
from tapas.comparison.tables import (
    EXCESS_HEADING,
    HEADING,
    REFERENCE_HEADING,
    excess_rows,
    loss_of,
    quality,
    ranked,
    recall_of,
    reference_rows,
    table_rows,
)

README, PAGE = "README.md", "report.html"
QUALITY = "quality-over-time.png"
TITLE = "Which method, for this data?"
HOW_TO_READ = (
    "MAP@20, precision@1, recall@20 and the loss of the full softmax (in nats) are exact, over all "
    "classes, on test points, with 95 % intervals: blocks of users and seeds are resampled "
    "together. “Against the best” is the difference in MAP@20, resampled in pairs, as all were "
    "judged at the same points with the same seeds; an interval that holds 0 is no difference. The "
    "best was picked by these numbers, which flatters it a little. Head: the fewest classes with "
    "half of the training events; tail: those after the fewest with 90 %. Scores per example: "
    "classes whose logit is computed for one position. Peak memory is that of the process that "
    "trained, log and encoder included, before judging.",
)
EQUAL = (
    "Equal for all: log, split, encoder, dimension, the batches of a seed and their order, "
    "optimizer family, n for all that sample (a partitioned vocabulary's subsets are 10 n, as they "
    "are to outlast a batch), the number of trials, and the training time. "
    "The pace of a method is the mean time of a whole step, batch and encoder included, on one "
    "thread, measured alone on the machine in turns; time divided by pace is its number of steps. "
    "So runs can go side by side without one gaining or losing.",
    "Half of the time goes to the search: the learning rate of the rows and at most one knob of "
    "the method, from lists fixed in advance, judged by MAP@20 on validation points with a seed of "
    "its own; a diverged trial counts as 0. Half goes to the final runs, which alone see test "
    "points. As training keeps its best checkpoint, a final run is judged as it was at the best of "
    "seven moments by MAP@20 on validation points: who is done early loses nothing.",
)


def write_report(comparison: Comparison) -> dict[str, bytes]:
    """The files of the report, by name; a figure without data is left out."""
    pictures = {}
    if any(each.curve for each in comparison.methods):
        pictures[QUALITY] = draw_quality(comparison)
    blocks = make_blocks(comparison)
    return {
        README: as_markdown(TITLE, blocks).encode(),
        PAGE: as_html(TITLE, blocks, pictures).encode(),
        **pictures,
    }


def make_blocks(comparison: Comparison) -> list[Block]:
    """The report from top to bottom."""
    settings = comparison.settings
    return [
        Paragraph(f"{log_words(settings)} {budget_words(settings)}"),
        Command(command_of(settings)),
        *(Paragraph(words, "rule") for words in recommend_method(comparison).sentences),
        Heading("Quality over time"),
        *_quality_blocks(comparison),
        *_baseline_blocks(comparison),
        Heading("What was equal"),
        *(Paragraph(words) for words in EQUAL),
        *_skipped_blocks(comparison),
        Heading("Where it ran"),
        Paragraph(_machine_words(settings)),
    ]


def as_document(comparison: Comparison) -> dict[str, Any]:
    """The same for programs: numbers by contender, the best first, and the rule."""
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
        "references": {each.title: each.result["map@20"] for each in comparison.references},
        "rule": {
            "choice": rule.choice,
            "as_good": list(rule.as_good),
            "words": " ".join(rule.sentences),
        },
    }


def _mean(method: MethodResults, name: str) -> float:
    return fmean(float(result[name]) for result in method.finals)


def _quality_blocks(comparison: Comparison) -> list[Block]:
    blocks: list[Block] = []
    if any(each.curve for each in comparison.methods):
        blocks.append(Picture(QUALITY, "MAP@20 on test points over seconds of training"))
    return [
        *blocks,
        Table(HEADING, table_rows(comparison)),
        *(Paragraph(w, "note") for w in HOW_TO_READ),
    ]


def _baseline_blocks(comparison: Comparison) -> list[Block]:
    if not comparison.references:
        return []
    blocks: list[Block] = [
        Heading("What needs no training"),
        Paragraph(
            "Judged at the same test points. A method that does not beat counting is no use."
        ),
        Table(REFERENCE_HEADING, reference_rows(comparison)),
    ]
    excess = excess_rows(comparison)
    if excess:
        blocks += [
            Paragraph(
                "The log is made up, and its true distribution is known: the loss above that of "
                "the truth, on the same targets, is how far a model is from it, in nats "
                "(Kullback-Leibler divergence)."
            ),
            Table(EXCESS_HEADING, excess),
        ]
    return blocks


def _skipped_blocks(comparison: Comparison) -> list[Block]:
    """All that was left out, and why."""
    lines = [f"{each.title}: {each.state}." for each in comparison.methods if each.state]
    for each in comparison.methods:
        lost = sum("diverged" in trial for trial in each.trials)
        if lost:
            lines.append(f"{each.title}: {lost} of {len(each.trials)} trials diverged.")
    if not lines:
        return [Heading("What was cut"), Paragraph("Nothing: every method ran as planned.")]
    return [Heading("What was cut"), *(Paragraph(line) for line in lines)]


def _machine_words(settings: Any) -> str:
    machine = settings.get("machine", {})
    versions = [f"{name} {machine[name]}" for name in ("tapas", "torch", "python", "commit")
                if machine.get(name)]  # fmt: skip
    cores = machine.get("cores")
    where = f"{cores} core{'s' if cores != 1 else ''}; " if cores else ""
    return f"{where}{', '.join(versions)}. Every number is in the .jsonl files beside this page."
