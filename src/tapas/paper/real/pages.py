"""The pages beside the figures of the real-data experiments, in Markdown, from ledgers alone."""

from collections.abc import Sequence

from tapas.paper.claims import Claim
from tapas.paper.ledger import Result
from tapas.paper.real.comparisons import Evidence
from tapas.paper.real.goals import goals_table
from tapas.paper.real.sweeps import Trial
from tapas.paper.real.tables import (
    corrections_section,
    looks_table,
    scores,
    set_section,
    settings_section,
    wide_table,
)
from tapas.paper.report import claims_table

RUNS = "../real-data"


def map_page(sets: Sequence[Evidence], claims: Sequence[Claim]) -> str:
    return _page(
        "Figure 3: MAP@20 on public data",
        "figure-3",
        claims,
        [
            "![MAP@20 over training steps](figure.png)",
            "",
            "## What this library wants of its own rule",
            "",
            *goals_table(sets),
            "",
            *(["![MAP@20 over time](time.png)", ""] if any(each.paces for each in sets) else []),
            "![MAP@20 against the number of samples](samples.png)",
            "",
            "## What was found",
            "",
            "MAP@20 on test points with 95 % intervals over users and seeds; recall@20 by the "
            "frequency of what was to be found (head: the fewest classes with half of the training "
            "events; tail: those after the fewest with 90 %; unseen ones are counted as tail) and "
            "the share of recommended items that are tail.",
            "",
            *[line for each in sets for line in set_section(each)],
            *settings_section(sets),
            "",
            *corrections_section(sets),
        ],
    )


def loss_page(sets: Sequence[Evidence], claims: Sequence[Claim]) -> str:
    lines = ["![full softmax loss over training steps](figure.png)", ""]
    lines += [
        "Full softmax loss on test points, in nats, with 95 % intervals over users and seeds.",
        "",
        *wide_table(sets, "loss", 3),
        "",
        "## Where the mass goes",
        "",
        "What the model believes at 128 fixed validation points, over training, seed 0: its mass "
        "on classes of the tail, their mean log-probability, the cosine of the sampled gradient "
        "with that of the full softmax, and what the sample catches.",
        "",
        "![mass on the tail over training steps](tail.png)",
        "",
        "At the end of the run, with n samples:",
        "",
        *looks_table(sets),
        "",
    ]
    return _page("Figure 4: full softmax loss", "figure-4", claims, lines)


def pace_page(sets: Sequence[Evidence], claims: Sequence[Claim]) -> str:
    lines = [
        "The paper: 181 steps a second with n=1000, r=1; 173 with r=8; 92 with n=8000, r=1; 81 "
        "with r=8, on 6 workers and 6 parameter servers with GPUs. Here: one process on "
        "CPUs; cells measured in turns, round after round; medians, and the range over rounds. "
        "Times are whole steps: data, encoder, both passes, backward, update.",
        "",
    ]
    for each in sets:
        if not each.paces:
            continue
        n = each.plan.real_set.num_samples
        lines += [
            f"## {each.plan.real_set.title}",
            "",
            "| cell | steps a second | time of a step against sampled softmax with n | rows scored "
            "| rows in the loss |",
            "|---|---|---|---|---|",
        ]
        for pace in each.paces.values():
            rates, ratios = sorted(pace.steps_per_second), sorted(pace.against_sampled)
            lines.append(
                f"| {pace.cell.words(n)} | {rates[len(rates) // 2]:.1f} ({rates[0]:.1f} to "
                f"{rates[-1]:.1f}) | {pace.cost:.2f} × ({ratios[0]:.2f} to {ratios[-1]:.2f}) | "
                f"{pace.rows.scored:,} | {pace.rows.in_loss:,} |"
            )
        lines.append("")
    return _page("Table 1: steps a second", "table-1", claims, lines)


def sweeps_page(found: dict[str, list[tuple[Trial, Result]]]) -> str:
    """`found`: the trials of each set."""
    lines = [
        "# What matters: one setting at a time",
        "",
        "Priority with n samples and r=8 as a start, one setting changed at a time; below it the "
        "paper's rule and attempts to cure it. One seed, validation points: for choosing defaults.",
        "",
        "Made by `tapas paper sweeps`.",
        "",
    ]
    for name, trials in found.items():
        lines += [f"## {name}", "", f"![one setting at a time]({name}.png)", ""]
        lines += [
            "| setting | value | MAP@20 | full softmax loss | tail share of the lists |",
            "|---|---|---|---|---|",
        ]
        for trial, result in trials:
            value = trial.words + (" (start)" if trial.is_default else "")
            lines.append(
                f"| {trial.setting} | {value} | {scores(result)} | {_tail_share(result)} |"
            )
        lines.append("")
    return "\n".join(lines)


def _tail_share(result: Result) -> str:
    if "diverged" in result:
        return "–"
    return f"{100 * sum(result['buckets'][b]['share'] for b in ('tail', 'unseen')):.1f} %"


def _page(title: str, study: str, claims: Sequence[Claim], lines: Sequence[str]) -> str:
    mine = [claim for claim in claims if claim.study == study]
    parts = [
        f"# {title}",
        "",
        f"Made by `tapas paper {study} --data FOLDER`, from the runs in "
        f"[{RUNS}]({RUNS}); drawn again by `tapas paper {study} --draw`. What it means is in "
        "[docs/evidence.md](../../docs/evidence.md).",
        "",
        "## Verdicts",
        "",
        *claims_table(mine),
        "",
        *lines,
    ]
    return "\n".join(parts).rstrip() + "\n"
