"""The page of the published sets: a table for each, ours beside what others report."""

from collections.abc import Sequence

from experiments.published.published_rows import ROWS, SESSIONS, USERS
from experiments.published.runs import DEFAULT, FULL, METHODS, NUM_SAMPLES, SOFTMAX, PublishedRun
from experiments.published.sets import SETS, PublishedSet
from tapas.comparison.ledger import Ledger, Result
from tapas.page import Block, Command, Heading, Paragraph, Table, as_markdown

NAME = "published"
TITLES = {
    DEFAULT: "`tapas train`, nothing else given",
    FULL: "our full softmax alone",
    "tapas": f"TAPAS alone, n = {NUM_SAMPLES}",
    "sampled": f"sampled softmax alone, n = {NUM_SAMPLES}",
}
NAMES = {"recall": "R", "ndcg": "N", "mrr": "MRR"}


def page(ledger: Ledger, recipe: int, seeds: Sequence[int]) -> str:
    """Markdown, of the results that `ledger` has."""
    blocks: list[Block] = [
        Paragraph(
            "Public files with tables that others have published, all items ranked. Ours: means "
            "over seeds, and in brackets the lowest and the highest of them where there are "
            "several. Settings were chosen on validation users of the two sets marked as tuned; "
            "on the others every run is made once, after the settings were fixed. Sets, methods "
            "and seeds that are not shown have not been run yet."
        ),
        Command(f"python -m experiments {NAME} --data FOLDER"),
        Paragraph(
            "Traps: the Amazon and Yelp files have events of one day in an order that tells what "
            "comes next, and these tables use it, and so do we, here only. Others' numbers are "
            "theirs: other code, other evaluation, mostly one seed. P@20 of session tables is "
            "recall@20. `tapas train` mixes counts of training events with its softmax; others "
            "do not, so the rows of a softmax alone are the fair ones for a loss. A test item that "
            "its user had before is a miss, as in these tables: lists leave it out.",
            "note",
        ),
    ]
    for mine in SETS.values():
        found = {method: results_of(ledger, mine, method, recipe, seeds) for method in METHODS}
        if any(found.values()):
            blocks += set_blocks(mine, found)
    return as_markdown("Beside published tables", blocks)


def results_of(
    ledger: Ledger, mine: PublishedSet, method: str, recipe: int, seeds: Sequence[int]
) -> list[Result]:
    """Results of `method`, one for each seed that has been run."""
    runs = (PublishedRun(set=mine.name, method=method, seed=s, recipe=recipe) for s in seeds)
    return [ledger[run] for run in runs if run in ledger]


def set_blocks(mine: PublishedSet, found: dict[str, list[Result]]) -> list[Block]:
    metrics = SESSIONS if mine.test_file else USERS
    rows = [
        (
            row.metrics.get(metrics[-1], 0.0),
            [row.model, *_published(row.metrics, metrics), row.source],
        )
        for row in ROWS[mine.name]
    ]
    for method, results in found.items():
        if not results:
            continue
        seeds = "one seed" if len(results) == 1 else f"{len(results)} seeds"
        rows.append(_ours(TITLES[method], results, DEFAULT, metrics, seeds))
        if method == DEFAULT:
            words = f"{seeds}; same checkpoint"
            if SOFTMAX in results[0]["scores"]:
                what = "full " if results[0]["config"]["head"]["method"] == FULL else ""
                title = f"its {what}softmax without counting"
                rows.append(_ours(title, results, SOFTMAX, metrics, words))
            last = results[-1]  # earlier ones of sessions have no counting
            counted = [n for n in last["scores"] if n not in (DEFAULT, SOFTMAX)]
            if counted:
                best = max(counted, key=lambda n: last["scores"][n][metrics[-1]][0])
                rows.append(_ours(f"counting: {best}", [last], best, metrics, "no seed"))
    rows.sort(key=lambda row: row[0])
    heading = ["", *map(_short, metrics), "source"]
    tuned = ", tuned on its validation users" if mine.tuned else ""
    first = next(results[0] for results in found.values() if results)
    what = f"{first['points']:,} test points{tuned}."
    default = found[DEFAULT]
    if default:
        head = default[0]["config"]["head"]
        what += (
            f" `tapas train` chose {head['method']}, {default[0]['config']['model']['dim']} "
            f"dimensions, {default[0]['steps']:,} steps."
        )
    return [Heading(mine.title), Paragraph(what), Table(heading, [row for _, row in rows])]


def _ours(
    title: str, results: list[Result], name: str, metrics: Sequence[str], words: str
) -> tuple[float, list[str]]:
    """The last metric, to sort by, and the cells of a row."""
    cells, mean = [title], 0.0
    for metric in metrics:
        values = [result["scores"][name][metric][0] for result in results]
        mean = sum(values) / len(values)
        spread = f" ({min(values):.4f} to {max(values):.4f})" if len(values) > 1 else ""
        cells.append(f"{mean:.4f}{spread}")
    return mean, [*cells, f"ours, {words}"]


def _published(found: dict[str, float], metrics: Sequence[str]) -> list[str]:
    return [f"{found[metric]:.4f}" if metric in found else "" for metric in metrics]


def _short(metric: str) -> str:
    name, _, k = metric.partition("@")
    return f"{NAMES[name]}@{k}"
