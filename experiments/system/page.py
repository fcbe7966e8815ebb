"""The page of table 1 with workers and servers, written from the ledger."""

from collections.abc import Sequence

from experiments.claims import Claim, claims_table, markdown_table
from experiments.quick import quick_page
from experiments.synthetic.experiment import Cell, sampled
from experiments.system.claims import STUDY, percent
from experiments.system.config import MORE
from experiments.system.results import (
    Spread,
    SystemResults,
    paper_overhead,
    paper_rates,
    spread,
)
from tapas.evaluation.intervals import student_interval
from tapas.phrases import counted

RULE_WORDS = {
    "top": "the paper's rule: the best n, every query scores",
    "priority": "priority, this library's rule: 64 queries score",
}
Table = tuple[list[str], list[list[str]]]  # headings, rows


def rates_table(found: SystemResults, rule: str, *, quick: bool = False) -> Table:
    """Table 1 for `rule`: steps a second and the overhead of r=8, ours beside the paper's.

    The paper's are of other n than those of a quick run, and left out there.
    """
    theirs = paper_rates(found.system)
    rows = []
    for n in found.system.sizes:
        for cell in (sampled(n), Cell(rule, n, MORE)):
            r = cell.presample_factor
            overhead, paper = "–", "–"
            if r > 1:
                overhead = percent(spread(found.overheads(rule, n)))
                paper = f"{100 * paper_overhead(found.system, n):+.1f} %"
            rate = _range(spread(found.rates(cell)))
            rows.append([f"{n:,}", str(r), rate, str(theirs[n, r]), overhead, paper])
    headings = ["n", "r", "steps a second", "the paper's", "overhead of r=8", "the paper's"]
    if quick:
        kept = [place for place, words in enumerate(headings) if words != "the paper's"]
        return [headings[i] for i in kept], [[row[i] for i in kept] for row in rows]
    return headings, rows


def collisions_table(found: SystemResults) -> Table:
    """For each cell: rows that a step pushes, and how many another step changed meanwhile."""
    rows = []
    for cell in found.system.cells:
        early, late = (
            student_interval(found.collided_share(cell, segment))
            for segment in ("warm_up", "measured")
        )
        pushed, collided, missed, sent = (
            student_interval(measure(cell))
            for measure in (
                found.rows_pushed, found.rows_collided, found.staleness, found.sent_bytes
            )
        )  # fmt: skip
        rows.append(
            [
                _name(cell),
                f"{pushed.mean:,.0f}",
                f"{collided.mean:,.0f} ± {collided.half_width:,.0f}",
                f"{100 * late.mean:.1f} ± {100 * late.half_width:.1f} %",
                f"{100 * early.mean:.1f} %",
                f"{missed.mean:.1f}",
                f"{sent.mean / 1e6:.2f}",
            ]
        )
    headings = [
        "cell", "rows pushed", "collided", "share", "share while warming up", "updates missed",
        "MB sent",
    ]  # fmt: skip
    return headings, rows


def system_page(found: SystemResults, claims: Sequence[Claim], *, quick: bool = False) -> str:
    """Markdown."""
    lines = [
        "# Table 1: the system of workers and servers",
        "",
        *([] if quick else CLAIM),
        "![time of a step and collisions](figure.png)",
        "",
        "`python -m experiments table-1` runs it; with `--draw` it only redraws from "
        "[results.jsonl](results.jsonl). The same cells in one process on real data: "
        "[table-1](../table-1/README.md).",
        "",
        *([] if quick else _verdicts(claims)),
        "## Steps a second",
        "",
        f"Median and range of {counted(found.num_rounds, 'round')}. A round measures all "
        "cells, each with its own servers and workers, and starts with another cell each time. "
        "Overheads are taken inside a round. With r=1 both rules are sampled "
        "softmax, so these rows are the same.",
        "",
        *_cores(found),
    ]
    for rule, words in RULE_WORDS.items():
        lines += [
            f"{words[0].upper()}{words[1:]}.",
            "",
            *markdown_table(*rates_table(found, rule, quick=quick)),
            "",
        ]
    lines += [
        "## Stale gradients",
        "",
        "A pushed row has *collided* if another step changed it after this step had read it; rows "
        "of the softmax and of the input items both count. Numbers are per step, means over rounds "
        "with 95 % intervals. *Share*: collided rows among the pushed rows, the probability that a "
        "pushed gradient is stale. *Updates missed*: steps of others pushed between a step's read "
        "and its push.",
        "",
        *markdown_table(*collisions_table(found)),
        "",
        *_settings(found),
    ]
    page = "\n".join(lines).rstrip() + "\n"
    return quick_page(page) if quick else page


CLAIM = [
    "**The paper's claim.** With 6 workers and 6 parameter servers r=8 costs about 10 % more "
    "time than r=1, 8 times the samples cost much more; and as fewer rows are updated, "
    "gradients are less likely to be stale.",
    "",
]


def _verdicts(claims: Sequence[Claim]) -> list[str]:
    return [
        "## Verdicts",
        "",
        "The rules were written before the first round. Overhead: at most 15 % counts as the "
        'paper\'s "about 10 %", at most 30 % as partly. 8 n must be at least 1.5 × slower. Stale '
        "gradients: both the collided rows of a step and their share of the pushed rows must be "
        "lower, with 95 % intervals that exclude 0; one of the two counts as partly.",
        "",
        *claims_table([claim for claim in claims if claim.study == STUDY]),
        "",
    ]


def _cores(found: SystemResults) -> list[str]:
    """A sentence about the machine, to be read before comparing with the paper's."""
    system, cores = found.system, found.cores[0]
    processes = system.servers + system.workers
    words = (
        f"{system.servers} servers and {system.workers} worker{'s' * (system.workers > 1)} on one "
        f"machine with {cores} cores; the paper's had a GPU each."
    )
    if cores < processes:
        words += (
            f" {processes} processes share {cores} cores, so that servers cannot score while "
            "workers compute gradients: scoring costs its full time."
        )
    return [words, ""]


def _settings(found: SystemResults) -> list[str]:
    system = found.system
    return [
        "## Settings",
        "",
        f"A synthetic log of {system.users:,} users with 30 events each on average and "
        f"{system.classes:,} items; the top 20 % of the items take 60 % of the events. The next "
        f"five items are predicted. GRU, D={system.dim}; {system.batch} users in a batch, all of "
        f"their positions predict; row-wise Adagrad. A step begins when all before it are done but "
        f"the last {system.max_staleness}. {system.warm_up} steps to warm up, then {system.steps} "
        "that are measured. Rounds differ in their seed; cells of a round have the "
        "same batches.",
    ]


def _range(found: Spread) -> str:
    return f"{found.median:.3g} ({found.low:.3g} to {found.high:.3g})"


def _name(cell: Cell) -> str:
    rule = "" if cell.method == "sampled" else f", {cell.method}"
    return f"n={cell.num_samples:,}, r={cell.presample_factor}{rule}"
