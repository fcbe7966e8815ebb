"""Fake results of `tapas compare`, in which each contender has the quality that a test sets."""

import dataclasses
import json
from pathlib import Path

import numpy as np

from tapas.comparison.config import synthetic
from tapas.comparison.contenders import CONTENDERS
from tapas.comparison.results import BaselineResult, Comparison, MethodResults
from tapas.evaluation.points import NUM_BLOCKS

POINTS_EACH = 10.0  # in each block of users
SHARES = (0.1, 0.25, 0.5, 1.0)
SECONDS = 60.0  # of a final run
TAIL_TARGETS = 1_000


def result(name, quality, *, seed=0, loss=6.0, noise=0.0, tail=0.1, **more):
    """A line of runs.jsonl, at test points unless `more` overrides that.

    `noise` is the standard deviation of MAP@20 between blocks of users. It is independent for each
    contender, so differences are noisy, too.
    """
    draw = np.random.default_rng([seed, *name.encode()])
    wobble = noise * draw.standard_normal(NUM_BLOCKS)
    wobble -= wobble.mean()
    run = {
        "contender": name, "rows_lr": 0.1, "knob": None, "steps": 1_200, "seed": seed,
        "points": "test", **more.pop("run", {}),
    }  # fmt: skip
    rise = more.pop("rise", (0.2, 0.5, 0.8, 1.0))
    return {
        "key": json.dumps(run),
        "run": run,
        "map@20": quality,
        "precision@1": quality / 2,
        "recall@20": 2 * quality,
        "loss": loss,
        "blocks": {
            "points": [POINTS_EACH] * NUM_BLOCKS,
            "map@20": [POINTS_EACH * (quality + w) for w in wobble],
            "loss": [POINTS_EACH * loss] * NUM_BLOCKS,
        },
        "buckets": {
            "head": {"recall": 0.5, "share": 0.7, "targets": 5_000},
            "middle": {"recall": 0.2, "share": 0.2, "targets": 3_000},
            "tail": {"recall": tail, "share": 0.1, "targets": TAIL_TARGETS},
            "unseen": {"recall": None, "share": 0.0, "targets": 0},
        },
        "coverage": 321,
        "seconds": SECONDS,
        "wall_seconds": 1.2 * SECONDS,
        "peak_bytes": 500_000_000,
        "scores_per_example": 1_000.0,
        "curve": [
            {"share": share, "step": round(1_200 * share), "seconds": SECONDS * share,
             "map@20": part * quality, "validation": part * quality, "loss": loss}
            for share, part in zip(SHARES, rise, strict=True)
        ],
        "curve_points": [POINTS_EACH] * NUM_BLOCKS,
        **more,
    }  # fmt: skip


def diverged(name, *, seed=0, points="test"):
    run = {"contender": name, "rows_lr": 0.1, "knob": None, "steps": 1_200, "seed": seed}
    run["points"] = points
    return {"key": json.dumps(run), "run": run, "diverged": "row 3 is not finite"}


def pace(name, seconds=0.05):
    run = {"contender": name}
    rounds = [0.9 * seconds, seconds, 1.3 * seconds]
    return {
        "key": name, "run": run, "step_seconds": rounds, "peak_bytes": 400_000_000,
        "scores_per_example": 1_000.0,
    }  # fmt: skip


def write_lines(path: Path, lines) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def settings(names, **changes):
    """The content of settings.json for a synthetic log."""
    config = synthetic(contenders=tuple(names), **changes)
    found = dataclasses.asdict(config) | {
        "num_samples": 1_000,
        "sizes": {"events": 1_200_000, "items": 100_000, "users": 40_000},
        "machine": {"cores": 2, "tapas": "0", "torch": "2", "python": "3", "commit": "abc"},
    }
    return json.loads(json.dumps(found))


def method(name, quality, *, seeds=2, **more):
    """The results of a finished contender; `more` goes to `result` or to `MethodResults`."""
    fields = {f.name for f in dataclasses.fields(MethodResults)}
    overrides = {key: more.pop(key) for key in list(more) if key in fields}
    known = CONTENDERS[name]
    finals = tuple(result(name, quality, seed=seed, **more) for seed in range(seeds))
    given = {"pace": pace(name), "finals": finals, "num_seeds": seeds, **overrides}
    return MethodResults(
        name=name, title=known.title, colour=known.colour, knob=known.knob, **given
    )


def comparison(*methods, **more):
    names = [each.name for each in methods]
    return Comparison(settings(names), tuple(methods), **more)


def reference(title, quality, loss=None):
    found = result(title, quality, loss=5.0 if loss is None else loss)
    if loss is None:
        del found["loss"], found["blocks"]["loss"]
    return BaselineResult(title, found)
