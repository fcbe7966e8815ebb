"""The paper's claim about shards, judged: how much of the best n is kept, and what it costs.

The paper has n "in the order of 10,000" and m "in the order of 10 to 100": n ≫ m is read as
n >= 100 m. Both rules were written when the counted overlaps and a short trial were known,
before the runs.
"""

from collections.abc import Sequence

from experiments.shards.overlap import expected_overlap
from experiments.study_results import Book, Evidence, points
from experiments.synthetic.experiment import Cell
from experiments.synthetic.studies import SHARD_COUNTS, SHARD_SAMPLES
from tapas.comparison.ledger import Result
from tapas.errors import DataError
from tapas.evaluation.intervals import Interval, difference, interval

MUCH_LARGER = 100
CLOSE = 0.95  # of the classes
CHEAP = 0.005  # of the accuracy: half a point
PAPER_SIZES = (1_000_000, 10_000, (10, 100))  # classes, n, m


def looked_at(results: Sequence[Result], name: str, kind: str) -> dict[int, Interval]:
    """`name` of every number of shards with this placement: mean over runs with its interval."""
    values: dict[int, list[float]] = {}
    for result in results:
        for row in result["looks"]:
            if row["placement"] == kind:
                values.setdefault(row["shards"], []).append(row[name])
    return {m: interval(found) for m, found in values.items()}


def union_is_close_to_the_best(book: Book) -> Evidence:
    """Reproduced: above 95 % of the best n wherever n >= 100 m; partly: above 90 %."""
    words, judged = [], []
    for n in SHARD_SAMPLES:
        results = book.results("shards", Cell("top", n, 8))
        kept = results[0]["run"]["num_samples"]
        overlap = looked_at(results, "overlap", "random")
        judged += [found.low for m, found in overlap.items() if m > 1 and kept >= MUCH_LARGER * m]
        shown = [m for m in (2, *SHARD_COUNTS[1:]) if m in overlap]
        row = ", ".join(f"{100 * overlap[m].mean:.1f} % with m={m}" for m in shown)
        words.append(f"n={kept:,}: {row}")
    if not judged:
        raise DataError("no look has n >= 100 m. `python -m experiments shards` runs larger ones.")
    num_classes, n, counts = PAPER_SIZES
    row = " and ".join(
        f"{100 * expected_overlap(num_classes, n, m):.1f} % with m={m}" for m in counts
    )
    words.append(f"counting predicts {row} for the paper's n={n:,}")
    least = min(judged)
    verdict = "reproduced" if least > CLOSE else "partly" if least > 0.9 else "not"
    return verdict, "; ".join(words)


def cut_costs_no_accuracy(book: Book) -> Evidence:
    """Reproduced: at the largest n/m the loss is below half a point, interval and all.

    Partly: its mean is.
    """
    found: dict[tuple[int, int], Interval] = {}
    for n in SHARD_SAMPLES:
        for m in SHARD_COUNTS[1:]:
            cell = Cell("top", n, 8, None, m)
            run = book.results("shards", cell)[0]["run"]
            found[run["num_samples"], run["num_shards"]] = difference(
                book.accuracy("shards", cell), book.accuracy("shards", cell.unsharded)
            )
    row = "; ".join(f"n={n:,}, m={m}: {points(change)}" for (n, m), change in found.items())
    words = f"the paper's rule on m shards against one, {row}"
    judged = found[max(found, key=lambda size: size[0] / size[1])]
    if judged.low > -CHEAP:
        return "reproduced", words
    return ("partly" if judged.mean > -CHEAP else "not"), words
