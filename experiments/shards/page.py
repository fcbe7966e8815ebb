"""Sections of the shards page beyond the accuracy of its cells."""

from experiments.claims import markdown_table
from experiments.shards.overlap import expected_overlap
from experiments.synthetic.claims import PAPER_SIZES, overlap_by_shards
from experiments.synthetic.experiment import Cell
from experiments.synthetic.studies import Study
from experiments.synthetic.tasks import sizes_of
from tapas.comparison.ledger import Ledger, Result
from tapas.evaluation.intervals import Interval, student_difference


def shards_findings(study: Study, ledger: Ledger) -> list[str]:
    """The sections in Markdown, from the ledger."""
    return [
        *_overlaps(study, ledger),
        *_costs(study, ledger),
        *_gradients(study, ledger),
        *_loads(study, ledger),
    ]


def one_shard(study: Study, ledger: Ledger, rule: str) -> dict[int, list[Result]]:
    """Results of `rule` on one shard, by n: the models whose overlap is measured."""
    cells = [c for c in study.experiment.cells if c.method == rule and c.num_shards == 1]
    return {c.num_samples: study.experiment.results(ledger, c) for c in cells}


def change_by_shards(study: Study, ledger: Ledger, cell: Cell, name: str) -> Interval:
    """`name` of a cell minus that of the same cell on one shard, seed by seed."""
    ours, theirs = (
        [result[name] for result in study.experiment.results(ledger, each)]
        for each in (cell, cell.unsharded)
    )
    return student_difference(ours, theirs)


def _overlaps(study: Study, ledger: Ledger) -> list[str]:
    num_classes = sizes_of(study.experiment.task).num_classes
    by_size = one_shard(study, ledger, "top")
    random = {n: overlap_by_shards(results, "overlap", "random") for n, results in by_size.items()}
    in_order = {
        n: overlap_by_shards(results, "overlap", "contiguous") for n, results in by_size.items()
    }
    headings = ["m"]
    for n in by_size:
        headings += [f"n={n:,}: random", "counted", "contiguous"]
    rows = []
    for m in max(random.values(), key=len):
        row = [str(m)]
        for n in by_size:
            if m not in random[n]:
                row += ["–"] * 3
                continue
            row += [
                str(random[n][m]),
                f"{expected_overlap(num_classes, n, m):.4f}",
                str(in_order[n][m]) if m in in_order[n] else "–",
            ]
        rows.append(row)
    classes, n, counts = PAPER_SIZES
    expected = ", ".join(f"{expected_overlap(classes, n, m):.4f} with m={m}" for m in counts)
    looks = "once" if study.experiment.looks == 1 else f"{study.experiment.looks} times"
    return [
        "## Overlap with the best n",
        "",
        "Share of the best n classes of the pool (8n classes) that are among the best n/m of their "
        "shard. Models were trained with the paper's rule on one shard; queries, pool and "
        f"placement were drawn {looks} for each seed. *Counted* is the expectation "
        "under random placement, the same for every model: the number of the best n "
        "classes in a shard is hypergeometric, and those beyond n/m are lost, about sqrt((m-1) / "
        f"2πn) of all. At the paper's size (n={n:,}, here of {classes:,} classes) it is "
        f"{expected}. *Contiguous* shards have neighbours in the order of frequency.",
        "",
        *markdown_table(headings, rows),
        "",
    ]


def _costs(study: Study, ledger: Ledger) -> list[str]:
    num_classes = sizes_of(study.experiment.task).num_classes
    rows = []
    for cell in study.experiment.cells:
        if cell.num_shards == 1:
            continue
        accuracy = change_by_shards(study, ledger, cell, "accuracy")
        loss = change_by_shards(study, ledger, cell, "cross_entropy")
        measured, counted = "–", "–"
        if cell.method == "top":
            results = study.experiment.results(ledger, cell)
            measured = str(overlap_by_shards(results, "overlap", "random")[cell.num_shards])
            counted = f"{expected_overlap(num_classes, cell.num_samples, cell.num_shards):.4f}"
        points = f"{100 * accuracy.mean:+.2f} ± {100 * accuracy.half_width:.2f}"
        rows.append(
            [str(cell), points, f"{loss.mean:+.3f} ± {loss.half_width:.3f}", measured, counted]
        )
    gains = []
    for n, results in one_shard(study, ledger, "top").items():
        plain = study.experiment.results(ledger, Cell("sampled", n, 1))
        gain = student_difference([r["accuracy"] for r in results], [r["accuracy"] for r in plain])
        gains.append(f"{100 * gain.mean:+.2f} ± {100 * gain.half_width:.2f} points with n={n:,}")
    headings = ["cell", "precision@1, points", "cross-entropy, nats", "overlap", "counted"]
    return [
        "## Cost in accuracy",
        "",
        "Difference between training on m shards and on one, seed by seed. For comparison, the "
        f"gain of the second pass itself (the paper's rule, r=8 minus r=1): {', '.join(gains)}.",
        "",
        "The placement does not change during training, so a class that shares its shard with "
        "better ones is left out every time. *Overlap* is measured on the shards that the model "
        "was trained on; *counted* is the expectation for shards that it was not trained on. With "
        "shards redrawn in every step, which no real system can do, as many classes are left out, "
        "but different ones each time.",
        "",
        *markdown_table(headings, rows),
        "",
    ]


def _gradients(study: Study, ledger: Ledger) -> list[str]:
    lines = [
        "## Mass and gradient of the kept classes",
        "",
        "Models trained on one shard, random placement: the share of the pool's softmax mass on "
        "the kept classes, and the cosine between the sampled and the exact gradient of the "
        "queries. Overlap has no meaning for priority, which keeps classes at random and weights "
        "them: its estimate is unbiased in every shard, only its variance can grow.",
        "",
    ]
    headings, columns = ["m"], []
    for rule in ("top", "priority"):
        for n, results in one_shard(study, ledger, rule).items():
            for name, words in (("kept_mass", "mass"), ("gradient_cosine", "cosine")):
                headings.append(f"{rule}, n={n:,}: {words}")
                columns.append(overlap_by_shards(results, name, "random"))
    rows = [
        [str(m), *(str(column[m]) if m in column else "–" for column in columns)]
        for m in max(columns, key=len)
    ]
    return [*lines, *markdown_table(headings, rows), ""]


def _loads(study: Study, ledger: Ledger) -> list[str]:
    headings, columns = ["m"], []
    for n, results in one_shard(study, ledger, "top").items():
        for kind in ("random", "contiguous"):
            for name, words in (("pool_load", "scores"), ("row_load", "moves")):
                headings.append(f"n={n:,}, {kind}: {words}")
                columns.append(overlap_by_shards(results, name, kind))
    shown = sorted(set.intersection(*map(set, columns)))
    rows = [[str(m), *(_times(column[m]) for column in columns)] for m in shown]
    return [
        "## Load of the shards",
        "",
        "The busiest shard of a batch relative to the mean of all shards: rows that it scores (its "
        "share of the pool) and rows that it sends (kept classes and distinct targets). Class ids "
        "are ordered by frequency, the worst case for contiguous placement.",
        "",
        *markdown_table(headings, rows),
        "",
    ]


def _times(found: Interval) -> str:
    return f"{found.mean:.2f} ± {found.half_width:.2f}"
