"""Fake results of a set, in which each cell has the quality that a test sets."""

import numpy as np

from experiments.real.cells import CELLS, SetRuns
from experiments.real.evidence import SetEvidence
from experiments.real.sets import GROCERY
from tapas.comparison.ledger import Ledger
from tapas.evaluation.points import NUM_BLOCKS

BUCKETS = {
    "head": {"recall": 0.5, "share": 0.7, "targets": 50},
    "middle": {"recall": 0.2, "share": 0.2, "targets": 30},
    "tail": {"recall": 0.1, "share": 0.08, "targets": 15},
    "unseen": {"recall": None, "share": 0.02, "targets": 5},
}
LOOK = {
    "mass of tail": 0.15, "mass of unseen": 0.05, "log-probability of tail": -9.0,
    "gradient_cosine": 0.9, "top_coverage": 0.2, "pool_effective_size": 9.0, "kept_mass": 0.5,
}  # fmt: skip


def made_up_set(
    path, quality, loss=lambda cell: 9.0, *, real_set=GROCERY, noise=0.0, cells=CELLS, seeds=None,
    paces=(),
):  # fmt: skip
    """A set whose search is finished, with runs of `cells` for `seeds`, or for the usual seeds.

    `quality(cell)` is MAP@20 at the end of a run; in the middle it is half of that. The search
    finds learning rate 0.3 and alpha 0.5.
    """
    set_runs, ledger = SetRuns(real_set), Ledger(path)
    draw = np.random.default_rng(0)
    while missing := ledger.missing(set_runs.searches(ledger)):
        for run in missing:
            good = run.rows_lr == 0.3 and run.alpha in (0.75, 0.5)
            score = 0.1 + 0.1 * good + 0.1 * (good and run.alpha == 0.5)
            put(ledger, run, score, 9.0, draw)
    for cell, usual_seeds in set_runs.cells().items():
        if cell in cells:
            for seed in usual_seeds if seeds is None else seeds:
                run = set_runs.run(cell, *set_runs.best(ledger, cell), seed)
                put(ledger, run, quality(cell), loss(cell), draw, noise)
    return SetEvidence(set_runs, ledger, paces)


def run_of(found, cell, seed):
    return found.set_runs.run(cell, *found.set_runs.best(found.ledger, cell), seed)


def put(ledger, run, quality, loss, draw, noise=0.0):
    """Add a result in memory; `noise` is the standard deviation between blocks."""
    points = [10.0] * NUM_BLOCKS
    wobble = noise * draw.standard_normal(NUM_BLOCKS)
    blocks = [10 * (quality + w) for w in wobble]
    stages = ((run.steps // 2, 0.5), (run.steps, 1.0))
    curve = [
        {"step": step, "seconds": 1.0, "map@20": share * quality, "loss": loss,
         "blocks": [share * b for b in blocks]}
        for step, share in stages
    ]  # fmt: skip
    ledger.results[run.key()] = {
        "key": run.key(), "run": {"seed": run.seed}, "map@20": quality, "loss": loss,
        "blocks": {"points": points, "map@20": blocks, "loss": [10 * loss] * NUM_BLOCKS},
        "recall@20": 0.3, "ndcg@10": 0.2, "coverage": 70, "buckets": BUCKETS, "curve": curve,
        "curve_points": points, "train_seconds": 1.0, "torch": "2",
        "looks": [{"step": step, **LOOK} for step, _ in stages] if run.seed == 0 else [],
    }  # fmt: skip
