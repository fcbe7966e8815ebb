"""The page of a synthetic study: claim, verdicts, results with intervals, settings."""

from collections.abc import Sequence

from experiments.claims import Claim, claims_table, markdown_table
from experiments.quick import GENERATED_POINTS, quick_page
from experiments.shards.page import shards_findings
from experiments.synthetic.experiment import Cell
from experiments.synthetic.runs import ALPHA
from experiments.synthetic.studies import Study
from experiments.synthetic.tasks import has_uniform_labels, sizes_of
from tapas.comparison.ledger import Ledger
from tapas.evaluation.intervals import student_interval


def study_page(study: Study, ledger: Ledger, claims: Sequence[Claim]) -> str:
    """The page in Markdown, from the ledger."""
    experiment = study.experiment
    found = shards_findings(study, ledger) if study.name == "shards" else []
    seeds = ", ".join(str(seed) for seed in experiment.seeds)
    mine = [claim for claim in claims if claim.study == study.name]
    verdicts = ["## Verdicts", "", *claims_table(mine), ""] if mine else []
    duration = "a minute" if study.is_quick else f"{study.minutes} minutes"
    claim = [] if study.is_quick else [f"**Claim.** {study.claim}", ""]
    lines = [
        f"# {study.title}",
        "",
        *claim,
        "![precision@1 of every method](figure.png)",
        "",
        f"`python -m experiments {study.name}` runs it (about {duration} on two "
        f"cores); with `--draw` it only redraws from [results.jsonl](results.jsonl).",
        "",
        *verdicts,
        "## Results",
        "",
        f"At step {experiment.steps:,}, mean of {len(experiment.seeds)} seeds ({seeds}) with 95 % "
        "intervals (Student's t). Seeds share the data and differ in its order, the initial "
        "weights and the random draws.",
        "",
        *_results_table(study, ledger),
        "",
        *found,
        "## Settings and search",
        "",
        *_settings(study),
        "",
    ]
    page = "\n".join(lines)
    return quick_page(page, GENERATED_POINTS) if study.is_quick else page


def _results_table(study: Study, ledger: Ledger) -> list[str]:
    rows = []
    for cell in study.experiment.cells:
        results = study.experiment.results(ledger, cell)
        lr, temperature = study.experiment.best(ledger, cell)
        accuracy = student_interval([r["accuracy"] for r in results])
        loss = student_interval([r["cross_entropy"] for r in results])
        pace = sum(r["train_seconds"] for r in results) / len(results) / study.experiment.steps
        tau = str(temperature) if cell.presample_factor > 1 else "–"
        score = f"{loss.mean:.3f} ± {loss.half_width:.3f}"
        rows.append([_name(cell), str(accuracy), score, f"{lr:g}", tau, f"{1000 * pace:.2f}"])
    headings = ["cell", "precision@1", "cross-entropy, nats", "lr", "τ", "ms a step"]
    last = None if study.timed else -1
    return markdown_table(headings[:last], [row[:last] for row in rows])


def _name(cell: Cell) -> str:
    return (
        f"sampled softmax, n={cell.num_samples}"
        if cell.presample_factor == 1 and (cell.method != "full")
        else str(cell)
    )


def _proposal(study: Study) -> str:
    if has_uniform_labels(study.experiment.task):
        return "uniform proposal (labels are uniform)"
    return f"proposal by training counts to the power {ALPHA:g}"


def _settings(study: Study) -> list[str]:
    experiment = study.experiment
    rates = ", ".join(f"{lr:g}" for lr in experiment.lrs)
    others = ", ".join(str(t) for t in experiment.temperatures)
    sharded = any(cell.num_shards > 1 for cell in experiment.cells)
    points = sizes_of(experiment.task).num_validation
    text = [
        "The paper gives no learning rate, temperature or schedule. Every cell got the same "
        f"search on {points:,} validation points with a separate seed and "
        f"{experiment.search_steps:,} steps: first the learning rate ({rates}) at τ = 1"
        + (f", then, where there is a second pass, τ ({others})." if others else ".")
        + (" Cells with several shards use the settings found for one." if sharded else ""),
        "",
        f"Adagrad (sums start at 1e-6), batches of {experiment.batch}, "
        f"{experiment.steps:,} steps, {_proposal(study)}, rows are initialized as in nn.Linear.",
    ]
    if experiment.l2:
        text += [
            "",
            f"L2 penalty {experiment.l2:g} on the rows that a step touches, without biases. The "
            "full softmax touches every row in every step, so its rows are regularized more often.",
        ]
    if study.timed:
        text += [
            "",
            "Step times are rough: several runs shared the machine, one thread each. For "
            "measurements see `benchmarks/`.",
        ]
    return text
