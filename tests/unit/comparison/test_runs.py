"""One run of a comparison: equal batches for all methods, scored on points of the right split."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from oracle.command_line import write_chain

from tapas.comparison import runs
from tapas.comparison.config import quick
from tapas.comparison.runs import MOMENTS, CompareRun, build_run, execute, find_log, open_log
from tapas.data.source import LogSource
from tapas.data.splits import SplitConfig
from tapas.errors import DataError, UsageError
from tapas.evaluation.baselines import title_of
from tapas.evaluation.evaluate import evaluate
from tapas.evaluation.intervals import block_bootstrap
from tapas.evaluation.ranked_lists import ListOptions

CONFIG = quick()
RUN = CompareRun(contender="sampled", rows_lr=0.3, knob=0.5, num_samples=16, steps=8,
                 step_seconds=0.25, seed=0)  # fmt: skip


@pytest.fixture(scope="module")
def result(cache):
    return execute(RUN, CONFIG, cache)


def test_a_result_is_complete_and_its_curve_is_over_seconds_at_the_measured_pace(result):
    assert set(result) == {
        "key", "run", "map@20", "precision@1", "recall@20", "ndcg@10", "ndcg@20", "loss", "blocks",
        "buckets", "coverage", "seconds", "wall_seconds", "train_wall_seconds", "peak_bytes",
        "scores_per_example", "curve", "curve_points", "best_share",
    }  # fmt: skip
    assert json.loads(json.dumps(result)) == result
    assert CompareRun(**result["run"]) == RUN
    assert result["seconds"] == 8 * 0.25
    assert result["scores_per_example"] == 16
    assert result["peak_bytes"] is None or result["peak_bytes"] > 10**7
    for metric in ("map@20", "loss", "precision@1", "recall@20", "ndcg@20"):
        assert block_bootstrap([result], metric).mean == pytest.approx(result[metric], abs=2e-5)
    steps = sorted({max(1, round(8 * moment)) for moment in MOMENTS})
    assert [at["step"] for at in result["curve"]] == steps
    assert [at["seconds"] for at in result["curve"]] == [0.25 * step for step in steps]
    assert result["curve"][-1]["share"] == 1
    assert sum(result["curve_points"]) == CONFIG.curve_points
    for at in result["curve"]:
        assert {"map@20", "loss", "share", "validation"} <= set(at)


def test_a_run_is_scored_at_its_best_moment_by_validation(cache, monkeypatch):
    """The rows are overwritten after the third step, so that an earlier moment is the best."""
    opened = open_log(CONFIG, cache)
    take, calls = runs.step, []

    def spoil(model, *args, **kwargs):
        calls.append(True)
        if len(calls) == 4:
            with torch.no_grad():
                model.head.table.weight.zero_()
                model.head.table.bias.copy_(torch.arange(opened.log.num_items) * 1e-3)
        return take(model, *args, **kwargs)

    monkeypatch.setattr(runs, "step", spoil)
    spoilt = execute(replace(RUN, rows_lr=1e-6), CONFIG, cache)
    first = next(at for at in spoilt["curve"] if at["step"] == 3)
    valid = [at["validation"] for at in spoilt["curve"]]
    best = max(range(len(valid)), key=lambda i: (valid[i], -i))
    assert spoilt["best_share"] == spoilt["curve"][best]["share"]
    assert spoilt["best_share"] < 1
    assert first["validation"] > valid[-1]


def test_the_same_seed_has_the_same_batches_with_every_method(cache):
    opened = open_log(CONFIG, cache)
    built = [
        build_run(replace(RUN, contender=name, knob=knob), CONFIG, opened)
        for name, knob in (("full", None), ("sampled", 0.5), ("tapas", 1.0))
    ]
    for number in (0, 5):
        batches = [parts.windows.batch(number) for parts in built]
        for batch in batches[1:]:
            assert torch.equal(batch.items, batches[0].items)
            assert torch.equal(batch.target, batches[0].target)
    rows = [parts.model.head.table.weight for parts in built]
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])


@pytest.mark.parametrize("points", ["validation", "test"])
def test_a_run_is_scored_only_at_points_of_its_split(points, cache, monkeypatch):
    split = open_log(CONFIG, cache).split
    sampled_from, ranked = [], []
    sample, rank = runs.sample_users, runs.PointEvaluator.rank

    def watched_sample(held_out, most):
        sampled_from.append(held_out)
        return sample(held_out, most)

    def watched_rank(self, model, most):
        ranked.append(self.points)
        return rank(self, model, most)

    monkeypatch.setattr(runs, "sample_users", watched_sample)
    monkeypatch.setattr(runs.PointEvaluator, "rank", watched_rank)
    result = execute(replace(RUN, points=points), CONFIG, cache)
    if points == "validation":  # a trial never sees test points
        assert [held_out is split.validation for held_out in sampled_from] == [True]
    else:
        assert [held_out is split.test for held_out in sampled_from] == [True, False]
        assert sampled_from[1] is split.validation  # to choose the best moment
        ranked = ranked[-1:]  # the final scores
    mine = getattr(split, points)
    first = dict(zip(mine.user, mine.point, strict=True))
    for scored in ranked:
        assert len(set(scored.user.tolist())) == len(scored)  # one point of each user
        assert all(first[u] == p for u, p in zip(scored.user, scored.point, strict=True))
    assert (result["curve"] == []) == (points == "validation")


@pytest.mark.parametrize("name", runs.REFERENCES)
def test_references_are_scored_at_the_same_points(name, cache, result):
    found = execute(CompareRun(contender=name), CONFIG, cache)
    assert found["blocks"]["points"] == result["blocks"]["points"]
    assert ("loss" in found) == (name == runs.TRUTH)
    assert 0 < found["precision@1"] < 1 or name == "the user's favourites"


def test_the_true_distribution_of_a_real_log_is_not_known(cache):
    source = find_log(CONFIG, cache)
    config = replace(CONFIG, made=None, log=source)
    with pytest.raises(UsageError, match=r"the true distribution of this log is not known\."):
        execute(CompareRun(contender=runs.TRUTH), config, cache)
    found = execute(CompareRun(contender="most popular"), config, cache)
    assert found == execute(CompareRun(contender="most popular"), CONFIG, cache)


def test_divergence_is_a_result_and_other_errors_are_raised(cache, monkeypatch):
    def fail(*args, **kwargs):
        raise error

    rank = runs.PointEvaluator.rank
    endless = lambda self, *a: (rank(self, *a)[0], np.array([np.inf]))  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(runs.PointEvaluator, "rank", endless)
        words = "the full softmax loss is not finite: training has diverged."
        found = execute(RUN, CONFIG, cache)
        assert (found["map@20"], found["diverged"]) == (0, words)
    monkeypatch.setattr(runs, "step", fail)
    error = DataError("the loss is nan at step 0: training has diverged.")
    found = execute(RUN, CONFIG, cache)
    assert (found["map@20"], found["diverged"]) == (0, str(error))
    error = UsageError("no such thing")
    with pytest.raises(UsageError, match="no such thing"):
        execute(RUN, CONFIG, cache)
    missing = replace(CONFIG, made=None, log=LogSource(files=("nowhere.csv",)))
    with pytest.raises(UsageError, match=r"no file matches 'nowhere\.csv'"):
        find_log(missing, cache)


@pytest.mark.parametrize("qualities", [(None, None, None), (0.2, 0.5, 0.1), (0.5, 0.5, 0.2)])
def test_training_takes_every_step_once_and_ends_with_the_best_model(cache, qualities):
    """Without scores that is the last one; among equals the first."""
    parts = build_run(RUN, CONFIG, open_log(CONFIG, cache))
    seen, given = [], iter(qualities)

    def evaluate(steps, seconds):
        seen.append((steps, seconds, parts.model.head.table.weight.clone()))
        assert parts.model.head.step == steps
        return next(given)

    total = runs.train_and_evaluate(parts, {8, 2, 5}, evaluate)
    assert [steps for steps, _, _ in seen] == [2, 5, 8]
    assert 0 < seen[0][1] < seen[1][1] < seen[2][1] == total
    best = 2 if qualities[0] is None else qualities.index(max(qualities))
    assert torch.equal(parts.model.head.table.weight, seen[best][2])
    assert not torch.equal(seen[0][2], seen[2][2])


def test_compare_and_evaluate_have_the_same_numbers_for_counting(tmp_path):
    """One log with rare items and one split: one point a user, the same targets and metrics."""
    file = write_chain(tmp_path / "log.parquet", num_users=23, num_items=31, num_baskets=9)
    source = LogSource(files=(str(file),), min_count=12, rare="fold")
    config = replace(CONFIG, made=None, log=source, split=SplitConfig(kind="last"), points=19)
    opened = open_log(config, tmp_path)
    rare = opened.log.item_keys.rare_id
    assert rare is not None
    assert len(opened.split.test) == 23

    class Blind:
        """A model that lists nothing: only the baselines count."""

        def predict(self, items, lengths, age=None):
            none = torch.full((len(items), 20), -1)
            return SimpleNamespace(
                num_classes=20,
                topk_and_log_prob=lambda k, ids, exclude: (none, torch.zeros(ids.shape)),
            )

    judged = evaluate(
        Blind(), opened.log, opened.split, ListOptions(20, excluded_class=rare),
        num_targets=runs.NEXT_ITEMS, limit=19,
    )  # fmt: skip
    for name in runs.COUNTING:
        found = execute(CompareRun(contender=name), config, tmp_path)
        theirs = judged.scores[title_of(name)]
        assert sum(found["blocks"]["points"]) == theirs.num_examples == 19
        for metric in ("map@20", "recall@20", "ndcg@20", "precision@1"):
            assert found[metric] == round(theirs.metrics[metric].mean, 6)
        assert found["coverage"] == theirs.coverage
    assert judged.scores["co-occurrence"].metrics["map@20"].mean > 0.1


@pytest.mark.parametrize("name", runs.COUNTING)
def test_counting_gives_distinct_items_and_favourites_are_from_the_history(name, cache):
    opened = open_log(CONFIG, cache)
    points = runs.sample_users(opened.split.test, 50)
    ranked = runs.rank_by_counting(name, opened.log, opened.split, points)
    assert ranked.shape == (len(points), 20)
    for row in ranked:
        assert len(torch.unique(row[row >= 0])) == int((row >= 0).sum())
    if name == "the user's favourites":
        history = opened.log.items[opened.log.offsets[points.user[0]] : points.point[0]]
        ids, count = np.unique(history, return_counts=True)
        assert count[ids == int(ranked[0, 0])] == count.max()
