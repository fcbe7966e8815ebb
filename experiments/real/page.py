"""The Markdown pages of the real-data experiments, written from the ledgers."""

from collections.abc import Sequence

from experiments.claims import Claim, claims_table, markdown_table
from experiments.quick import quick_page
from experiments.real.cells import (
    ALPHAS,
    CELLS,
    FULL,
    HALF_CORRECTED,
    LRS,
    NOT_CORRECTED,
    PRIORITY,
    SEEDS,
    SMALL_CELLS,
    SweepPoint,
)
from experiments.real.claims import goals_table
from experiments.real.evidence import SetEvidence
from tapas.comparison.ledger import Result
from tapas.evaluation.baselines import title_of
from tapas.evaluation.intervals import block_bootstrap

RUNS = "../real-data"


def is_quick(sets: Sequence[SetEvidence]) -> bool:
    return any(each.set_runs.is_quick for each in sets)


def _goals(sets: Sequence[SetEvidence]) -> list[str]:
    return ["## Goals for priority, this library's rule", "", *goals_table(sets), ""]


def map_page(sets: Sequence[SetEvidence], claims: Sequence[Claim]) -> str:
    return _page(
        f"Figure 3: MAP@20 on {'a made-up log' if is_quick(sets) else 'public data'}",
        "figure-3",
        sets,
        claims,
        [
            "![MAP@20 over training steps](figure.png)",
            "",
            *([] if is_quick(sets) else _goals(sets)),
            *(["![MAP@20 over time](time.png)", ""] if any(each.paces for each in sets) else []),
            "![MAP@20 against the number of samples](samples.png)",
            "",
            "## Results",
            "",
            "MAP@20 on test points, with 95 % intervals over users and seeds. Recall@20 by the "
            "frequency of the targets: head is the fewest classes with half of the training "
            "events; tail is what is left after the fewest classes with 90 % of them, unseen "
            "classes included. Tail share: share of recommended items from the tail.",
            "",
            *[line for each in sets for line in set_section(each)],
            *settings_section(sets),
            "",
            *corrections_section(sets),
        ],
    )


def loss_page(sets: Sequence[SetEvidence], claims: Sequence[Claim]) -> str:
    lines = ["![full softmax loss over training steps](figure.png)", ""]
    size = f" n = {sets[0].real_set.num_samples}." if is_quick(sets) else ""
    lines += [
        "Full softmax loss on test points, in nats, with 95 % intervals over users and seeds."
        + size,
        "",
        *wide_table(sets, "loss", 3),
        "",
        "## Where the mass goes",
        "",
        "The model's probabilities at 128 fixed validation points during training, seed 0: the "
        "mass on tail classes, their mean log-probability, the cosine between the sampled gradient "
        "and that of the full softmax, and how many of the n highest classes the sample has.",
        "",
        "![mass on the tail over training steps](tail.png)",
        "",
        "At the end of the run, with n samples:",
        "",
        *looks_table(sets),
        "",
    ]
    return _page("Figure 4: full softmax loss", "figure-4", sets, claims, lines)


def pace_page(sets: Sequence[SetEvidence], claims: Sequence[Claim]) -> str:
    lines = [
        "The paper: 181 steps a second with n=1000, r=1; 173 with r=8; 92 with n=8000, r=1; 81 "
        "with r=8, on 6 workers and 6 parameter servers with GPUs. Here: one process on "
        "CPUs. Cells take turns, round after round; the table has medians and the range over "
        "rounds. A step includes data, encoder, both passes, backward and update.",
        "",
    ]
    for each in sets:
        if not each.paces:
            continue
        rows = []
        for pace in each.paces.values():
            rates, ratios = sorted(pace.steps_per_second), sorted(pace.against_sampled)
            rows.append(
                [
                    pace.cell.words(each.real_set.num_samples),
                    f"{rates[len(rates) // 2]:.1f} ({rates[0]:.1f} to {rates[-1]:.1f})",
                    f"{pace.cost:.2f} × ({ratios[0]:.2f} to {ratios[-1]:.2f})",
                    f"{pace.rows.scored:,}",
                    f"{pace.rows.in_loss:,}",
                ]
            )
        headings = [
            "cell", "steps a second", "time of a step against sampled softmax with n",
            "rows scored", "rows in the loss",
        ]  # fmt: skip
        lines += [f"## {each.real_set.title}", "", *markdown_table(headings, rows), ""]
    return _page("Table 1: steps a second", "table-1", sets, claims, lines)


def sweeps_page(found: dict[str, list[tuple[SweepPoint, Result]]]) -> str:
    """`found`: the trials of each set."""
    lines = [
        "# One setting at a time",
        "",
        "Priority with n samples and r=8 is the start; one setting is changed at a time. The last "
        "rows, with twice as many steps, are selection rules, each with its own best alpha: "
        "compare them with each other only. One seed, on validation points: for choosing defaults.",
        "",
        "Made by `python -m experiments sweeps`.",
        "",
    ]
    for name, trials in found.items():
        rows = []
        for trial, result in trials:
            value = trial.words + (" (start)" if trial.is_default else "")
            rows.append([trial.setting, value, *scores(result), _tail_share(result)])
        headings = ["setting", "value", "MAP@20", "full softmax loss", "tail share of the lists"]
        lines += [f"## {name}", "", f"![one setting at a time]({name}.png)", ""]
        lines += [*markdown_table(headings, rows), ""]
    return "\n".join(lines)


def _tail_share(result: Result) -> str:
    if "diverged" in result:
        return "–"
    return f"{100 * sum(result['buckets'][b]['share'] for b in ('tail', 'unseen')):.1f} %"


def _page(
    title: str,
    study: str,
    sets: Sequence[SetEvidence],
    claims: Sequence[Claim],
    lines: Sequence[str],
) -> str:
    if is_quick(sets):
        how = f"`python -m experiments {study}` runs it, from [{RUNS}]({RUNS})."
        return quick_page("\n".join([f"# {title}", "", how, "", *lines]).rstrip() + "\n")
    mine = [claim for claim in claims if claim.study == study]
    parts = [
        f"# {title}",
        "",
        f"`python -m experiments {study} --data FOLDER` runs it; with `--draw` it only redraws "
        f"from [{RUNS}]({RUNS}). [docs/evidence.md](../../docs/evidence.md) discusses the results.",
        "",
        "## Verdicts",
        "",
        *claims_table(mine),
        "",
        *lines,
    ]
    return "\n".join(parts).rstrip() + "\n"


def set_section(each: SetEvidence) -> list[str]:
    mine, rows = each.real_set, []
    for cell in CELLS:
        if each.has(cell):
            name = cell.words(mine.num_samples)
            alpha = "–" if cell == FULL else f"{each.set_runs.best(each.ledger, cell)[1]:g}"
            rows.append(_row(name, each.seeds(cell), alpha))
    for run in each.set_runs.references(each.ledger):
        if run in each.ledger:
            rows.append(_row(title_of(run.method), [each.ledger[run]], "–"))
    headings = [
        "cell", "MAP@20", "seeds", "recall@20", "NDCG@10", "recall of head, middle, tail",
        "tail share", "alpha",
    ]  # fmt: skip
    return [f"### {mine.title}: {mine.asks}", "", *markdown_table(headings, rows), ""]


def _row(name: str, seeds: Sequence[Result], alpha: str) -> list[str]:
    recall, ndcg = (sum(r[m] for r in seeds) / len(seeds) for m in ("recall@20", "ndcg@10"))
    by_bucket = []
    for names in (("head",), ("middle",), ("tail", "unseen")):
        targets = sum(r["buckets"][b]["targets"] for r in seeds for b in names)
        hits = sum(
            (r["buckets"][b]["recall"] or 0) * r["buckets"][b]["targets"]
            for r in seeds
            for b in names
        )
        by_bucket.append(f"{hits / targets:.3f}" if targets else "–")
    share = sum(r["buckets"][b]["share"] for r in seeds for b in ("tail", "unseen")) / len(seeds)
    return [
        name,
        block_bootstrap(seeds, "map@20").format(),
        str(len(seeds)),
        f"{recall:.4f}",
        f"{ndcg:.4f}",
        ", ".join(by_bucket),
        f"{100 * share:.1f} %",
        alpha,
    ]


def wide_table(sets: Sequence[SetEvidence], metric: str, digits: int) -> list[str]:
    rows = []
    for cell in CELLS:
        found = [
            each.score(cell, metric).format(digits) if each.has(cell) else "–" for each in sets
        ]
        if any(text != "–" for text in found):
            size = "n" if cell.times == 1 else "n/8" if cell.times < 1 else f"{cell.times}n"
            name = f"{cell.method}, {size}" + (", r=8" if cell.r > 1 else "")
            rows.append(["full softmax" if cell == FULL else name, *found])
    return markdown_table(["cell", *(each.name for each in sets)], rows)


def looks_table(sets: Sequence[SetEvidence]) -> list[str]:
    rows = []
    for each in sets:
        for cell in SMALL_CELLS:
            for last in (r["looks"][-1] for r in each.seeds(cell) if r["looks"]):
                mass = last["mass of tail"] + last["mass of unseen"]
                rows.append(
                    [
                        each.name,
                        cell.method,
                        f"{100 * mass:.1f} %",
                        f"{last['gradient_cosine']:.3f}",
                        f"{100 * last['top_coverage']:.0f} %",
                        f"{last['pool_effective_size']:.0f}",
                        f"{100 * last['kept_mass']:.0f} %",
                    ]
                )
    headings = [
        "set", "rule", "mass on the tail", "cosine with the full gradient",
        "of the n highest kept", "effective size of the pool", "share of the pool's mass kept",
    ]  # fmt: skip
    return markdown_table(headings, rows)


def settings_section(sets: Sequence[SetEvidence]) -> list[str]:
    lines = [
        "## Settings and search",
        "",
        "Every method of a set has the same batches, encoder, optimizers and learning rates. The "
        "learning rate of the rows was searched with sampled softmax "
        f"({', '.join(f'{lr:g}' for lr in LRS)}) and holds for all; alpha was searched for each "
        f"method with n samples ({', '.join(f'{a:g}' for a in ALPHAS)}) and holds for its other "
        "sizes. Searches use validation points and a separate seed. Seeds of the results: "
        f"{', '.join(map(str, SEEDS))}; cells with fewer say so. Row-wise Adagrad for the rows, "
        "AdamW (0.002) for the encoder; biases are initialized to the log frequency.",
        "",
    ]
    rows = []
    for each in sets:
        if not each.has(SMALL_CELLS[0]):
            continue
        mine, lr = each.real_set, each.set_runs.best_lr(each.ledger)
        searched = "; ".join(
            f"{cell.method} "
            + ", ".join(
                f"{each.ledger[each.set_runs.trial(cell, lr, alpha)]['map@20']:.4f}"
                for alpha in ALPHAS
            )
            for cell in SMALL_CELLS
        )
        model = f"{mine.model.encoder}, D={mine.model.dim}, history {mine.model.history}"
        steps = f"{mine.steps:,} ({mine.search_steps:,})"
        rows.append([each.name, model, steps, f"{mine.batch} windows", f"{lr:g}", searched])
    headings = [
        "set", "encoder", "steps (search)", "batch", "learning rate",
        f"MAP@20 on validation points for alpha = {', '.join(f'{a:g}' for a in ALPHAS)}",
    ]  # fmt: skip
    return [*lines, *markdown_table(headings, rows)]


def corrections_section(sets: Sequence[SetEvidence]) -> list[str]:
    """Searches of the three rules, and priority with its weights at lower powers."""
    cells = (*SMALL_CELLS, HALF_CORRECTED, NOT_CORRECTED)
    lines = [
        "## How much to correct",
        "",
        "MAP@20 and full softmax loss on validation points at the end of a search run, one seed. "
        "The paper's rule does not correct for the selection; priority does, with weights. Between "
        "them are these weights to the power 1/2 (half corrected) and 0 (not corrected).",
        "",
    ]
    rows = []
    for each in sets:
        if each.ledger.missing(each.set_runs.searches(each.ledger)):
            continue
        row = [each.name]
        for cell in cells:
            searched = PRIORITY if cell in (HALF_CORRECTED, NOT_CORRECTED) else cell
            run = each.set_runs.trial(cell, *each.set_runs.best(each.ledger, searched))
            row.append(", ".join(scores(each.ledger[run])) if run in each.ledger else "–")
        rows.append(row)
    return [*lines, *markdown_table(["set", *(cell.method for cell in cells)], rows)]


def scores(result: Result) -> list[str]:
    """MAP@20 and loss."""
    if "diverged" in result:
        return ["diverged", "–"]
    return [f"{result['map@20']:.4f}", f"{result['loss']:.3f}"]
