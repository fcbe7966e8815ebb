"""Made-up results of a set in which every cell ends where the test says."""

import numpy as np

from experiments.real.cells import ALPHAS, FIRST_ALPHA, LRS, SAMPLED, SMALL_CELLS, Plan
from experiments.real.sets import GROCERY
from tapas.comparison.ledger import Ledger
from tapas.evaluation.points import NUM_BLOCKS

BUCKETS = {
    "head": {"recall": 0.5, "share": 0.7, "targets": 50},
    "middle": {"recall": 0.2, "share": 0.2, "targets": 30},
    "tail": {"recall": 0.1, "share": 0.08, "targets": 15},
    "unseen": {"recall": None, "share": 0.02, "targets": 0},
}


def made_up_plan(path, quality, loss=lambda cell: 9.0, *, real_set=GROCERY, noise=0.0):
    """A finished plan; `quality(cell)` is MAP@20 at the end of a run, half of it at its middle."""
    plan, ledger = Plan(real_set), Ledger(path)
    draw = np.random.default_rng(0)
    for lr in LRS:
        put(ledger, plan.trial(SAMPLED, lr, FIRST_ALPHA), 0.2 if lr == LRS[1] else 0.1, 9.0, draw)
    for cell in SMALL_CELLS:
        for alpha in ALPHAS:
            run = plan.trial(cell, LRS[1], alpha)
            put(ledger, run, 0.3 if alpha == 0.5 else 0.2, 9.0, draw)
    for cell, seeds in plan.cells().items():
        for seed in seeds:
            run = plan.run(cell, *plan.best(ledger, cell), seed)
            put(ledger, run, quality(cell), loss(cell), draw, noise)
    return plan, ledger


def put(ledger, run, quality, loss, draw, noise=0.0):
    """Straight into memory. `noise` is the standard deviation between blocks."""
    points = [10.0] * NUM_BLOCKS
    wobble = noise * draw.standard_normal(NUM_BLOCKS)
    blocks = [10 * (quality + w) for w in wobble]
    curve = [
        {"step": step, "seconds": 1.0, "map@20": part * quality, "loss": loss,
         "blocks": [part * b for b in blocks]}
        for step, part in ((run.steps // 2, 0.5), (run.steps, 1.0))
    ]  # fmt: skip
    ledger.results[run.key()] = {
        "key": run.key(), "run": {"seed": run.seed}, "map@20": quality, "loss": loss,
        "blocks": {"points": points, "map@20": blocks, "loss": [10 * loss] * NUM_BLOCKS},
        "recall@20": 0.3, "ndcg@10": 0.2, "buckets": BUCKETS, "curve": curve,
        "curve_points": points, "looks": [], "train_seconds": 1.0,
    }  # fmt: skip
